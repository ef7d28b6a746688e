"""What the site (``make site``) shows otherwise than the repository does; hooks of mkdocs.yml.

README, CHANGELOG and CONTRIBUTING are pages of the site. A link out of docs/ leads to such a page,
to a copy of the file, or, if it is code, nowhere: its text stays. Diagrams are drawn at the build,
and the reference is laid out by mkdocstrings, from the docstrings of which docs/generated.py makes
docs/api.md.
"""

from __future__ import annotations

import base64
import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import generated  # beside this file, where mkdocs looks for what a hook imports
import mmdr
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Files outside of docs/ that the site has, and where.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
COPIES = ("conf/absflow.conf", "monitoring/alerts.yml", "monitoring/grafana.json")

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ELSEWHERE = re.compile(r"[a-z]+:")
_API = re.compile(r"<!-- generated api -->\n.*?\n<!-- end -->", re.DOTALL)
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Headings have the ids that GitHub gives them, for links to them must lead there on both."""
    config["mdx_configs"]["toc"]["slugify"] = _id_of
    return config


def _id_of(heading: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside of docs/."""
    for name, uri in [*PAGES.items(), *((name, name) for name in COPIES)]:
        files.append(File.generated(config, uri, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page's text as the site has it."""
    at = page.file.src_uri
    names = {uri: name for name, uri in PAGES.items()}
    lies = posixpath.dirname(names.get(at, f"docs/{at}"))
    markdown = _LINK.sub(lambda match: _led(match, lies, at), markdown)
    markdown = _API.sub(lambda _: _reference(), markdown)
    return _DIAGRAM.sub(lambda match: _drawn(match[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Sphinx's roles and the ``::`` before an example are not Markdown; docstrings have both."""
    return re.sub(r":\w+:(<code>)~?", r"\1", html).replace("::</p>", ":</p>")


def _led(match: re.Match[str], lies: str, at: str) -> str:
    """A link on the page ``at``, whose text lies in the folder ``lies`` of the repository."""
    text, target, anchor = match[1], match[2], match[3] or ""
    if _ELSEWHERE.match(target):
        return match[0]
    goal = posixpath.normpath(posixpath.join(lies, target))
    if goal.startswith("docs/") and not goal.endswith(".py"):
        uri = goal.removeprefix("docs/")
    elif goal in PAGES or goal in COPIES:
        uri = PAGES.get(goal, goal)
    else:
        return text
    return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(at) or '.')}{anchor})"


def _reference() -> str:
    """A heading for each public class and function, which mkdocstrings fills."""
    things, errors = generated.public()
    lines = [_directive(thing, generated.methods(thing)) for thing in things]
    return "\n\n".join([*lines, "## Errors", *(_directive(error, [], level=3) for error in errors)])


def _directive(thing: Any, members: list[str], level: int = 2) -> str:
    lines = [f"::: {thing.__module__}.{thing.__qualname__}", "    options:"]
    lines.append(f"      heading_level: {level}")
    if inspect.isclass(thing):
        lines.append(
            f"      members: [{', '.join(members)}]" if members else "      members: false"
        )
    return "\n".join(lines)


def _drawn(diagram: str) -> str:
    """A diagram of mermaid's as a picture; as one of its own, for two would share their names."""
    data = base64.b64encode(str(mmdr.render(diagram).svg()).encode()).decode()
    kind = diagram.split(maxsplit=1)[0]
    return f'<img class="diagram" alt="{kind}" src="data:image/svg+xml;base64,{data}">'
