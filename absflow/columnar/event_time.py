"""Event time in one micro-batch: from the rows of a source to the watermarks of a stage.

The task that packs the rows of a source looks at their event times
(:mod:`absflow.columnar.lateness`), and sends each key-group range a WATERMARK page with what it has
seen. So does one that reads a channel, whose rows have the watermark of their sender. Every range
gets the same pages, hence comes to the same event time, as it does with barriers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.lateness import late_by_batch, late_rows
from absflow.columnar.pages import TIME_TYPE, Page, PageKind, decode, pages_of
from absflow.errors import ProcessError
from absflow.protocol import event_time, watermarks
from absflow.protocol.event_time import EventTime
from absflow.protocol.watermarks import StageTime, Watermark, WatermarkStatus

__all__ = [
    "LATE",
    "LATE_FIELD",
    "BatchTime",
    "RootTime",
    "SourceRows",
    "TimeReport",
    "late_table",
    "late_unpacked",
    "of_all_ranges",
    "range_heads",
    "watermark_payload",
]

# What can become of late rows.
LATE = ("table", "drop", "process", "fail")
# In the pages of a source whose late rows are processed.
LATE_FIELD = pa.field("_late", pa.bool_())


@dataclass(frozen=True, slots=True)
class RootTime:
    """What a source's declaration says of event time.

    Attributes:
        column: of the rows; a timestamp.
        delay: how much older than the newest row of its partition a row may be, microseconds.
        by: the columns whose values are a row's partition; empty for one partition.
        ordered: rows of a partition come in one task, in the partition's order.
        idle_ms: for how long a partition brings nothing before it is idle; None for never.
        late: what becomes of late rows, one of :data:`LATE`.
    """

    column: str
    delay: int
    by: tuple[str, ...] = ()
    ordered: bool = False
    idle_ms: int | None = None
    late: str = "table"


def range_heads(key_groups: int, ranges: int) -> list[int]:
    """The first key group of each range."""
    return [-(-number * key_groups // ranges) for number in range(ranges)]


@dataclass(slots=True)
class SourceRows:
    """The rows of a root input that one task packs.

    Attributes:
        name: the input.
        declared: its event time.
        before: of each partition the greatest event time before the micro-batch.
        reached: the stage's watermark, or that of the input, before it; None if there is none. What
            is not behind it is late, too: it is of a partition that was idle, or is new.
        newest: the same among the rows so far.
        late: rows that came late so far.
    """

    name: str
    declared: RootTime
    before: Mapping[str, int]
    reached: int | None = None
    newest: dict[str, int] = field(default_factory=dict)
    late: int = 0

    def look(self, rows: pa.Table) -> pa.Array:
        """Look at the next rows; of each whether it is late.

        Raises:
            ProcessError: a row has none.
        """
        column = rows[self.declared.column]
        if column.null_count:
            place = int(pc.index(column.is_null(), True).as_py())
            raise ProcessError(
                f"source {self.name!r}: a row has no event time: column "
                f"{self.declared.column!r} is null in {rows.slice(place, 1).to_pylist()[0]}. The "
                "batch is not committed; leave such rows out of the source's frame, or give them "
                "a time there"
            )
        times = column.cast(TIME_TYPE).cast(pa.int64()).to_numpy()
        names, numbers = self._partitions(rows)
        ordered = self.declared.ordered
        known = {**self.before, **self.newest} if ordered else self.before
        start = {number: known[name] for number, name in enumerate(names) if name in known}
        judge = late_rows if ordered else late_by_batch
        late, after = judge(numbers, times, start, self.declared.delay)
        if self.reached is not None:
            late |= times <= self.reached
        for number, at in after.items():
            name = names[number]
            self.newest[name] = max(at, self.newest.get(name, at))
        self.late += int(np.count_nonzero(late))
        return pa.array(late)

    def _partitions(self, rows: pa.Table) -> tuple[list[str], np.ndarray]:
        """The partitions among the rows by name, and of each row the number of its own."""
        by = self.declared.by
        if not by or not rows.num_rows:
            return [""], np.zeros(rows.num_rows, dtype=np.int64)
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for name in by:
            encoded = pc.dictionary_encode(rows[name].combine_chunks(), null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
        rows = rows.select(by).take(pa.array(first))
        names = ["/".join(str(row[name]) for name in by) for row in rows.to_pylist()]
        return names, numbers

    def pages(self, heads: Iterable[int]) -> Iterator[Page]:
        """What each key-group range is to know of it; nothing if there was no row."""
        if not self.newest:
            return
        payload = json.dumps({"newest": self.newest, "late": self.late}).encode()
        for head in heads:
            yield Page(head, PageKind.WATERMARK, self.name, payload=payload)


def late_table(schema: pa.Schema) -> pa.Schema:
    """The schema of the table of a source's late rows."""
    return pa.schema([pa.field("_attempt", pa.int32()), pa.field("_epoch", pa.int64()), *schema])


