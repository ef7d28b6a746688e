"""Tables of a database: made for the columns of a stage's output, or compared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine.interfaces import ReflectedColumn

from absflow.errors import GraphError

__all__ = ["check_columns", "lanes_table", "make_table", "sql_table"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Columns of Arrow that are one in a database.

    Attributes:
        name: for people.
        fits: whether a type of Arrow is of the kind.
        made: the type of a column that is made for it.
        taken: a column of these types takes it.
    """

    name: str
    fits: Callable[[pa.DataType], bool]
    made: Callable[[pa.DataType], Any]
    taken: tuple[type, ...]


def _integer(of: pa.DataType) -> Any:
    return {8: sa.SmallInteger, 16: sa.SmallInteger, 32: sa.Integer}.get(
        of.bit_width, sa.BigInteger
    )()


_NUMBERS = (sa.Numeric, sa.Float)
_KINDS = (
    _Kind("a boolean", pa.types.is_boolean, lambda _: sa.Boolean(), (sa.Boolean,)),
    _Kind("an integer", pa.types.is_integer, _integer, (sa.Integer, *_NUMBERS)),
    _Kind(
        "a floating point number",
        pa.types.is_floating,
        lambda of: sa.Double() if of.bit_width == 64 else sa.REAL(),
        _NUMBERS,
    ),
    _Kind(
        "a decimal",
        pa.types.is_decimal,
        lambda of: sa.Numeric(of.precision, of.scale),
        _NUMBERS,
    ),
    _Kind("a text", pa.types.is_string, lambda _: sa.Text(), (sa.String,)),
    _Kind("bytes", pa.types.is_binary, lambda _: sa.LargeBinary(), (sa.LargeBinary, sa.BINARY)),
    _Kind("a date", pa.types.is_date, lambda _: sa.Date(), (sa.Date,)),
    _Kind(
        "a time",
        pa.types.is_timestamp,
        lambda of: sa.DateTime(timezone=of.tz is not None),
        (sa.DateTime,),
    ),
)


def check_columns(sink: str, schema: pa.Schema, key: Sequence[str], deleted: str | None) -> None:
    """Refuse an output that no table can take.

    Args:
        sink: the sink's name.
        schema: the output.
        key: the key columns of the table; none if rows are appended.
        deleted: the column that says that a row is a deletion.

    Raises:
        GraphError: naming the column.
    """
    for column in [*key, *filter(None, [deleted])]:
        if column not in schema.names:
            raise GraphError(
                f"sink {sink!r}: {column!r} is none of the stage's output columns {schema.names}"
            )
    if deleted is not None and not key:
        raise GraphError(
            f"sink {sink!r}: deleted={deleted!r} needs key=, the columns that say of which row"
        )
    if deleted is not None and not pa.types.is_boolean(schema.field(deleted).type):
        raise GraphError(
            f"sink {sink!r}: deleted={deleted!r} is {schema.field(deleted).type}, must be boolean"
        )
    for field in schema:
        if not any(kind.fits(field.type) for kind in _KINDS):
            raise GraphError(
                f"sink {sink!r}: column {field.name!r} is {field.type}, which no column of a "
                "database takes; emit a text (JSON), or columns for its parts"
            )


def sql_table(name: str, schema: pa.Schema, key: Sequence[str] = ()) -> sa.Table:
    """The table of this name with the columns that are written; the database is not asked.

    Args:
        name: ``table`` or ``schema.table``.
        schema: the columns.
        key: the key columns; none if rows are appended.
    """
    where, _, table = name.rpartition(".")
    columns = (
        sa.Column(
            field.name,
            _kind(field.type).made(field.type),
            primary_key=field.name in key,
            autoincrement=False,
        )
        for field in schema
    )
    return sa.Table(table, sa.MetaData(), *columns, schema=where or None)


def make_table(
    connection: sa.Connection, sink: str, name: str, schema: pa.Schema, key: Sequence[str]
) -> None:
    """Make the table, if it is not there.

    Args:
        connection: of the database.
        sink: the sink, for errors.
        name: as :func:`sql_table` takes it, and so are the next two.
        schema: the columns.
        key: the key columns.

    Raises:
        GraphError: the table that is there is of another shape.
    """
    of_schema, _, table = name.rpartition(".")
    where = of_schema or None
    inspector = sa.inspect(connection)
    if not inspector.has_table(table, where):
        sql_table(name, schema, key).create(connection)
        return
    there = {column["name"]: column for column in inspector.get_columns(table, where)}
    _check_shape(sink, name, schema, there)
    if key and {*key} not in _unique(inspector, table, where):
        raise GraphError(
            f"sink {sink!r}: table {name!r} has no primary key or unique constraint over "
            f"{[*key]}, without which there may be two rows of a key; add it"
        )


def _check_shape(
    sink: str, name: str, schema: pa.Schema, there: Mapping[str, ReflectedColumn]
) -> None:
    """Refuse a table whose columns do not take these."""
    for field in schema:
        if field.name not in there:
            raise GraphError(
                f"sink {sink!r}: table {name!r} has no column {field.name!r}; it has {[*there]}. "
                "Add it, or name another table"
            )
        kind = _kind(field.type)
        found = there[field.name]["type"]
        if not isinstance(found, kind.taken):
            raise GraphError(
                f"sink {sink!r}: column {field.name!r} of table {name!r} is {found!r}, but the "
                f"stage emits {kind.name} ({field.type})"
            )
    needed = [
        column["name"]
        for column in there.values()
        if not column["nullable"]
        and column["default"] is None
        and column.get("autoincrement") is not True
        and column["name"] not in schema.names
    ]
    if needed:
        raise GraphError(
            f"sink {sink!r}: columns {needed} of table {name!r} must have a value, and the stage "
            "emits none"
        )


def lanes_table(like: str) -> sa.Table:
    """The table that has the lanes' markers, beside a table.

    Args:
        like: that table: ``table`` or ``schema.table``.
    """
    return sa.Table(
        "absflow_lanes",
        sa.MetaData(),
        sa.Column("lane", sa.String(255), primary_key=True),
        # Who opened it last; nobody else commits.
        sa.Column("opened_by", sa.String(32), nullable=False),
        sa.Column("marker", sa.Text()),
        schema=like.rpartition(".")[0] or None,
    )


def _kind(of: pa.DataType) -> _Kind:
    return next(kind for kind in _KINDS if kind.fits(of))


def _unique(inspector: sa.Inspector, table: str, schema: str | None) -> list[set[str]]:
    keys = [inspector.get_pk_constraint(table, schema)["constrained_columns"]]
    keys += [each["column_names"] for each in inspector.get_unique_constraints(table, schema)]
    keys += [
        [name for name in each["column_names"] if name is not None]
        for each in inspector.get_indexes(table, schema)
        if each["unique"]
    ]
    return [{*columns} for columns in keys if columns]
