"""Texts and tables as HTML; every text is a text there, whatever is in it."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.resources import files

__all__ = ["escaped", "facts", "fragment", "headed", "plain", "shortened", "style", "table"]

# Control characters are no text of HTML, and marks of direction would turn what stands beside them.
_ODD = {code: "\ufffd" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))}
_ODD |= {code: "" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_LONGEST = 2000


def plain(text: str) -> str:
    """A text as it can stand in HTML once it is escaped; what is very long is cut."""
    text = text.translate(_ODD)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def escaped(value: object) -> str:
    """A value as HTML that shows it, and is nothing else."""
    return html.escape(plain(str(value)))


def shortened(text: str, most: int) -> str:
    """Of so many characters at most."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def table(
    columns: Sequence[object], rows: Iterable[Sequence[object]], numbers: Collection[int] = ()
) -> str:
    """A table; the first cell of each row names it.

    Args:
        columns: their titles.
        rows: their cells.
        numbers: the places of columns that are set flush right.
    """

    def cell(tag: str, place: int, value: object, scope: str = "") -> str:
        number = ' class="number"' if place in numbers else ""
        return f"<{tag}{scope}{number}>{escaped(value)}</{tag}>"

    head = "".join(cell("th", n, name, ' scope="col"') for n, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(
            cell("td", n, value) if n else cell("th", n, value, ' scope="row"')
            for n, value in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    label = escaped(columns[0])
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{label} and more"><table><thead>'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[object, object]]) -> str:
    """Names and values."""
    lines = (
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in pairs
    )
    return f'<dl class="facts">{"".join(lines)}</dl>'


def headed(title: object, *parts: str) -> str:
    """HTML under a title."""
    return f"<h4>{escaped(title)}</h4>{''.join(parts)}"


def fragment(*parts: str) -> str:
    """HTML that stands in a page of somebody else's, such as a notebook, with its own style."""
    return f'<div class="absflow cell"><style>{style()}</style>{"".join(parts)}</div>'


@cache
def style() -> str:
    """The style of pictures, and of what is beside them, within the class ``absflow``."""
    return (files("absflow.drawing") / "pictures.css").read_text(encoding="utf-8")
