"""From rows that the savepoint writer was given to a set of a state history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from absflow.columnar.keys import key_groups
from absflow.columnar.packing import gathered
from absflow.columnar.spec import StageSpec
from absflow.storage import state_history

__all__ = ["savepoint_rows"]

_FLUSH_ROWS, _FLUSH_BYTES = 262_144, 64 << 20


def savepoint_rows(
    spec: StageSpec, set_id: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: rows of a state history, out of the stage's key and state columns.

    Args:
        spec: the stage.
        set_id: the set, and the savepoint.
    """
    schema = state_history.history_columns(spec.keys, spec.state)
    keys, groups = spec.keys, spec.key_groups

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered(batches, _FLUSH_ROWS, _FLUSH_BYTES):
            hashed = key_groups([table[f.name].cast(f.type) for f in keys], groups)
            count = table.num_rows
            ids = pa.repeat(pa.scalar(set_id, pa.int64()), count)
            own = {"set_id": ids, "checkpoint_id": ids, "key_group": pa.array(hashed)}
            own["op"] = pa.repeat("upsert", count)
            columns = [own[f.name] if f.name in own else table[f.name].cast(f.type) for f in schema]
            yield from pa.table(columns, schema=schema).to_batches()

    return rows
