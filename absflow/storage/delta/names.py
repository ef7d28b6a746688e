"""Names and types of columns that no Delta table can have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types

__all__ = ["same_name", "unfit", "unfit_type"]

# Without column mapping, which takes a table away from readers that do not know it.
_REFUSED = {" ": "a space", "\n": "a line break", "\t": "a tab", **{c: c for c in ",;{}()="}}


def unfit(schema: pa.Schema) -> str:
    """What of these columns no Delta table can have, in words; empty if one can have them all."""
    for name, of_struct in _names(schema, ""):
        where = f" of column {of_struct!r}" if of_struct else ""
        seen = next((words for c, words in _REFUSED.items() if c in name), "")
        if seen:
            return (
                f"a Delta table takes no column {name!r}{where}, for there is {seen} in its name "
                "(none of , ; { } ( ) = may be, nor a space, a tab or a line break)"
            )
        if not name or "\0" in name:
            return f"a Delta table takes no column {name!r}{where}, for that is no name"
    return _twins(schema, "")


def unfit_type(schema: pa.Schema, *, values: bool = False) -> str:
    """Which of these columns has a type that no Delta table can have; empty if none has.

    Args:
        schema: the columns.
        values: a function gives them one by one; a variant has no value in Python.
    """
    for field in schema:
        for part in _within(field):
            if types.is_duration(part.type):
                said = (
                    "an interval, which no Delta table can hold; make it a number, as a long of ms"
                )
            elif types.is_time(part.type):
                said = "a time of day, which no Delta table can hold; make it a number or a string"
            elif values and part.metadata and part.metadata.get(b"variant"):
                said = "a variant, of which a function has no values; make it a string, of JSON"
            else:
                continue
            return f"column {field.name!r} is or has {said}"
    return ""


def _within(field: pa.Field) -> Iterator[pa.Field]:
    """The field, and all within it."""
    yield field
    if types.is_nested(field.type):
        for place in range(field.type.num_fields):
            yield from _within(field.type.field(place))


def same_name(name: str) -> str:
    """Equal for two names exactly if Spark and Delta take them for one, for they ignore case."""
    upper = (c.upper() for c in name)
    return "".join(u.lower() if len(u) == 1 else c for c, u in zip(name, upper, strict=True))


def _names(fields: Iterable[pa.Field], of: str) -> Iterator[tuple[str, str]]:
    """All names, also those within structs, each with the column that it is in."""
    for field in fields:
        yield field.name, of
        for struct in _structs(field.type):
            yield from _names(struct, of or field.name)


def _twins(fields: Iterable[pa.Field], of: str) -> str:
    seen: dict[str, str] = {}
    for field in fields:
        if (other := seen.get(same_name(field.name))) is not None:
            where = f" within column {of!r}" if of else ""
            return (
                f"a Delta table takes {other!r} and {field.name!r}{where} for one column, for it "
                "ignores case"
            )
        seen[same_name(field.name)] = field.name
        for struct in _structs(field.type):
            if twins := _twins(struct, of or field.name):
                return twins
    return ""


def _structs(of: pa.DataType) -> Iterator[list[pa.Field]]:
    """The fields of each struct within a type."""
    inside = [of.field(place) for place in range(of.num_fields)] if types.is_nested(of) else []
    if types.is_struct(of):
        yield inside
    elif types.is_map(of):
        yield from (s for part in (of.key_type, of.item_type) for s in _structs(part))
    else:
        yield from (s for part in inside for s in _structs(part.type))
