"""Sets of a state history made one by the workers, in Arrow from file to file.

Spark would make rows of the JVM of them, shuffle and sort these, which takes many times as long
(docs/internals/decisions, 122).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from absflow.columnar.expiry import expired
from absflow.columnar.merging import last_changes, may_have, of_key_groups, of_share
from absflow.protocol.lineage import Compacted, begin_of, end_of
from absflow.spark.worker.set_rows import SetFiles
from absflow.storage.delta import data_rows
from absflow.storage.delta.log import file_of
from absflow.storage.delta.transactions import ArrowRows
from absflow.storage.files import Files
from absflow.storage.session import checks_pages

__all__ = ["SHARE_BYTES", "merged_rows"]

# A task has the rows of keys that lie in files of so many bytes, a few times as many in memory.
SHARE_BYTES = 32 << 20


def merged_rows(
    spark: SparkSession,
    files: Files,
    path: str,
    key: Sequence[str],
    fact: Compacted,
    found: SetFiles,
    expired_upto: int | None,
    groups: int,
) -> ArrowRows:
    """The rows of a compacted set; nothing is read yet.

    A task makes a share of the keys. Where all rows are of one number of key groups, it is some of
    these, and the task reads the files that have them: workers write key group after key group.

    Args:
        spark: the session.
        files: reaches the table.
        path: the state history.
        key: its key columns.
        fact: which sets are to be one.
        found: their files.
        expired_upto: as of :func:`~absflow.spark.control.compaction.write_compacted_set`.
        groups: how many key groups all rows are of; 0 if of several numbers.
    """
    store, folder = files.for_workers(path)
    ordered = [
        (file_of(folder, file), found.groups.get(file))
        for set_id in fact.replaces
        for file in sorted(name for name, (of, _) in found.sizes.items() if of == set_id)
    ]
    shares = _Shares.of(key, found.bytes, groups)
    inside = pa.schema([field for field in found.schema if field.name != "set_id"])
    # With older sets below, a deletion still has something to hide.
    whole = begin_of(fact.set_id) == 0
    ids = {"set_id": fact.set_id, "checkpoint_id": end_of(fact.set_id)}
    schema, check = found.schema, checks_pages(spark)

    def share_of(number: int) -> pa.Table:
        parts = [
            shares.rows_of(number, batch)
            for file, bounds in ordered
            if shares.reads(number, bounds)
            for batch in data_rows.rows_of(store, file, inside, check=check)
        ]
        rows = last_changes(pa.Table.from_batches(parts, inside), key)
        if whole:
            rows = rows.filter(pc.equal(rows["op"], "upsert"))
        gone = expired(rows, expired_upto)
        return rows if gone is None else rows.filter(pa.array(~gone))

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            rows = share_of(number)
            own = {name: pa.array(np.full(rows.num_rows, value)) for name, value in ids.items()}
            columns = [own[name] if name in own else rows[name] for name in schema.names]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    numbers = spark.range(0, shares.count, 1, shares.count).toDF("number")
    return ArrowRows(numbers, make, schema)


@dataclass(frozen=True, slots=True)
class _Shares:
    """How the keys are shared out: by key groups, or by hash if ``groups`` is 0."""

    key: Sequence[str]
    count: int
    groups: int

    @classmethod
    def of(cls, key: Sequence[str], size: int, groups: int) -> _Shares:
        """Of files that have so many bytes together."""
        count = max(1, -(-size // SHARE_BYTES))
        return cls(key, min(count, groups) if groups else count, groups)

    def reads(self, share: int, bounds: tuple[int, int] | None) -> bool:
        """Whether the task of a share reads a file with these key groups."""
        return not self.groups or may_have(bounds, share, self.count, self.groups)

    def rows_of(self, share: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a share."""
        if self.groups:
            return of_key_groups(batch, self.key, share, self.count, self.groups)
        return of_share(batch, self.key, share, self.count)
