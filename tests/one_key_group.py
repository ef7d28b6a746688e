"""A stage of one key group, through its micro-batches, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from absflow.columnar.event_time import RootTime, TimeReport
from absflow.columnar.packing import Packer
from absflow.columnar.pages import TIME_TYPE, PageKind, decode, pages_of
from absflow.columnar.piece_files import INLINE
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.stored import in_range, load
from absflow.columnar.timers import timer_fields
from absflow.protocol import alignment

ROWS = pa.schema([("k", pa.string()), ("ts", TIME_TYPE), ("v", pa.int64())])
KEYS = pa.schema([("k", pa.string())])


class OneKeyGroup:
    """The stage, whose rows are of a source with the columns :data:`ROWS`."""

    def __init__(
        self,
        process: Callable[..., Any],
        on_timer: Callable[..., Any] | None,
        *,
        state: pa.Schema,
        output: pa.Schema,
        timed: bool = False,
    ) -> None:
        """Before its first micro-batch; ``timed`` if ``ts`` is its rows' event time."""
        time = RootTime("ts", 0) if timed else None
        given = InputSpec("rows", ROWS, True, event_time=time, timed=timed)
        timers = timer_fields() if on_timer is not None else []
        state = pa.schema([*state, *timers])
        self.spec = StageSpec("s", (given,), KEYS, state, output, {"rows": process}, 1, on_timer)
        self.time, self.stored, self.number = self.spec.begin_time(), b"", 0

    def batch(self, *rows: tuple[str, int, int], now_ms: int = 0) -> list[tuple[Any, ...]]:
        """Run one of rows (key, ms, value); what it emits."""
        given = self.spec.input("rows")
        packer = Packer(
            "rows", ROWS, ("k",), 1, True, event_time=given.event_time, timed=given.timed
        )
        table = pa.table(
            {
                "k": pa.array([k for k, _, _ in rows], pa.string()),
                "ts": pa.array([ms * 1_000 for _, ms, _ in rows], pa.int64()).cast(TIME_TYPE),
                "v": pa.array([v for _, _, v in rows], pa.int64()),
            }
        )
        batches = table.to_batches() if rows else []
        pages = [p for made in packer.pack(batches, 0, self.time) for p in pages_of(made)]
        batch = Batch(self.number, now_ms, alignment.start(["rows"]), self.time)
        work, out = run_range(self.spec, batch, pages, self.stored), []
        while True:
            try:
                out.append(next(work))
            except StopIteration as end:
                self.stored = end.value
                break
        self.number += 1
        for page in out:
            if page.kind is PageKind.REPORT:
                self.time = TimeReport.from_payload(page.payload.decode()).time
        data = [decode(p.payload, self.spec.output, "") for p in out if p.kind is PageKind.DATA]
        return [tuple(row.values()) for table in data for row in table.to_pylist()]

    def rows_of_state(self) -> list[dict[str, Any]]:
        """Of each key that is kept its columns."""
        kept = in_range(self.stored, "") if self.stored else {}
        tables = [load(k, KEYS, self.spec.state, INLINE, "").flat().table for k in kept.values()]
        return [row for t in tables for row in t.to_pylist() if not row["_deleted"]]
