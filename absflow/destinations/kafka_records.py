"""Rows as records of Kafka: which columns are what of a record."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from absflow.errors import GraphError

__all__ = ["RecordColumns", "json_values"]


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of the parts of a record; None for a part that it has not, but for the value.

    Attributes:
        key: text or bytes.
        value: text or bytes; None: what ``values`` makes of all columns but the next three.
        headers: maps.
        partition: integers.
        timestamp: timestamps.
        values: of rows the values of their records.
    """

    key: str | None
    value: str | None
    headers: str | None
    partition: str | None
    timestamp: str | None
    values: Callable[[pa.RecordBatch], list[bytes]]

    @property
    def plain(self) -> bool:
        """Whether the client takes the records many at a time."""
        return self.headers is None and self.timestamp is None

    def check(self, sink: str, schema: pa.Schema) -> None:
        """Refuse columns that are not there, or of another type.

        Raises:
            GraphError: naming the column.
        """
        wanted: Sequence[tuple[str, str | None, Callable[[pa.DataType], bool], str]] = (
            ("key", self.key, _is_bytes, "text or bytes"),
            ("value", self.value, _is_bytes, "text or bytes"),
            ("headers", self.headers, _is_headers, "map<string, string> or map<string, binary>"),
            ("partition", self.partition, pa.types.is_integer, "an integer"),
            ("timestamp", self.timestamp, pa.types.is_timestamp, "a timestamp"),
        )
        for what, column, fits, must_be in wanted:
            if column is None:
                continue
            if column not in schema.names:
                raise GraphError(
                    f"sink {sink!r}: {what}={column!r} is none of the stage's output columns "
                    f"{schema.names}"
                )
            of = schema.field(column).type
            if not fits(of):
                raise GraphError(f"sink {sink!r}: {what}={column!r} is {of}, must be {must_be}")

    def records(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        """As the client takes them, by the names of its arguments."""
        parts: dict[str, list[Any]] = {"value": self._values(rows)}
        if self.key is not None:
            parts["key"] = rows.column(self.key).to_pylist()
        if self.timestamp is not None:
            ms = rows.column(self.timestamp).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
            parts["timestamp"] = ms.fill_null(0).to_pylist()  # which the client takes for now
        if self.partition is not None:
            parts["partition"] = rows.column(self.partition).fill_null(-1).to_pylist()
        if self.headers is not None:
            parts["headers"] = rows.column(self.headers).to_pylist()
        names = tuple(parts)
        return [dict(zip(names, row, strict=True)) for row in zip(*parts.values(), strict=True)]

    def _values(self, rows: pa.RecordBatch) -> list[Any]:
        if self.value is not None:
            values: list[Any] = rows.column(self.value).to_pylist()
            return values
        return self.values(rows.select(self.in_value(rows.schema).names))

    def in_value(self, schema: pa.Schema) -> pa.Schema:
        """The columns of which values are made, if no column is the value."""
        beside = {self.headers, self.partition, self.timestamp}
        return pa.schema([field for field in schema if field.name not in beside])


def json_values(rows: pa.RecordBatch) -> list[bytes]:
    """Each row as a JSON object; so is each map in it, with its keys as text."""
    encode, options = orjson.dumps, orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC
    if any(map(_has_map, rows.schema.types)):
        options |= orjson.OPT_NON_STR_KEYS  # which takes twice as long
        return [encode(row, _plain, options) for row in rows.to_pylist(maps_as_pydicts="strict")]
    return [encode(row, _plain, options) for row in rows.to_pylist()]


def _has_map(of: pa.DataType) -> bool:
    if pa.types.is_map(of):
        return True
    return any(_has_map(of.field(n).type) for n in range(of.num_fields))


def _is_bytes(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_binary(of))


def _is_headers(of: pa.DataType) -> bool:
    return bool(pa.types.is_map(of) and pa.types.is_string(of.key_type) and _is_bytes(of.item_type))


def _plain(value: object) -> object:
    """What JSON has no form of."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON of {type(value).__name__}")
