"""A flow of Bytewax that is measured: a state for each key, and rows that go nowhere.

Bytewax lets no row through while it writes the changed keys to its store, which it does at the end
of each epoch. So a run goes from the end of an epoch to that of another.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from _periods import CHECKPOINT_S, RUN_S

BATCH = 5_000
# Some items, and whether enough have come before them.
Batches = Iterator["tuple[list[tuple[str, Any]], bool]"]
# Epochs of each run; and before the first and behind the last, as what is on its way comes later.
EPOCHS, SPARE = RUN_S // CHECKPOINT_S, 2


@dataclass
class Seen:
    """When it was, on the clock of all processes.

    Attributes:
        rows: when rows came to the sink, and how many.
        epochs: when each epoch ended.
        warm: when enough rows had been read.
    """

    rows: list[tuple[float, int]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    warm: float | None = None


def run(
    parts: Mapping[str, Callable[[], Batches]],
    fold: Callable[[Any, Any], tuple[Any, Any]],
    runs: int,
    recovery: str,
    addresses: Sequence[str] = (),
    number: int = 0,
) -> Seen:
    """Run a worker until so many runs are over."""
    import bytewax.operators as op
    from bytewax._bytewax import cluster_main
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig

    seen = Seen()

    class Part(StatefulSourcePartition):
        def __init__(self, batches: Batches) -> None:
            self.batches, self.place = batches, 0
            self.until: float = float("inf")

        def next_batch(self) -> list[tuple[str, Any]]:
            items, warm = next(self.batches)
            if warm and seen.warm is None:
                seen.warm = time.monotonic()
                self.until = len(seen.epochs) + EPOCHS * runs + SPARE
            if len(seen.epochs) >= self.until:
                raise StopIteration
            self.place += 1
            return items

        def snapshot(self) -> int:
            seen.epochs.append(time.monotonic())
            return self.place

    class Given(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return [*parts]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part(parts[for_part]())

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            seen.rows.append((time.monotonic(), len(items)))

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    flow = Dataflow("measured")
    rows = op.input("rows", flow, Given())
    op.output("out", op.stateful_map("fold", rows, fold), Sink())
    cluster_main(
        flow,
        [*addresses],
        number,
        epoch_interval=timedelta(seconds=CHECKPOINT_S),
        recovery_config=RecoveryConfig(recovery),
        worker_count_per_proc=1,
    )
    return seen
