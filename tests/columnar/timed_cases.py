"""A stage whose source has event time, all of its key groups through their micro-batches."""

import pyarrow as pa
from stage_cases import KEYS, run

from absflow.columnar.event_time import (
    TimeReport,
    of_all_ranges,
    range_heads,
    watermark_payload,
)
from absflow.columnar.packing import Packer
from absflow.columnar.pages import TIME_TYPE, Page, PageKind, decode, pages_of
from absflow.columnar.piece_files import INLINE
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.stored import in_range, load
from absflow.protocol import alignment
from absflow.protocol.watermarks import WatermarkStatus

__all__ = ["GROUPS", "KEYS", "ROWS", "TimedStage"]

ROWS = pa.schema([("k", pa.string()), ("ts", TIME_TYPE), ("v", pa.int64())])
GROUPS = 4


class TimedStage:
    """All key groups of a stage as one range or several, through its micro-batches."""

    def __init__(self, spec, files=INLINE, ranges=1):
        self.spec, self.number, self.files, self.groups = spec, 0, files, spec.key_groups
        self.heads = range_heads(self.groups, ranges)
        self.kept = [b""] * ranges
        self.time, self.alignment = spec.begin_time(), alignment.start(["rows"])
        self.at, self.left, self.asked = {}, False, False

    @property
    def stored(self):
        """What the only range has kept."""
        (kept,) = self.kept
        return kept

    def batch(self, rows=(), barrier=0, now_ms=0, ended=False, base=0, woken=False, silent=False):
        """Run one; the rows (key, time, value) come in this order. What it emits.

        With a barrier, at which the source may have ended; ``base`` is what its snapshot follows.
        If it is woken, every range runs, though nothing has come for it. Rows that are silent say
        nothing of event time, as those of a channel may, so other ranges do not run for them.
        """
        given = self.spec.input("rows")
        packer = Packer(
            "rows", ROWS, ("k",), self.groups, True,
            event_time=given.event_time, timed=True, heads=tuple(self.heads),
        )  # fmt: skip
        columns = list(zip(*rows, strict=True)) or [()] * 3
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
        batches = [pa.RecordBatch.from_arrays(arrays, schema=ROWS)] if rows else []
        pages = [p for made in packer.pack(batches, 0, self.time) for p in pages_of(made)]
        if barrier:
            said = watermark_payload(None, WatermarkStatus.ENDED) if ended else b""
            ids = range(self.groups)
            pages += [
                Page(g, PageKind.BARRIER, "rows", barrier, base, base, payload=said) for g in ids
            ]
        if silent:
            pages = [p for p in pages if p.kind is not PageKind.WATERMARK]
        if woken:
            pages += [Page(head, PageKind.WAKE) for head in self.heads]
        batch = Batch(self.number, now_ms, self.alignment, self.time)
        out = []
        for number, head in enumerate(self.heads):
            end = [*self.heads, self.groups][number + 1]
            mine = [p for p in pages if head <= p.key_group < end]
            if mine:  # else Spark does not call it
                made = run_range(self.spec, batch, mine, self.kept[number], self.files)
                said, self.kept[number] = run(made)
                out += said
        self.number += 1
        if pages:  # else there is no micro-batch
            self._take_reports([p.payload for p in out if p.kind is PageKind.REPORT])
            # Whoever has asked for a micro-batch gets it, perhaps behind others.
            self.asked = self.left or (self.asked and not woken)
        if barrier:
            events = [alignment.BarrierArrived("rows", alignment.Barrier(barrier))]
            self.alignment, _ = alignment.run(self.alignment, events)
        return out

    def take_state(self, pages):
        """Begin with what RESTORE pages bring."""
        batch = Batch(self.number, 0, self.alignment, self.time)
        for number, head in enumerate(self.heads):
            end = [*self.heads, self.groups][number + 1]
            mine = [p for p in pages if head <= p.key_group < end]
            _, self.kept[number] = run(run_range(self.spec, batch, mine, b"", self.files))
        self.number += 1

    def _take_reports(self, payloads):
        """As the driver does."""
        self.left = any(b"timers_left" in payload for payload in payloads)
        texts = [payload.decode() for payload in payloads if b'"time"' in payload]
        reports = [TimeReport.from_payload(text) for text in texts]
        if reports:
            assert len({report.common.payload() for report in reports}) == 1
            report = of_all_ranges(reports).held_back(self.time.stage)
            self.time, self.at = report.time, report.at

    def fired(self, *args, **kwargs):
        """What the batch emits, as (key, time, name, n)."""
        out = self.batch(*args, **kwargs)
        rows = [decode(p.payload, self.spec.output, "") for p in out if p.kind is PageKind.DATA]
        return sorted(tuple(row.values()) for batch in rows for row in batch.to_pylist())

    def state(self):
        kept = {g: s for stored in self.kept if stored for g, s in in_range(stored, "").items()}
        tables = [
            load(k, KEYS, self.spec.state, self.files, "").flat().table for k in kept.values()
        ]
        return {row["k"]: row for t in tables for row in t.to_pylist() if not row["_deleted"]}
