"""Names and values in texts of SQL; whatever stands in one goes through here."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["each", "literal", "quoted", "table"]


def quoted(name: str) -> str:
    """A name as an identifier, for Spark's functions that take a column's name, too."""
    return "`" + name.replace("`", "``") + "`"


def each(alias: str, names: Sequence[str]) -> str:
    """Columns of the table called ``alias``."""
    return ", ".join(f"{alias}.{quoted(name)}" for name in names)


def table(path: str) -> str:
    """The Delta table at a qualified path."""
    return f"delta.{quoted(path)}"


def literal(text: str) -> str:
    """A text as a value."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
