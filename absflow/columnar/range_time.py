"""Event time and timers of the key groups of a range in one micro-batch, together."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from absflow.columnar.batch import Batch, RangeWork
from absflow.columnar.event_time import BatchTime, TimeReport, watermark_payload
from absflow.columnar.pages import Page, PageKind
from absflow.columnar.spec import StageSpec, gates
from absflow.columnar.stored import KeyGroupState
from absflow.columnar.timers import NEVER, piece_of
from absflow.protocol import watermarks

__all__ = ["due_groups", "most_of_each", "said_of_time"]

# Of each key group that has timers which are due so many fire: a call costs as much as a hundred.
_LEAST = 1_000


def due_groups(
    spec: StageSpec, batch: Batch, states: Mapping[int, KeyGroupState], time: BatchTime | None
) -> list[int]:
    """The key groups that may have a timer that is due, though no page has come for them.

    Args:
        spec: the stage.
        batch: the micro-batch.
        states: what the key groups have kept.
        time: event time through the batch; None if it stands still.
    """
    if spec.on_timer is None:
        return []
    reached = None if batch.time is None else batch.time.stage.value
    reached = reached if time is None else time.highest
    event = -NEVER if reached is None else reached
    now = batch.time_ms * 1_000
    return [
        group
        for group, kept in states.items()
        if kept.event_timer <= event or kept.processing_timer <= now
    ]


def most_of_each(spec: StageSpec, due: Collection[int]) -> int | None:
    """How many timers of a domain may fire in a key group, of those that have any; None for all.

    State that expires is not kept for timers that wait, and would be lost with them: there all
    that are due fire.
    """
    if spec.expiry is not None:
        return None
    return max(_LEAST, piece_of(spec.on_timer).value // max(1, len(due)))


def said_of_time(
    spec: StageSpec,
    batch: Batch,
    time: BatchTime | None,
    due: Collection[int],
    together: RangeWork,
    *,
    woken: bool,
) -> Iterator[Page]:
    """What the driver, and a stage behind a direct edge, are to know of event time and timers.

    What waits is said in micro-batches that run every range: those that bring something of event
    time, and those that wake the stage. Rows alone may run this range, and not one with timers that
    are due; so nothing is said with them, but that another micro-batch is wanted.

    Args:
        spec: the stage.
        batch: the micro-batch.
        time: event time through it; None if it stands still.
        due: the key groups that had timers that are due.
        together: what the key groups have come to.
        woken: the stage was woken.
    """
    unsettled = batch.time is not None and not batch.time.stage.settled
    every_range = woken or time is not None
    if together.left or 0 in together.pending or (due and unsettled and not every_range):
        left = json.dumps({"timers_left": True}).encode()
        yield Page(0, PageKind.REPORT, spec.name, payload=left)
    if batch.time is None:
        return
    late = together.late_emitted
    if not every_range:
        if late:
            report = TimeReport(batch.time, late_emitted=late)
            yield Page(0, PageKind.REPORT, spec.name, payload=report.payload())
        return
    made = None
    if time is not None:
        made = time.finish(gates(spec, batch.alignment))
    if made is None and not (late or unsettled):
        return
    if made is None:
        stands = replace(batch.time, stage=watermarks.fired(batch.time.stage, None))
        made = TimeReport(stands, brought={} if time is None else time.brought)
    report = replace(made, late_emitted=late, pending=together.pending)
    yield Page(0, PageKind.REPORT, spec.name, payload=report.payload())
    yield from _watermarks(spec, report.held_back(batch.time.stage), batch, time)


def _watermarks(
    spec: StageSpec, report: TimeReport, batch: Batch, time: BatchTime | None
) -> Iterator[Page]:
    """For a stage behind a direct edge: at the snapshots where timers wait, and behind all."""
    for n in sorted(report.pending.keys() - {0}):
        stage = report.at[n]
        payload = watermark_payload(stage.output, stage.status, holds=True)
        yield Page(0, PageKind.WATERMARK, spec.name, n, payload=payload)
    stage = report.time.stage
    payload = watermark_payload(stage.output, stage.status, holds=0 in report.pending)
    epoch = batch.alignment.epoch if time is None else time.epoch
    yield Page(0, PageKind.WATERMARK, spec.name, epoch, payload=payload)
