"""A stage whose source has event time, all of its key groups through their micro-batches."""

import pyarrow as pa
from stage_cases import KEYS, run

from absflow.columnar.event_time import TimeReport, watermark_payload
from absflow.columnar.packing import Packer
from absflow.columnar.pages import TIME_TYPE, Page, PageKind, decode, pages_of
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.stored import in_range, load
from absflow.protocol import alignment
from absflow.protocol.watermarks import WatermarkStatus

__all__ = ["GROUPS", "KEYS", "ROWS", "TimedStage"]

ROWS = pa.schema([("k", pa.string()), ("ts", TIME_TYPE), ("v", pa.int64())])
GROUPS = 4


class TimedStage:
    """All key groups of a stage as one range, through its micro-batches."""

    def __init__(self, spec, files=None):
        self.spec, self.stored, self.number, self.files = spec, b"", 0, files
        self.time, self.alignment = spec.begin_time(), alignment.start(["rows"])

    def batch(self, rows=(), barrier=0, now_ms=0, ended=False, base=0):
        """Run one; the rows (key, time, value) come in this order. What it emits.

        With a barrier, at which the source may have ended; ``base`` is what its snapshot follows.
        """
        given = self.spec.input("rows")
        packer = Packer("rows", ROWS, ("k",), GROUPS, True, event_time=given.event_time, timed=True)
        columns = list(zip(*rows, strict=True)) or [()] * 3
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
        batches = [pa.RecordBatch.from_arrays(arrays, schema=ROWS)] if rows else []
        pages = [p for made in packer.pack(batches, 0, self.time) for p in pages_of(made)]
        if barrier:
            said = watermark_payload(None, WatermarkStatus.ENDED) if ended else b""
            ids = range(GROUPS)
            pages += [
                Page(g, PageKind.BARRIER, "rows", barrier, base, base, payload=said) for g in ids
            ]
        batch = Batch(self.number, now_ms, self.alignment, self.time)
        out, self.stored = run(run_range(self.spec, batch, pages, self.stored, self.files))
        self.number += 1
        reports = [p for p in out if p.kind is PageKind.REPORT and b'"alignment"' not in p.payload]
        for page in reports:
            self.time = TimeReport.from_payload(page.payload.decode()).time
        if barrier:
            events = [alignment.BarrierArrived("rows", alignment.Barrier(barrier))]
            self.alignment, _ = alignment.run(self.alignment, events)
        return out

    def fired(self, *args, **kwargs):
        """What the batch emits, as (key, time, name, n)."""
        out = self.batch(*args, **kwargs)
        rows = [decode(p.payload, self.spec.output, "") for p in out if p.kind is PageKind.DATA]
        return sorted(tuple(row.values()) for batch in rows for row in batch.to_pylist())

    def state(self):
        kept = in_range(self.stored, "") if self.stored else {}
        tables = [
            load(k, KEYS, self.spec.state, self.files, "").flat().table for k in kept.values()
        ]
        return {row["k"]: row for t in tables for row in t.to_pylist() if not row["_deleted"]}
