"""A folder of Parquet, JSON or CSV files; those of a checkpoint become visible by one manifest."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.destinations.manifests import Manifest, ManifestFolder, ManifestsRestore
from absflow.errors import GraphError
from absflow.sinks import SinkCut, SinkPublication, SinkRestore, SinkWrite
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.stage_call import freeze_loaded_modules
from absflow.storage.delta.data_files import gathered
from absflow.storage.files import Files
from absflow.storage.sql import quoted
from absflow.storage.stores.contract import Store

__all__ = ["FileSink"]

_FORMATS = ("parquet", "json", "csv")
_WRITTEN = pa.schema([pa.field("path", pa.string())])


@dataclass(frozen=True)
class FileSink:
    """Writes the rows of each checkpoint into new files of a folder, each exactly once.

    A restore to an older checkpoint withdraws the manifests of those behind it, and gives back what
    was withdrawn before, if the job goes on from there again. No file of theirs is deleted.

    Attributes:
        path: the folder, on any storage that absflow writes.
        format: ``parquet``, ``json`` (an object for each line, as Spark's ``to_json`` has it) or
            ``csv`` (with a line of names).
        files: so many tasks write a checkpoint, each a file, or several of about 128 MB.
    """

    path: str
    format: str = "parquet"
    files: int = 1
    reads_all: ClassVar[bool] = True
    on_checkpoint_only: ClassVar[bool] = True

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse a format that there is not, or that does not take a column.

        Raises:
            GraphError: naming it.
        """
        if self.format not in _FORMATS:
            raise GraphError(
                f"sink {name!r}: format is {self.format!r}, must be one of {list(_FORMATS)}"
            )
        if self.files < 1:
            raise GraphError(f"sink {name!r}: files is {self.files}, must be 1 at least")
        for column in schema if self.format == "csv" else ():
            if types.is_nested(column.type) or types.is_binary(column.type):
                raise GraphError(
                    f"sink {name!r}: column {column.name!r} is {column.type}, which CSV has no "
                    "form of; write Parquet or JSON, or emit a text"
                )

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """See that the folder can be written, and is no Delta table.

        Raises:
            GraphError: it is one.
            StorageError: the storage refuses.
        """
        files = Files(spark)
        folder = files.qualified(self.path)
        if files.exists(f"{folder}/_delta_log"):
            raise GraphError(f"{folder!r} is a Delta table; use absflow.DeltaSink, or a new folder")
        files.check_writable(folder)

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Write a checkpoint's files, then its manifest, unless that is there.

        Raises:
            GraphError: it is no checkpoint that is written.
        """
        if isinstance(made, SinkWrite):
            raise GraphError(f"sink {made.sink!r}: a FileSink publishes with checkpoints")
        there = self._there(rows.sparkSession)
        name = Manifest(made.job_id, made.checkpoint_id, made.taken_in, made.sink)
        if not there.has(name):
            there.publish(name, self._write_files(rows, there.store, there.files(name)))
        there.tidy(name)

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """The folder's qualified path; it has no versions."""
        return Files(spark).qualified(self.path), None

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """Find the manifests that go, and those that come back."""
        return self._there(spark).plan(cut)

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Withdraw manifests, and give others back."""
        if isinstance(planned, ManifestsRestore):  # else the sink is new
            self._there(spark).carry_out(planned)

    def _there(self, spark: SparkSession) -> ManifestFolder:
        files = Files(spark)
        return ManifestFolder(*files.for_workers(files.qualified(self.path)))

    def _write_files(self, rows: DataFrame, store: Store, folder: str) -> list[str]:
        """Write files of these rows by the executors; their paths."""
        if self.format == "json":
            columns = F.struct(*(F.col(quoted(name)) for name in rows.columns))
            rows = rows.select(F.to_json(columns, {"ignoreNullFields": "false"}).alias("line"))
        function = _files_function(store, folder, self.format)
        reached = Files(rows.sparkSession).reached(rows.coalesce(self.files), folder)
        written = map_in_arrow(reached, function, from_arrow_schema(_WRITTEN)).collect()
        return [row.path for row in written]


def _files_function(
    store: Store, folder: str, suffix: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: writes files of a partition, and says their paths."""

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        for table in gathered(batches):
            path = f"{folder}/{uuid.uuid4().hex}.{suffix}"
            store.add(path, _encoded(table, suffix))
            yield pa.RecordBatch.from_arrays([pa.array([path])], schema=_WRITTEN)

    return write_partition


def _encoded(table: pa.Table, suffix: str) -> pa.Buffer:
    """The bytes of a file."""
    file = pa.BufferOutputStream()
    if suffix == "parquet":
        pq.write_table(table, file, compression="zstd", coerce_timestamps="us")
    elif suffix == "csv":
        csv.write_csv(table, file)
    else:
        for line in table["line"]:
            file.write(line.as_buffer())
            file.write(b"\n")
    return file.getvalue()
