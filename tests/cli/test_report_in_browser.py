"""The checkpoint page in a real browser: Chromium, of the system's packages, without a display.

``ABSFLOW_SCREENSHOTS`` names a folder for pictures of it.
"""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from chromium import chromium
from commands_run import succeed
from playwright.sync_api import expect
from shared_roots import write_small_root
from storage_roots import Checkpoint, Stage, complete, write_root
from test_serve_command import served

WIDTHS = [360, 1280, 3840]


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def file(small, tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "page.html"
    succeed(small, "report", "-o", str(target))
    return target


@pytest.fixture
def opened(browser, file):
    """Opens the page; whatever it complains of, or asks the network for, fails the test."""
    contexts, said = [], []

    def opened(path=file, **more):
        contexts.append(browser.new_context(**more))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        assert asked == [path.as_uri()]
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def shown(page):
    """The checkpoints whose sections are to be seen."""
    sections = page.locator("section.detail").all()
    return [section.get_attribute("id") for section in sections if section.is_visible()]


def picture(page, name):
    if folder := os.environ.get("ABSFLOW_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_bar_is_chosen(opened):
    page = opened()
    assert shown(page) == ["c8"]
    page.locator("svg.strip a[href='#c4']").click()
    assert shown(page) == ["c4"]
    picture(page, "report")


def test_the_age_grows_by_itself(opened):
    page = opened()
    expect(page.locator("#age")).to_have_text(re.compile(r"\d+ d \d+ h old"))


def test_only_some_are_shown(opened):
    page = opened()
    page.get_by_label("Only those with").fill("abort")
    rows = [row.inner_text() for row in page.locator("#table tbody tr").all() if row.is_visible()]
    assert rows
    assert all("ABORTED" in row for row in rows)


def test_by_keys_alone(opened):
    """The first is a way past the head; arrows go through the checkpoints."""
    page = opened()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("To the checkpoints")
    page.keyboard.press("ArrowLeft")
    assert shown(page) == ["c7"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert shown(page) == ["c9"]


def test_two_checkpoints_beside_each_other(opened):
    """Any two that the file has details of; what it has not is said."""
    page = opened()
    page.get_by_label("Compare checkpoint").fill("4")
    page.get_by_label("with", exact=True).fill("6")
    page.get_by_role("button", name="Compare").click()
    both = page.locator("#compared section")
    expect(both).to_have_count(2)
    assert [each.locator("h3").inner_text() for each in both.all()] == [
        "Checkpoint 4",
        "Checkpoint 6",
    ]
    assert Axe().run(page).violations_count == 0
    page.get_by_label("with", exact=True).fill("77")
    page.get_by_role("button", name="Compare").click()
    expect(both.last).to_have_text("This page has no details of checkpoint 77.")


def test_without_javascript(opened):
    """The age is that of the moment; a checkpoint is chosen in the table; nothing offers more."""
    page = opened(java_script_enabled=False)
    expect(page.locator("#age")).to_have_text(re.compile(r"\d+ d \d+ h old"))
    assert shown(page) == ["c8"]
    page.get_by_role("link", name="3", exact=True).click()
    assert shown(page) == ["c3"]
    assert not page.locator("#filter").is_visible()
    assert not page.locator("#compare").is_visible()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_any_screen(opened, width, scheme):
    """Nothing is wider than the screen, and axe finds nothing that would shut anybody out."""
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    picture(page, f"report-{width}-{scheme}")


def test_hostile_names_are_text(opened, tmp_path):
    """Nothing of them runs, and nothing is asked for."""
    odd = "<img src=x onerror=alert(1)>\u202e<script>alert(2)</script>"
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    stage = Stage("x", keys, columns, {1: [{"k": 1, "n": 1}]}, positions={odd: odd})
    root = write_root(tmp_path / "job", [stage], [Checkpoint(1)])
    target = tmp_path / "odd.html"
    succeed(root, "report", "-o", str(target))
    page = opened(target)
    assert "<script>alert(2)</script>" in page.locator("section.detail").inner_text()


def test_a_long_history_opens(opened, tmp_path):
    """1,000 checkpoints of 20 stages: as many are shown in full as a browser takes at once."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    stages = [Stage(f"stage-{n}", keys, columns, {1: [{"k": 1, "n": 1}]}) for n in range(20)]
    checkpoints = [Checkpoint(n, max(0, n - 1)) for n in range(1, 1001)]
    root = write_root(tmp_path / "job", stages, checkpoints)
    target = tmp_path / "long.html"
    succeed(root, "report", "--limit", "1000", "-o", str(target))
    page = opened(target)
    assert page.locator("svg.strip a").count() == 1000
    assert page.locator("section.detail").count() == 100
    assert shown(page) == ["c1000"]
    picture(page, "report-long")


def test_the_live_page_follows_the_job(browser, tmp_path):
    """What was chosen and filtered stays; that the server has gone is said."""
    root = write_small_root(tmp_path)
    with browser.new_context() as context:
        page = context.new_page()
        with served(root) as server:
            page.goto(server.url)
            page.get_by_role("link", name="3", exact=True).click()
            complete(root, 10)
            expect(page.locator("#r10")).to_have_count(1, timeout=60_000)
            assert shown(page) == ["c3"]
            page.get_by_role("link", name="aircraft", exact=True).first.click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("State of aircraft")
            page.get_by_label("tailnum", exact=True).fill("N4")
            page.get_by_role("button", name="Look").click()
            expect(page.get_by_role("heading", name="What it has been")).to_be_visible()
            assert Axe().run(page).violations_count == 0
            picture(page, "keys")
            page.goto(server.url)
            page.get_by_label("Compare checkpoint").fill("1")
            page.get_by_role("button", name="Compare").click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("Checkpoint 1 and")
            expect(page.get_by_role("heading", name="Keys of the state")).to_be_visible()
            assert Axe().run(page).violations_count == 0
            picture(page, "compare")
            page.goto(server.url)
        expect(page.locator("#live")).to_contain_text("what you see is old", timeout=60_000)
