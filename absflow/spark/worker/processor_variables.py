"""The state of a ``StatefulProcessor``: its variables, each a column of the stage's state.

A value state is a struct, a list state a list of structs, a map state a list of entries with
``key`` and ``value``; null where a key has none. A variable with a time to live has the time of the
update in each struct or entry (:data:`~absflow.columnar.clocks.UPDATED`), so that a value expires
without being written, and another time to live counts at once.

All keys of a call are converted at once, and a variable that no key touches is not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from absflow.columnar.clocks import UPDATED
from absflow.columnar.forms import python_values
from absflow.columnar.pieces import replaced
from absflow.columnar.process import check_whole
from absflow.errors import ResultError
from absflow.spark.worker.frames import fitting

__all__ = ["Asked", "Cells", "Kind", "Variable"]

_Row: TypeAlias = "tuple[Any, ...]"
_Mask = npt.NDArray[np.bool_]
_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
# What is converted without Spark's help if it is of just these types, for that is the same.
_PLAIN: dict[type[DataType], type] = {
    **dict.fromkeys(_NUMBERS, int),
    FloatType: float,
    DoubleType: float,
    BooleanType: bool,
    StringType: str,
}
_NESTED = (ArrayType, MapType, StructType)


class Kind(Enum):
    """What a variable is (Spark's ``ValueState``, ``ListState``, ``MapState``)."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


# The arguments of the call for a variable: its kind, the schemas of keys and values, its ttl.
Asked: TypeAlias = "tuple[Kind, StructType | str, StructType | str, int | None]"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable as ``init`` asks for it.

    Attributes:
        name: of the variable, and of its column.
        kind: what it is.
        value: the columns of its values.
        key: of a map the columns of its keys; no column for others.
        ttl_ms: how long after an update it is there, 0 for ever.
        asked: the very arguments, to see that workers ask for the same.
    """

    name: str
    kind: Kind
    value: StructType
    key: StructType
    ttl_ms: int
    asked: Asked

    @property
    def field(self) -> StructField:
        """Its column."""
        stamp = [StructField(UPDATED, LongType())] if self.ttl_ms else []
        if self.kind is Kind.MAP:
            entry = [StructField("key", self.key), StructField("value", self.value)]
        else:
            entry = list(self.value.fields)
        # Of a key without state every value is null, whatever the schema says of rows.
        type_: DataType = StructType([*entry, *stamp]).toNullable()
        return StructField(self.name, type_ if self.kind is Kind.VALUE else ArrayType(type_))

    @property
    def nested(self) -> bool:
        """Whether its values hold values, which a caller may change."""
        return any(isinstance(field.dataType, _NESTED) for field in self.value.fields)


class Cells:
    """What the keys of a call have of a variable, in Python.

    A cell is None, a row, a list of rows or a dict of them, by the variable's kind. Rows are
    tuples of the values, and of the time of the update behind them if they expire.
    """

    def __init__(self, variable: Variable) -> None:
        """Of no call yet."""
        self.variable = variable
        self.named = Row(*variable.value.names)
        self._ttl = variable.ttl_ms

    def begin(self, column: pa.ChunkedArray, now_ms: int) -> None:
        """Take the column of a call, one row for each key, and the time of the micro-batch."""
        self._column = column
        self._now = now_ms
        self._rows: list[Any] | None = None
        self._ends: list[int] = []
        self._keys: list[_Row] = []
        self._cells: dict[int, Any] = {}
        self.changed: set[int] = set()

    def cell(self, at: int) -> Any:
        """What a key has now; not to be changed without :meth:`put`."""
        if at not in self._cells:
            self._cells[at] = self._read(at)
        return self._cells[at]

    def put(self, at: int, cell: Any) -> None:
        """A key has this from now on; None, or something empty, for nothing."""
        self._cells[at] = cell or None
        self.changed.add(at)

    def clear(self, at: int) -> None:
        """A key has nothing from now on."""
        if self.cell(at) is not None:
            self.put(at, None)

    def row_of(self, value: object) -> _Row:
        """A row as it is kept, of what a processor gives.

        Raises:
            TypeError, ValueError: it is no row of the variable.
        """
        row = _checked(self.variable, "value", self.variable.value, value)
        if self.variable.nested:
            row = copy.deepcopy(row)
        return (*row, self._now) if self._ttl else row

    def value_of(self, row: _Row) -> _Row:
        """The values of a row, as a processor is given them."""
        values = row[:-1] if self._ttl else row
        return copy.deepcopy(values) if self.variable.nested else values

    def key_of(self, key: object) -> _Row:
        """The key of an entry, of what a processor gives.

        Raises:
            TypeError, ValueError: it is no key of the variable.
        """
        return _checked(self.variable, "key", self.variable.key, key)

    def there(self) -> _Mask:
        """Of each key whether it has anything, expired values aside."""
        if self.variable.kind is Kind.VALUE:
            found: _Mask = self._column.is_valid().to_numpy()
        else:
            found = self._lengths() > 0
        if self._ttl and found.any():
            found &= self._newest() > self._now - self._ttl
        for at in self.changed:
            found[at] = self._cells[at] is not None
        return found

    def _newest(self) -> npt.NDArray[np.int64]:
        """Of each key when its newest row was written."""
        chunk = _one_chunk(self._column)
        if self.variable.kind is Kind.VALUE:
            stamps = pc.struct_field(chunk, UPDATED)
            newest: npt.NDArray[np.int64] = pc.fill_null(stamps, 0).to_numpy()
            return newest
        lengths = self._lengths()
        stamps = pc.struct_field(chunk.flatten(), UPDATED).to_numpy()
        newest = np.zeros(len(chunk), dtype=np.int64)
        if len(stamps):
            starts = (np.cumsum(lengths) - lengths)[lengths > 0]
            newest[lengths > 0] = np.maximum.reduceat(stamps, starts)
        return newest

    def _lengths(self) -> npt.NDArray[np.int64]:
        lengths: npt.NDArray[np.int64] = pc.fill_null(
            pc.list_value_length(self._column), 0
        ).to_numpy()
        return lengths

    def rows(self, which: npt.NDArray[np.int64]) -> pa.ChunkedArray:
        """The column of some keys, as it is after the call."""
        table = pa.table([self._column.take(pa.array(which))], names=["v"])
        changed = [at for at in which.tolist() if at in self.changed]
        if changed:
            made = _array(self.variable, [self._cells[at] for at in changed], self._column.type)
            table = replaced(
                table, pa.table([made], names=["v"]), np.flatnonzero(np.isin(which, changed))
            )
        return table["v"]

    def _read(self, at: int) -> Any:
        if self._rows is None:
            self._convert()
        assert self._rows is not None
        if self.variable.kind is Kind.VALUE:
            row = self._rows[at]
            return row if row is None or self._live(row) else None
        start = self._ends[at - 1] if at else 0
        inside = range(start, self._ends[at])
        if self.variable.kind is Kind.LIST:
            return [self._rows[i] for i in inside if self._live(self._rows[i])] or None
        return {self._keys[i]: self._rows[i] for i in inside if self._live(self._rows[i])} or None

    def _live(self, row: _Row) -> bool:
        return not self._ttl or bool(row[-1] + self._ttl > self._now)

    def _convert(self) -> None:
        """Convert the column, of all keys at once."""
        variable, chunk = self.variable, _one_chunk(self._column)
        stamp = [StructField(UPDATED, LongType())] if self._ttl else []
        schema = StructType([*variable.value.fields, *stamp])
        if variable.kind is Kind.VALUE:
            valid = chunk.is_valid()
            rows = iter(_rows(chunk.filter(valid).flatten(), schema))
            self._rows = [next(rows) if there else None for there in valid.to_pylist()]
            return
        self._ends = np.cumsum(self._lengths()).tolist()
        parts = chunk.flatten().flatten()
        if variable.kind is Kind.MAP:
            self._keys = _rows(parts[0].flatten(), variable.key)
            parts = [*parts[1].flatten(), *parts[2:]]
        self._rows = _rows(parts, schema)


def _checked(variable: Variable, what: str, schema: StructType, given: object) -> _Row:
    """What a processor gives as a value or a key, as a tuple.

    Spark goes through what it is given, so for one column a text of one letter is a tuple, too.
    """
    if not isinstance(given, tuple | list | str):
        raise TypeError(
            f"{variable.kind.value} state {variable.name!r} was given the {what} {given!r}, but a "
            f"tuple of {len(schema)} ({', '.join(schema.names)}) is expected"
        )
    if len(given) != len(schema):
        raise ValueError(
            f"{variable.kind.value} state {variable.name!r} was given the {what} {given!r}, but a "
            f"tuple of {len(schema)} ({', '.join(schema.names)}) is expected"
        )
    return tuple(given)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()


def _rows(columns: Sequence[pa.Array], schema: StructType) -> list[_Row]:
    """Columns as rows of the values that Spark has for them."""
    made: list[Sequence[Any]] = []
    for column, field in zip(columns, schema.fields, strict=True):
        if type(field.dataType) in _PLAIN:
            made.append(python_values(pa.chunked_array([column])))
        else:
            table = pa.table([column], names=["v"])
            rows = ArrowTableToRowsConversion.convert(table, StructType().add("v", field.dataType))
            made.append([row[0] for row in rows])
    return list(zip(*made, strict=True))


def _array(variable: Variable, cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Cells as a column."""
    if variable.kind is Kind.VALUE:
        return _structs(variable, [cell for cell in cells if cell is not None], type_, cells)
    lengths = np.array([len(cell or ()) for cell in cells], dtype=np.int64)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    rows = [row for cell in cells if cell for row in cell]
    if variable.kind is Kind.MAP:
        entry = type_.value_type
        keys = _struct(variable, rows, variable.key, entry.field("key").type)
        rows = [row for cell in cells if cell for row in cell.values()]
        width = len(variable.value)
        values = _struct(
            variable, [row[:width] for row in rows], variable.value, entry.field("value").type
        )
        stamps = [pa.array([row[-1] for row in rows], pa.int64())] if variable.ttl_ms else []
        items = pa.StructArray.from_arrays([keys, values, *stamps], fields=list(entry))
    else:
        items = _structs(variable, rows, type_.value_type, rows)
    absent = pa.array(lengths == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=type_, mask=absent)


def _structs(
    variable: Variable, rows: Sequence[_Row], type_: pa.StructType, cells: Sequence[_Row | None]
) -> pa.Array:
    """Rows as structs of values and, if they expire, the time of the update; null for no row."""
    stamp = [StructField(UPDATED, LongType())] if variable.ttl_ms else []
    made = _struct(variable, rows, StructType([*variable.value.fields, *stamp]), type_)
    if len(rows) == len(cells):
        return made
    there = np.array([cell is not None for cell in cells])
    place = np.where(there, np.cumsum(there) - 1, 0)
    return made.take(pa.array(place, mask=~there))


def _struct(
    variable: Variable, rows: Sequence[_Row], schema: StructType, type_: pa.StructType
) -> pa.Array:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        _column(variable, field, values, type_.field(place).type)
        for place, (field, values) in enumerate(zip(schema.fields, columns, strict=True))
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def _column(
    variable: Variable, field: StructField, values: Sequence[Any], type_: pa.DataType
) -> pa.Array:
    if not field.nullable and None in values:
        raise ResultError(
            f"returned a value that does not fit: {variable.kind.value} state {variable.name!r} "
            f"was given null for {field.name!r}, which is not nullable"
        )
    with fitting():
        if {*map(type, values)} <= {_PLAIN.get(type(field.dataType)), type(None)}:
            return pa.array(values, type_)
        what = f"{variable.kind.value} state {variable.name!r}"
        check_whole(what, pa.field(field.name, type_), values)
        schema = StructType().add(field.name, field.dataType)
        made = LocalDataToArrowConversion.convert([(value,) for value in values], schema, False)
        return _one_chunk(made[field.name].cast(type_))