def late_unpacked(
    pages: Iterable[pa.RecordBatch], name: str, schema: pa.Schema, attempt: int
) -> Iterator[pa.RecordBatch]:
    """The rows of the LATE pages of a source, as :func:`late_table` has them."""
    for batch in pages:
        for page in pages_of(batch.filter(pc.equal(batch.column("kind"), PageKind.LATE.value))):
            if page.input == name:
                rows = decode(page.payload, schema, f"late rows of source {name!r}")
                own = (
                    pa.repeat(pa.scalar(attempt, pa.int32()), rows.num_rows),
                    pa.repeat(pa.scalar(page.checkpoint_id, pa.int64()), rows.num_rows),
                )
                yield pa.RecordBatch.from_arrays([*own, *rows.columns], schema=late_table(schema))


def watermark_payload(value: int | None, status: WatermarkStatus, *, holds: bool = False) -> bytes:
    """What a WATERMARK or a BARRIER page says of the stage that it comes from.

    Args:
        value: its watermark.
        status: of it.
        holds: the page is of a range with timers that are due and have not fired, so whatever
            others say with the same epoch, the stage is no further.
    """
    said: dict[str, object] = {"value": value, "status": status.value}
    return json.dumps(said | ({"holds": True} if holds else {})).encode()


@dataclass(frozen=True, slots=True)
class TimeReport:
    """What a micro-batch has come to in event time.

    Attributes:
        time: behind it.
        at: at the snapshots that were taken in it, by checkpoint.
        late: by root input, how many rows came late.
        brought: by root input, the partitions that brought rows.
        late_emitted: of one key-group range, or of all: how many rows the stage has emitted late.
        pending: of one range: the first timer that is due and has not fired, microseconds since
            1970 (UTC), at each of these checkpoints; and behind the micro-batch, by 0. The others
            know nothing of it, so ``time`` and ``at`` are as if there were none.
    """

    time: EventTime
    at: Mapping[int, StageTime] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    brought: Mapping[str, Sequence[str]] = field(default_factory=dict)
    late_emitted: int = 0
    pending: Mapping[int, int] = field(default_factory=dict)

    def payload(self) -> bytes:
        """For a REPORT page; equal for equal reports."""
        at = {str(n): event_time.to_json(EventTime(stage)) for n, stage in self.at.items()}
        value: dict[str, object] = {"at": at, "late": self.late, "brought": self.brought}
        value["time"] = event_time.to_json(self.time)
        value |= {"late_emitted": self.late_emitted, "pending": self.pending}
        return json.dumps(value, sort_keys=True).encode()

    @classmethod
    def from_payload(cls, payload: str) -> TimeReport:
        """The inverse of :meth:`payload`."""
        value = json.loads(payload)
        at = {int(n): event_time.from_json(text).stage for n, text in value["at"].items()}
        time, late = event_time.from_json(value["time"]), value["late"]
        pending = {int(n): time for n, time in value["pending"].items()}
        return cls(time, at, late, value["brought"], value["late_emitted"], pending)

    @property
    def common(self) -> TimeReport:
        """What every range says that says anything."""
        return replace(self, late_emitted=0, pending={})

    def held_back(self, before: StageTime) -> TimeReport:
        """The same, with outputs that stay behind the timers that are pending.

        Args:
            before: the stage's time before the micro-batch.
        """
        held = watermarks.held_back
        at = {n: held(stage, before, self.pending.get(n)) for n, stage in self.at.items()}
        stage = held(self.time.stage, before, self.pending.get(0))
        return replace(self, time=replace(self.time, stage=stage), at=at)


