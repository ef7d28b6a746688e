"""From the rows of an input to DATA pages, before the shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from absflow.columnar.packing import Packer
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.spark.worker.stage_call import freeze_loaded_modules, this_task

__all__ = ["pack_function", "packer_for"]


def pack_function(
    spec: StageSpec, given: InputSpec, page_bytes: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the rows of an input as DATA pages for the key groups of a stage."""
    packer = packer_for(spec, given, page_bytes)

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        return packer.pack(batches, this_task().partitionId())

    return pack


def packer_for(spec: StageSpec, given: InputSpec, page_bytes: int) -> Packer:
    """What packs the rows of an input for a stage."""
    return Packer(
        input=given.name,
        schema=given.schema,
        keys=tuple(spec.keys.names),
        key_groups=spec.key_groups,
        root=given.root,
        page_bytes=page_bytes,
    )
