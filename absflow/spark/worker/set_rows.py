"""Rows of a state history, read by the workers as Arrow.

Spark would read the files as well, but makes rows of the JVM of them and Arrow of those, for the
Python worker that asked; of 10 million keys with timers that takes ten times as long as all else
(docs/internals/decisions, 104). So a worker opens the files itself. Which they are is what the
table's log says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from absflow.spark.worker.any_names import ArrowFunction, map_in_arrow
from absflow.storage.delta import data_rows, tables
from absflow.storage.delta.log import file_of
from absflow.storage.delta.newest import columns, described, files_of, is_encrypted, newest
from absflow.storage.files import Files
from absflow.storage.session import checks_pages
from absflow.storage.stores.contract import Store

__all__ = ["SetFiles", "SetRows", "set_files"]

# A task reads about so many bytes, if there is work for all cores then.
_TASK_BYTES = 128 << 20
_LEFT_OUT = ("checkpoint_id", "key_group")
# Of readers of a table: the first has no features, the other names those that it has.
_VERSIONS = (1, 3)
# What asks nothing of who reads the files that a version names.
_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


@dataclass(frozen=True, slots=True)
class SetFiles:
    """The files of some sets of a state history, as one version of it names them.

    Attributes:
        schema: the columns of the table.
        sizes: of each file, by its path in the table, its set and its bytes.
        groups: the least and the greatest key group in it, of each file of which the log says so.
    """

    schema: pa.Schema
    sizes: Mapping[str, tuple[int, int]]
    groups: Mapping[str, tuple[int, int]]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(size for _, size in self.sizes.values())


def set_files(spark: SparkSession, path: str, sets: Iterable[int]) -> SetFiles | None:
    """The files of these sets in the table's newest version; None if Spark alone can read it.

    Raises:
        StorageError: the table cannot be read.
    """
    if is_encrypted(spark):
        return None
    with tables.reading(path), newest(spark, path) as version:
        protocol, metadata = described(version)
        named = set(protocol.get("readerFeatures", ())) <= _FEATURES
        if protocol["minReaderVersion"] not in _VERSIONS or not named:
            return None
        set_id = F.col("partitionValues")["set_id"].cast("long")
        mine = files_of(spark, version).where(set_id.isin(*sets))
        rows = mine.select("path", set_id.alias("set_id"), "size", "stats").collect()
        schema = to_arrow_schema(columns(metadata), timezone="UTC")
    bounds = {row["path"]: _bounds(row["stats"]) for row in rows}
    return SetFiles(
        schema,
        {row["path"]: (row["set_id"], row["size"]) for row in rows},
        {path: found for path, found in bounds.items() if found is not None},
    )


def _bounds(stats: str | None) -> tuple[int, int] | None:
    """The least and the greatest key group, if each row has one."""
    said = json.loads(stats or "{}")
    of = "key_group"
    if said.get("nullCount", {}).get(of) != 0 or of not in said.get("minValues", {}):
        return None
    return int(said["minValues"][of]), int(said["maxValues"][of])


class SetRows:
    """The rows of some sets of a state history as it is now, for a function of Arrow."""

    def __init__(self, spark: SparkSession, files: Files, path: str, sets: Sequence[int]) -> None:
        """Of the table at ``path``; nothing is read yet."""
        self._spark = spark
        self._files = files
        self._path = path
        self._sets = sets

    def frame(self) -> DataFrame:
        """They as a DataFrame.

        Raises:
            StorageError: the table cannot be read.
        """
        rows = tables.read(self._spark, self._path).where(F.col("set_id").isin(*self._sets))
        return rows.drop(*_LEFT_OUT)

    def map(self, function: ArrowFunction, made: StructType, *paths: str) -> DataFrame:
        """``mapInArrow`` over them; a file that cannot be read is named in the error.

        Args:
            function: gets all columns but ``checkpoint_id`` and ``key_group``, in any order.
            made: the columns that it makes.
            paths: where the function goes.

        Raises:
            StorageError: the table cannot be read.
        """
        store, folder = self._files.for_workers(self._path)
        found = set_files(self._spark, self._path, self._sets)
        if found is None:
            return map_in_arrow(self._files.reached(self.frame(), *paths), function, made)
        schema = pa.schema([field for field in found.schema if field.name not in _LEFT_OUT])
        found_at = {file_of(folder, path): of for path, of in found.sizes.items()}
        parts = _parts(found_at, self._spark.sparkContext.defaultParallelism)
        read = _reader(store, parts, schema, function, check=checks_pages(self._spark))
        numbers = self._spark.range(0, len(parts), 1, len(parts)).toDF("number")
        return map_in_arrow(self._files.reached(numbers, folder, *paths), read, made)


def _reader(
    store: Store,
    parts: Sequence[Sequence[tuple[str, int]]],
    schema: pa.Schema,
    function: ArrowFunction,
    *,
    check: bool,
) -> ArrowFunction:
    """What a task does that gets its number: the rows of its files, through the function."""
    inside = pa.schema([field for field in schema if field.name != "set_id"])

    def rows(numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            for path, set_id in parts[number]:
                for batch in data_rows.rows_of(store, path, inside, check=check):
                    of = pa.array(np.full(batch.num_rows, set_id, dtype=np.int64))
                    yield batch.append_column("set_id", of)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        yield from function(rows(numbers))

    return read


def _parts(paths: Mapping[str, tuple[int, int]], cores: int) -> list[list[tuple[str, int]]]:
    """The files and their sets by task, of about the same size; one task at least."""
    whole = sum(size for _, size in paths.values())
    count = max(1, min(len(paths), max(cores, -(-whole // _TASK_BYTES))))
    parts: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for path, (set_id, size) in sorted(paths.items(), key=lambda each: (-each[1][1], each[0])):
        least = sizes.index(min(sizes))
        parts[least].append((path, set_id))
        sizes[least] += size
    return parts
