"""What must be true of state that expires, in the tables that a simulated world leaves behind.

What is alive at a checkpoint, and what it has counted, is computed from the sources' rows, the
times of the batches that have processed them, and the state at the checkpoint before:

* in batch time exactly: a row finds its key alive if the key was touched less long ago than the
  ``ttl`` says, by the times of both batches;
* in event time a key is alive at a checkpoint if it was touched behind its watermark less the
  ``ttl``. Which state a row found depends on how batches were cut: surely that of a key which was
  touched less long ago than the ``ttl``, counted from the row's own time, for the watermark is
  behind it. So count and touch lie between two bounds, which are mostly equal;
* what had expired at a checkpoint, or was forgotten, does not come back, whatever the clock, the
  ``ttl`` and the job do then; and the clock does not go back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from absflow.protocol.checkpoints import Manifest, StageManifest
from absflow.protocol.coordinator.messages import Triggered
from absflow.simulation.due import Due
from absflow.simulation.event_time import time_of
from absflow.simulation.expiry import Ttl, brief_name, expired, is_brief
from absflow.simulation.items import Value
from absflow.simulation.job import Graph, Row
from absflow.simulation.restore import reconstruct
from absflow.simulation.tables import Tables

__all__ = ["Living"]

# A source, then the stages that a row has passed.
_Way = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """What a key's count and the time of its touch are at least and at most."""

    count: tuple[int, int]
    touched: tuple[int, int]

    def has(self, value: Value) -> bool:
        """Whether a value lies in it."""
        bounds = zip((self.count, self.touched), value, strict=True)
        return all(low <= it <= high for (low, high), it in bounds)


class Living:
    """What is alive at the checkpoints, which are looked at oldest first."""

    def __init__(self, graph: Graph, tables: Tables, due: Due) -> None:
        """Begin before the first one."""
        self._graph, self._tables, self._due = graph, tables, due
        self._spans: dict[str, dict[str, _Span]] = {s.name: {} for s in graph.stages}
        self._folded: dict[_Way, int] = {}
        rows = (row for row in tables.barriers if isinstance(row, Triggered))
        self._triggered = {row.barrier.checkpoint_id for row in rows}

    def check(self, manifest: Manifest, processed: Mapping[_Way, int]) -> Iterator[str]:
        """What must hold at a completed checkpoint.

        Args:
            manifest: of the checkpoint.
            processed: how many rows each stage has processed by then on each way into it.
        """
        for part in manifest.stages:
            stage = part.report.stage
            ttl = self._tables.clocks.ttls.get(stage)
            if ttl is None or not {*part.lineage} <= self._tables.histories[stage].sets.keys():
                continue
            values = reconstruct(self._tables.histories[stage], part.lineage)
            upto = part.report.expired_upto
            there = {
                name: value
                for name, value in values.items()
                if is_brief(name) and not expired(name, value, upto)
            }
            number = manifest.checkpoint_id
            if number in self._triggered:
                yield from self._clock(part, ttl, number, values)
                self._fold(stage, ttl, processed)
                yield from self._compare(stage, number, there, upto)
            else:  # what a restored attempt began with
                self._folded |= {way: n for way, n in processed.items() if way[-1] == stage}
            self._spans[stage] = {
                name: _Span((count, count), (at, at)) for name, (count, at) in there.items()
            }

    def _clock(
        self, part: StageManifest, ttl: Ttl, number: int, values: Mapping[str, Value]
    ) -> Iterator[str]:
        """A manifest says up to when what was touched had expired."""
        stage, said = part.report.stage, part.report.expired_upto
        if ttl.clock:
            due: int | None = self._time_of_batch(stage, part.report.batch_id) - ttl.after
        else:
            watermark = time_of(self._graph.stage(stage), values)[0].value
            due = None if watermark is None else watermark - ttl.after
        if said != due:
            yield f"expiry: stage {stage} says {said} at checkpoint {number}, due is {due}"

    def _time_of_batch(self, stage: str, batch_id: int) -> int:
        offsets = self._tables.stages[stage].offsets
        return max(plan.wall_ms for number, plan in offsets.items() if number <= batch_id)

    def _fold(self, stage: str, ttl: Ttl, processed: Mapping[_Way, int]) -> None:
        """Take in the rows since the checkpoint before."""
        spans = self._spans[stage]
        for path, due in self._due.into[stage].items():
            way, name = (*path, stage), "path " + ">".join(path)
            begin, end = self._folded.get(way, 0), processed[way]
            on_time = sum(row.number not in due.late for row in due.rows[:begin])
            for row in due.rows[begin:end]:
                if row.number in due.late:
                    continue
                at = self._time_of_row(stage, name, on_time) if ttl.clock else row.at
                on_time += 1
                span = _after(spans.pop(brief_name(row), None), row, ttl, at)
                if span is not None:
                    spans[brief_name(row)] = span
            self._folded[way] = max(begin, end)

    def _time_of_row(self, stage: str, name: str, place: int) -> int:
        """When the batch ran that processed the row at a place among those on time of a way."""
        files = self._tables.stages[stage]
        later = (n for n, seen in sorted(files.seen.items()) if seen.get(name, 0) > place)
        return self._time_of_batch(stage, next(later, files.committed + 1))

    def _compare(
        self, stage: str, number: int, there: Mapping[str, Value], upto: int | None
    ) -> Iterator[str]:
        spans = self._spans[stage]
        for name in sorted({*spans, *there}):
            span, value = spans.get(name), there.get(name)
            what = f"{name} of stage {stage}, checkpoint {number}"
            if value is None:
                if span is not None and (upto is None or span.touched[0] > upto):
                    yield f"expiry: {what} is gone too early: due is {span}, expired is {upto}"
            elif span is None or (upto is not None and span.touched[1] <= upto):
                yield f"expiry: {what} is {value}, but had expired or was never there: {span}"
            elif not span.has(value):
                yield f"expiry: {what} is {value}, due is {span}"


def _after(span: _Span | None, row: Row, ttl: Ttl, at: int) -> _Span | None:
    """What a row makes of what is due for its key."""
    if row.amount % 11 == 0:
        return None
    surely = span is not None and at < span.touched[0] + ttl.after
    alive = span if surely or not ttl.clock else None
    if row.sign < 0:
        if alive is None or not ttl.on_read:
            return alive
        low, high = alive.touched
        return _Span(alive.count, (max(low, at) if surely else low, max(high, at)))
    fresh = _Span((0, 0), (at, at))
    low_one, high_one = (alive if surely and alive else fresh), alive or fresh
    return _Span(
        (low_one.count[0] + 1, high_one.count[1] + 1),
        (max(low_one.touched[0], at), max(high_one.touched[1], at)),
    )
