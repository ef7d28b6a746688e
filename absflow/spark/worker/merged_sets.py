"""Sets of a state history made one by the workers, in Arrow from file to file.

Spark would make rows of the JVM of them, shuffle and sort these, which takes many times as long
(docs/internals/decisions, 122).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from absflow.columnar.digest import added, digest_of, is_delete
from absflow.columnar.expiry import expired
from absflow.columnar.keys import Hashes
from absflow.columnar.merging import HashedRows, Shares, last_of_each
from absflow.columnar.pieces import where
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted, begin_of, end_of
from absflow.spark.worker.set_rows import SetFiles
from absflow.storage.delta import data_rows
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.delta.data_rows import Within
from absflow.storage.delta.log import file_of
from absflow.storage.delta.transactions import written_by_workers
from absflow.storage.files import Files
from absflow.storage.session import checks_pages
from absflow.storage.state_history import in_memory, row_groups

__all__ = ["TASK_BYTES", "MergedSet", "merge_sets"]

# A task has at most the rows of keys that lie in files of so many bytes, a few times as many in
# memory.
TASK_BYTES = 32 << 20
# Where a share reads little but its own rows, it is smaller: a task takes some tenths of a second,
# and then a micro-batch that waits for a core has it.
SHARE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class MergedSet:
    """A compacted set in files that no version of its table names yet.

    Attributes:
        adds: the actions that add them.
        digests: of the sets that were read, and of the one that was written, by set.
    """

    adds: list[dict[str, Any]]
    digests: Mapping[int, SetDigest]


def merge_sets(
    spark: SparkSession,
    files: Files,
    table: PlainTable,
    key: Sequence[str],
    fact: Compacted,
    found: SetFiles,
    expired_upto: int | None,
    groups: int,
) -> MergedSet:
    """Write the files of a compacted set, by a Spark job that reads each row once.

    A task makes a share of the keys. Where all rows are of one number of key groups, it is some of
    these, and the task reads the files that have them: workers write key group after key group.
    Each row is in one share, so what the shares say of a set adds up to its digest.

    Args:
        spark: the session.
        files: reaches the table.
        table: the state history.
        key: its key columns.
        fact: which sets are to be one.
        found: their files.
        expired_upto: as of :func:`~absflow.spark.control.compaction.write_compacted_set`.
        groups: how many key groups all rows are of; 0 if of several numbers.
    """
    store, folder = table.store, table.folder
    ordered = [
        (file_of(folder, file), found.groups.get(file), set_id, found.sizes[file][1])
        for set_id in fact.replaces
        for file in sorted(name for name, (of, _) in found.sizes.items() if of == set_id)
    ]
    share = SHARE_BYTES if groups else TASK_BYTES
    shares = Shares.at_most(max(1, -(-found.bytes // share)), key, groups)
    merge = _Merge(fact, found.schema, key, expired_upto)
    inside, check = merge.inside, checks_pages(spark)

    def written(number: int) -> Iterator[dict[str, Any] | str]:
        parts, digests = [], []
        within = Within("key_group", *shares.said(number)) if groups else None
        for file, bounds, set_id, size in ordered:
            if shares.may_have(number, bounds):
                rows = data_rows.rows_of(store, file, inside, within, check=check, size=size)
                for batch in rows:
                    parts.append(shares.of(number, batch))
                    digests.append(digest_of(set_id, parts[-1].hashes))
        batches, hashes = merge.rows(parts)
        yield from table.write(batches, row_groups)
        digests.append(digest_of(fact.set_id, hashes))
        for digest in added(digests).values():
            yield json.dumps(astuple(digest))

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any] | str]:
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            yield from written(number)

    numbers = spark.range(0, shares.count, 1, shares.count).toDF("number")
    adds, said = written_by_workers(numbers, files, table, write)
    return MergedSet(adds, added(SetDigest(*json.loads(text)) for text in said))


@dataclass(frozen=True, slots=True)
class _Merge:
    """What rows of several sets come to in the one that takes their place."""

    fact: Compacted
    schema: pa.Schema
    key: Sequence[str]
    expired_upto: int | None

    @property
    def inside(self) -> pa.Schema:
        """What is read; the ids will be others."""
        return in_memory(pa.schema([f for f in self.schema if f.name not in self._ids]))

    @property
    def _ids(self) -> Mapping[str, int]:
        return {"set_id": self.fact.set_id, "checkpoint_id": end_of(self.fact.set_id)}

    def rows(self, parts: Sequence[HashedRows]) -> tuple[list[pa.RecordBatch], Hashes]:
        """The rows that are left of a share, and their hashes.

        Args:
            parts: its rows, those of the older sets first.
        """
        rows = pa.Table.from_batches([part.rows for part in parts], self.inside)
        keys, hashes = (
            np.concatenate([np.empty(0, dtype=np.uint64), *found])
            for found in ([part.keys for part in parts], [part.hashes for part in parts])
        )
        stays = last_of_each(rows.select(list(self.key)), keys)
        # With older sets below, a deletion still has something to hide.
        if begin_of(self.fact.set_id) == 0:
            stays &= ~is_delete(rows["op"])
        gone = expired(rows, self.expired_upto)
        if gone is not None:
            stays &= ~gone
        return [self._in_set(part) for part in where(rows, stays)], hashes[stays]

    def _in_set(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        own = {name: pa.array(np.full(len(rows), value)) for name, value in self._ids.items()}
        columns = [own[name] if name in own else rows[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=in_memory(self.schema))
