"""The docs as a site, built as ``make site`` does, and read as a browser reads it."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import chromium
from playwright.sync_api import expect

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from nothing; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of what it is asked."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Read(HTMLParser):
    """What a page links to, what it needs to be shown, and where it can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.needs: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is of interest."""
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if target := given.get("href") or given.get("src"):
            (self.links if tag == "a" else self.needs).append(target)


def test_no_link_is_broken_and_no_page_needs_another_host(site: Path) -> None:
    """Also what was laid out by plugins: the reference, the navigation, the copied files."""
    pages = {page: Read(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 25
    broken = []
    for page, read in pages.items():
        for link in read.links + read.needs:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                if link in read.needs and to.scheme != "data":
                    broken.append(f"{page.name} needs {link}")
                continue
            goal = (page.parent / unquote(to.path)).resolve() if to.path else page
            if not goal.is_file():
                broken.append(f"{page.name}: {link}")
            elif to.fragment and goal in pages and unquote(to.fragment) not in pages[goal].ids:
                broken.append(f"{page.name}: {link}, which {goal.name} does not have")
    assert sorted(set(broken)) == []


def test_the_site_is_whole_without_a_network(address: str) -> None:
    """Pages with a picture, a diagram, the reference; and the search. No error, no other host."""
    asked, said = [], []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        for name in ("index", "internals", "api"):
            page.goto(f"{address}/{name}.html", wait_until="networkidle")
        expect(page.get_by_role("heading", name="write_savepoint").first).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("savepoint")
        expect(page.locator(".md-search-result__item").first).to_be_visible()
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
