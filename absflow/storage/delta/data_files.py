"""Data files of a Delta table that Python writes, and the ``add`` actions that name them.

Delta's own command makes rows of the JVM of what a Python worker gave, one by one, and Parquet of
those. A worker that has the rows as Arrow writes the file itself; what is committed is its name.
Only tables that ask for nothing but rows in files are written so (:func:`is_plain`): every other
feature, property or type is left to Delta (PROTOCOL.md of Delta, "Add File and Remove File",
"Per-file Statistics").
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from absflow.storage.clock import now_ms
from absflow.storage.stores.contract import Store

__all__ = ["CODECS", "PlainTable", "RowGroups", "gathered", "is_plain", "write"]

# Of so many values it is seen whether they come again.
_LOOKED_AT = 1_000
# By their names in Spark, those of Arrow.
CODECS = {
    "snappy": "snappy",
    "zstd": "zstd",
    "gzip": "gzip",
    "none": "none",
    "uncompressed": "none",
}
# What asks nothing of who appends, or is seen to by the transaction.
_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "deletionVectors",
    "inCommitTimestamp",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_PROPERTIES = {
    "delta.appendOnly",
    "delta.checkpointInterval",
    "delta.dataSkippingNumIndexedCols",
    "delta.deletedFileRetentionDuration",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.logRetentionDuration",
}
_LEGACY_WRITER, _FEATURE_WRITER = 2, 7
# A table is gathered up to this size, so that a worker's memory is bounded; more is another file.
_FILE_BYTES = 128 << 20
_INDEXED, _LONGEST = 32, 32
# As Hive has it, and whoever reads folders in the place of the log.
_NULL = "__HIVE_DEFAULT_PARTITION__"
RowGroups = Callable[[pa.Table], Iterable[int]]


def _whole(rows: pa.Table) -> Iterator[int]:
    """In one go, of which Arrow makes row groups of its own size."""
    yield rows.num_rows


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A table whose files a worker may write (:func:`is_plain`), as it was at some version.

    Attributes:
        store: has its files.
        folder: its path there.
        protocol: its ``protocol`` action.
        metadata: its ``metaData`` action.
        schema: its columns.
        codec: of :data:`CODECS`.
        spark: the version of Spark by whose rules the values are.
    """

    store: Store
    folder: str
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    schema: pa.Schema
    codec: str
    spark: str

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        row_groups: RowGroups = _whole,
        add: Callable[[str, pa.Buffer], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Files of these rows; yields the action that adds each. Arguments as of :func:`write`.

        ``add`` takes the path and the bytes of each, if not the store itself.
        """
        add = add or self.store.add

        def put(name: str, data: pa.Buffer) -> None:
            add(f"{self.folder}/{name}", data)

        return write(batches, self.schema, self.metadata, self.codec, self.spark, put, row_groups)


def is_plain(schema: pa.Schema, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether :func:`write` may write files of a table with these columns.

    Args:
        schema: the columns; the table may have others, which are null then.
        protocol: the table's ``protocol`` action.
        metadata: its ``metaData`` action.
    """
    version = protocol["minWriterVersion"]
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    return (
        (version <= _LEGACY_WRITER or (version == _FEATURE_WRITER and features <= _FEATURES))
        and metadata.get("configuration", {}).keys() <= _PROPERTIES
        and _has_no_rules(json.loads(metadata["schemaString"]))
        and all(_is_plain_partition(schema, name) for name in metadata["partitionColumns"])
        and all(_is_plain_type(field.type) for field in schema)
    )


def _has_no_rules(described: Any) -> bool:
    """No column has metadata, such as an invariant, or must have a value."""
    if not isinstance(described, dict):
        return True
    ruled = described.get("metadata") or not described.get("nullable", True)
    parts = [*described.get("fields", ()), described.get("type"), described.get("elementType")]
    parts += [described.get("keyType"), described.get("valueType")]
    return not ruled and all(map(_has_no_rules, parts))


def _is_plain_partition(schema: pa.Schema, name: str) -> bool:
    """Whether the rows have it, and name and values can stand in a path, and in its URI, as is."""
    plain = re.fullmatch(r"\w+", name, re.ASCII) is not None
    return plain and name in schema.names and types.is_int64(schema.field(name).type)


def _is_plain_type(of: pa.DataType) -> bool:
    """Whether Spark reads what pyarrow writes of it."""
    if types.is_nested(of):
        return (types.is_list(of) or types.is_struct(of) or types.is_map(of)) and all(
            _is_plain_type(of.field(place).type) for place in range(of.num_fields)
        )
    return bool(
        types.is_signed_integer(of)
        or types.is_floating(of)
        or types.is_boolean(of)
        or types.is_string(of)
        or types.is_binary(of)
        or types.is_date32(of)
        or types.is_decimal128(of)
        or (types.is_timestamp(of) and of.unit == "us" and of.tz in (None, "UTC"))
    )


def write(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    metadata: Mapping[str, Any],
    codec: str,
    spark: str,
    create: Callable[[str, pa.Buffer], None],
    row_groups: RowGroups = _whole,
) -> Iterator[dict[str, Any]]:
    """Write rows into files, one for each partition of the table that has any.

    Args:
        batches: the rows.
        schema: their columns; of a dictionary, its values.
        metadata: the table's ``metaData`` action.
        codec: of :data:`CODECS`.
        spark: the version of Spark by whose rules the values are.
        create: puts a file in place, given its name from the table's path on.
        row_groups: says how many rows the row groups of a file have, one after the other.

    Yields:
        The action that adds each.
    """
    configuration = metadata.get("configuration", {})
    indexed = int(configuration.get("delta.dataSkippingNumIndexedCols", _INDEXED))
    for table in gathered(batches):
        _check(table.schema, schema)
        for values, part in _partitions(table, metadata["partitionColumns"]):
            named = {name: _NULL if value is None else value for name, value in values.items()}
            folder = "".join(f"{name}={value}/" for name, value in named.items())
            name = f"{folder}part-00000-{uuid.uuid4()}-c000.{codec}.parquet"
            file = pa.BufferOutputStream()
            with pq.ParquetWriter(
                file,
                part.schema,
                # Of a dictionary in memory, a reader would make one again.
                store_schema=False,
                compression=CODECS[codec],
                # What is declared in ns is us to Spark, which refuses a file with ns.
                coerce_timestamps="us",
                use_dictionary=_repetitive(part),
                write_statistics=[f.name for f in part.schema if _has_bounds(f, part.schema)],
                # As Spark's own writer does; whoever reads the file here looks at them.
                write_page_checksum=True,
            ) as writer:
                # Without it a reader takes old dates for those of the calendar of Spark 2.
                writer.add_key_value_metadata({"org.apache.spark.version": spark})
                for begin, end in pairwise(accumulate(row_groups(part), initial=0)):
                    writer.write_table(part.slice(begin, end - begin))
            create(name, data := file.getvalue())
            columns = part.column_names if indexed < 0 else part.column_names[:indexed]
            add = {
                "path": name,
                "partitionValues": values,
                "size": data.size,
                "modificationTime": now_ms(),
                "dataChange": True,
                "stats": json.dumps(_statistics(part.select(columns), part.num_rows)),
            }
            yield {"add": add}


def _check(seen: pa.Schema, due: pa.Schema) -> None:
    values = [f.with_type(f.type.value_type) if types.is_dictionary(f.type) else f for f in seen]
    if values != [*due]:
        raise pa.ArrowInvalid(f"rows have the columns {seen}, but the table has {due}")


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables, each of a size for one file; none without a row."""
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            found.append(batch)
            size += batch.nbytes
        if size >= _FILE_BYTES:
            yield pa.Table.from_batches(found)
            found, size = [], 0
    if found:
        yield pa.Table.from_batches(found)


def _partitions(
    table: pa.Table, by: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not by:
        yield {}, table
        return
    there = table.group_by(list(by)).aggregate([]).to_pylist()
    for values in there:
        equal = (
            table[name].is_null() if value is None else pc.equal(table[name], value)
            for name, value in values.items()
        )
        chosen = table if len(there) == 1 else table.filter(reduce(pc.and_, equal))
        texts = {name: None if value is None else str(value) for name, value in values.items()}
        yield texts, chosen.drop_columns(list(by))


def _has_bounds(of: pa.Field, beside: pa.Schema) -> bool:
    """Whether Parquet's own statistics of a column may be written.

    Arrow leaves NaN out of them, which is the greatest value to Spark: it would look for what is
    greater than 1 in no file of 0.5 and NaN. And to it `a.b` is the part `b` of a struct `a`, too.
    Of a dictionary each value would be compared, and all row groups have its few words.
    """
    structs = (f"{field.name}." for field in beside if types.is_nested(field.type))
    return not (
        types.is_nested(of.type)
        or types.is_floating(of.type)
        or types.is_dictionary(of.type)
        or any(of.name.startswith(struct) for struct in structs)
    )


def _repetitive(rows: pa.Table) -> list[str] | bool:
    """The columns that a dictionary makes smaller, by their first values.

    Of a column whose values are all different, as a key's, it takes twice the time of the rest of
    the file and is in the way of the codec. Where there are nested columns, whose parts have names
    of their own, each has one, as Spark's writer has it.
    """
    if any(types.is_nested(field.type) for field in rows.schema):
        return True
    first = rows.slice(0, _LOOKED_AT)
    most = first.num_rows // 2
    return [n for n in first.column_names if len(pc.unique(first[n])) <= most]


def _statistics(columns: pa.Table, rows: int) -> dict[str, Any]:
    """Of nested columns nothing is said; nor of what JSON has no number for."""
    flat = [name for name in columns.column_names if not types.is_nested(columns[name].type)]
    least, most = {}, {}
    for name in flat:
        bounds = _bounds(columns[name])
        if bounds is not None:
            least[name], most[name] = bounds
    nulls = {name: columns[name].null_count for name in flat}
    return {"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """The least and greatest value as Delta says them; None if that cannot be said."""
    if types.is_dictionary(column.type):
        column = pc.unique(column).dictionary_decode()
    of = column.type
    if types.is_boolean(of) or types.is_binary(of) or types.is_decimal(of):
        return None
    if types.is_floating(of) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        return None  # JSON has no number for it; and NaN is the greatest to Spark, not to Arrow
    try:
        found = pc.min_max(column).as_py()
        return None if found["min"] is None else _as_stored(of, found["min"], found["max"])
    except (OverflowError, ValueError):
        return None  # a time that Python has no date for


def _as_stored(of: pa.DataType, least: Any, most: Any) -> tuple[Any, Any] | None:
    if isinstance(least, str):
        return (least, most) if max(len(least), len(most)) <= _LONGEST else None
    if isinstance(least, datetime):
        # A reader takes them for whole milliseconds.
        zone = "" if of.tz is None else "Z"
        return _millis(least) + zone, _millis(most + timedelta(microseconds=999)) + zone
    if isinstance(least, date):
        return least.isoformat(), most.isoformat()
    return least, most


def _millis(time_: datetime) -> str:
    return time_.replace(tzinfo=None).isoformat(timespec="milliseconds")
