"""From what the page says to one HTML file that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from absflow.cli.report.compare import KEY_COLUMNS, Compared
from absflow.cli.report.keys import KeysPage
from absflow.cli.report.model import INPUT_COLUMNS, STAGE_COLUMNS, Page
from absflow.cli.report.page import TREND
from absflow.drawing import html, pictures
from absflow.drawing.checkpoint import timeline_table
from absflow.drawing.html import plain

__all__ = ["render", "render_compared", "render_keys", "render_problem"]

# A browser opens so many rows of stages at once; older checkpoints are in the table only.
_STAGE_ROWS = 2000
# What the template needs that shows a checkpoint.
_OF_CHECKPOINTS: Mapping[str, object] = {
    "stage_columns": STAGE_COLUMNS,
    "input_columns": INPUT_COLUMNS,
}


def render(page: Page, *, live: bool = False) -> str:
    """The page as HTML; ``live`` if it comes from a server that has newer ones."""
    detailed, left = set(), _STAGE_ROWS
    for detail in page.details:  # the newest first
        left -= max(len(detail.stages), 1)
        if left >= 0 or detail.id == page.chosen:
            detailed.add(detail.id)
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            page=page,
            detailed=detailed,
            links={bar.id: f"#{'c' if bar.id in detailed else 'r'}{bar.id}" for bar in page.bars},
            live=live,
            quoted_root=shlex.quote(page.root),
            trend_size=TREND,
            **_OF_CHECKPOINTS,
            style=_style(),
            script=_own("page.js"),
        )
    )


def render_compared(compared: Compared) -> str:
    """One checkpoint, or two beside each other, as HTML."""
    return (
        _environment()
        .get_template("compare.html.jinja")
        .render(compared=compared, key_columns=KEY_COLUMNS, style=_style(), **_OF_CHECKPOINTS)
    )


def render_keys(keys: KeysPage) -> str:
    """The state of keys as HTML."""
    return _environment().get_template("keys.html.jinja").render(keys=keys, style=_style())


def render_problem(words: str) -> str:
    """What a server says instead of a page."""
    template = _environment().get_template("problem.html.jinja")
    return template.render(words=words, style=_style())


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("absflow.cli.report", ""),
        autoescape=select_autoescape(["jinja"]),
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"quoted": shlex.quote}
    drawn: dict[str, Callable[..., str]] = {
        "facts": html.facts,
        "grid": html.table,
        "graph_picture": pictures.graph_picture,
        "strip_picture": pictures.strip_picture,
        "timeline_table": timeline_table,
    }
    # What they make is HTML, and all names in it are escaped.
    made.globals |= {name: _marked(function) for name, function in drawn.items()}
    return made


def _marked(function: Callable[..., str]) -> Callable[..., Markup]:
    return lambda *args: Markup(function(*args))


def _plain(value: object) -> object:
    """A text as it can stand in HTML; what is very long is cut."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return plain(value)


def _style() -> Markup:
    return Markup(html.style()) + _own("page.css")


def _own(name: str) -> Markup:
    return Markup((files("absflow.cli.report") / name).read_text(encoding="utf-8"))
