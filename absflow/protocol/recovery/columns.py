"""How columns differ between two forms of a stage, and which types hold all values of others.

Rules of this file: plain functions over names and types, both as texts of Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["columns_changed", "widens"]

# What is lost by neither a cast nor a hash; the order within a row is from narrow to wide.
_WIDER = (
    ("int8", "int16", "int32", "int64"),
    ("int8", "int16", "int32", "double"),
    ("int8", "int16", "float", "double"),
)
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


def columns_changed(
    what: str, old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]
) -> Iterator[str]:
    """How columns differ, one by one, in words; of their order nothing is said.

    Args:
        what: what a column of them is called.
        old: names and types then.
        new: names and types now.
    """
    was, now = ({column: type_ for column, type_ in columns} for columns in (old, new))
    for column, type_ in now.items():
        if column not in was:
            yield f"{what} {column!r} ({type_}) is added"
        elif was[column] != type_:
            yield f"{what} {column!r} was {was[column]}, is {type_}"
    yield from (f"{what} {column!r} is dropped" for column in was if column not in now)


def widens(old: str, new: str) -> bool:
    """Whether the Arrow type ``new`` holds every value of ``old``, another one."""
    if any(old in row and new in row and row.index(old) < row.index(new) for row in _WIDER):
        return True
    was, is_ = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if not (was and is_):
        return False
    (digits, scale), (more, scale_now) = (tuple(map(int, m.groups())) for m in (was, is_))
    return scale_now >= scale and more - scale_now >= digits - scale