def of_all_ranges(reports: Sequence[TimeReport]) -> TimeReport:
    """What the key-group ranges of a stage say together; at least one of them says something."""
    pending: dict[int, int] = {}
    for report in reports:
        for n, time in report.pending.items():
            pending[n] = min(time, pending.get(n, time))
    late = sum(report.late_emitted for report in reports)
    return replace(reports[0], late_emitted=late, pending=pending)


class BatchTime:
    """Event time of a stage through one micro-batch.

    Every key group takes the same steps: one for each snapshot, and one behind them. The first that
    comes to a step makes it.

    Attributes:
        brought: by root input, the partitions that bring rows in it.
    """

    def __init__(
        self, before: EventTime, epoch: int, epochs: Mapping[str, int], pages: Iterable[Page]
    ) -> None:
        """Read what the batch brings.

        Args:
            before: the time before it.
            epoch: of the stage, before it.
            epochs: of each root input, that of its rows.
            pages: the WATERMARK pages of a key-group range, and the BARRIER pages of one of its key
                groups, in any order.
        """
        newest: dict[str, dict[str, int]] = defaultdict(dict)
        self._late: dict[str, int] = defaultdict(int)
        sent: list[tuple[str, Watermark]] = []
        held: dict[tuple[str, int], int | None] = {}
        pages = [page for page in pages if page.payload]
        # A barrier's own stands behind what came with the rows before it.
        for page in sorted(pages, key=lambda p: (p.checkpoint_id, p.kind is PageKind.BARRIER)):
            said = json.loads(page.payload)
            if "newest" in said:
                known = newest[page.input]
                for partition, at in said["newest"].items():
                    known[partition] = max(at, known.get(partition, at))
                self._late[page.input] += said["late"]
            elif page.input in before.stage.inputs:
                status = WatermarkStatus(said["status"])
                sent.append((page.input, Watermark(page.checkpoint_id, said["value"], status)))
                if "holds" in said:
                    place = (page.input, page.checkpoint_id)
                    held[place] = _least(said["value"], held.get(place, said["value"]))
        self.brought = {name: sorted(of) for name, of in newest.items()}
        time = event_time.observed(before, epochs, newest)
        stage = time.stage
        for name, watermark in sent:
            least = held.get((name, watermark.epoch), watermark.value)
            behind = replace(watermark, value=_least(watermark.value, least))
            stage = event_time.brings(stage, name, behind)
        self._time = replace(time, stage=stage)
        self._before = before
        self._stages = [stage]
        self._at: dict[int, StageTime] = {}
        self._epoch = epoch

    @property
    def highest(self) -> int | None:
        """The stage's watermark does not get beyond this in the batch."""
        everything = dict.fromkeys(self._stages[-1].inputs)
        return watermarks.admit(self._stages[-1], everything).value

    def step(
        self, number: int, upto: Mapping[str, int | None], checkpoint_id: int = 0
    ) -> StageTime:
        """All rows up to these epochs are processed: what the stage has then.

        Args:
            number: of the step, from 1 on.
            upto: by input, the highest epoch; None for all.
            checkpoint_id: whose snapshot comes next; 0 if none.
        """
        if number == len(self._stages):
            timed = {n: most for n, most in upto.items() if n in self._before.stage.inputs}
            stage = watermarks.admit(self._stages[-1], timed)
            # Timers fire before the step is over, so there is none left.
            self._stages.append(watermarks.fired(stage, None))
            if checkpoint_id:
                self._at[checkpoint_id] = self._stages[-1]
        return self._stages[number]

    def finish(self, gates: Mapping[str, int | None]) -> TimeReport | None:
        """What it has come to; None if that is nothing new.

        Args:
            gates: by input, the highest epoch that was let through at last.
        """
        if len(self._stages) == 1:  # no key group had anything to do
            self.step(1, gates)
        time = replace(self._time, stage=self._stages[-1])
        if time == self._before and not self._at and not any(self._late.values()):
            return None
        return TimeReport(time, self._at, dict(self._late), self.brought)

    @property
    def epoch(self) -> int:
        """The stage's epoch as far as the steps have come."""
        return max(self._at, default=self._epoch - 1) + 1


def _least(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)
