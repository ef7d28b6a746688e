"""Sets of a state history made one by the workers, in Arrow from file to file.

Spark would make rows of the JVM of them, shuffle and sort these, which takes many times as long
(docs/internals/decisions, 122).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from absflow.columnar.expiry import expired
from absflow.columnar.merging import Shares, last_changes
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
    shares = Shares.at_most(max(1, -(-found.bytes // SHARE_BYTES)), key, groups)
    inside = pa.schema([field for field in found.schema if field.name != "set_id"])
    # With older sets below, a deletion still has something to hide.
    whole = begin_of(fact.set_id) == 0
    ids = {"set_id": fact.set_id, "checkpoint_id": end_of(fact.set_id)}
    schema, check = found.schema, checks_pages(spark)

    def share_of(number: int) -> pa.Table:
        parts = [
            shares.of(number, batch)
            for file, bounds in ordered
            if shares.may_have(number, bounds)
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
