"""From the rows of an input to DATA pages, before the shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from absflow.columnar.event_time import range_heads
from absflow.columnar.packing import Packer
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.protocol import event_time
from absflow.spark.worker.stage_call import freeze_loaded_modules, this_task, time_property

__all__ = ["pack_function", "packer_for"]


def pack_function(
    spec: StageSpec, given: InputSpec, page_bytes: int, ranges: int = 1
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the rows of an input as DATA pages for the key groups of a stage."""
    packer = packer_for(spec, given, page_bytes, ranges)
    property_ = time_property(spec.name)

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        task, before = this_task(), None
        if given.timed:
            text = task.getLocalProperty(property_)
            # Rows that were in flight at a checkpoint are packed for a restore, outside of batches.
            before = event_time.from_json(text) if text else None
        return packer.pack(batches, task.partitionId(), before)

    return pack


def packer_for(spec: StageSpec, given: InputSpec, page_bytes: int, ranges: int) -> Packer:
    """What packs the rows of an input for a stage of so many key-group ranges."""
    return Packer(
        input=given.name,
        schema=given.schema,
        keys=tuple(spec.keys.names),
        key_groups=spec.key_groups,
        root=given.root,
        page_bytes=page_bytes,
        event_time=given.event_time,
        timed=given.timed,
        heads=tuple(range_heads(spec.key_groups, ranges)),
    )
