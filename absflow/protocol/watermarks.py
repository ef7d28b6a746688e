"""Watermarks at one stage: how far event time has come on each input, and in the stage.

Rules of this file: no Spark, no clock, no I/O; a state is a small frozen value; times are integers,
microseconds since 1970 (UTC), and None is before all of them.

A watermark W on an input says that no row with an event time of W or less comes on it any more
(Akidau et al. 2021; Flink's ``Watermark``). Here it is a typed row, as a barrier is. It stands
behind the rows that it speaks of and carries their epoch, so whatever holds a row back holds its
watermark back: it is *admitted* by the same gate as the rows
(:func:`absflow.protocol.alignment_state.gate`), once all rows up to it have been processed. Every
barrier n brings the watermark that its sender had at n, with the epoch n.

The stage's own watermark is the least of its active inputs'. So at an aligned checkpoint n it
follows from n's source positions alone, whatever the batches were, and a restore begins with it.
What a stage has at an overtaken checkpoint is what had been admitted by then; the rows in flight
stand before the watermark of their barrier n in the restored attempt, too.

An input that has nothing to say is idle and holds nobody up; if all are idle or have ended, the
stage goes on to the greatest, so that their order does not matter (Flink's
``StatusWatermarkValve``). An input that comes back counts at once: the stage's watermark never
falls, but waits for it (docs/internals/decisions, 90).

An input ends at a barrier: the trigger says which sources have nothing left, and from that barrier
on they count no more. Not at their END row, which comes when the checkpoint has completed: what
timers do then would be in no snapshot any more. For the same reason nothing ends with a checkpoint
in which a stage has timers left, or does not know the last of its senders (:func:`unsettled`). The
end is no watermark, for a source that is given another file later must not find all of it late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from absflow.errors import ProtocolViolation

__all__ = [
    "InputTime",
    "StageTime",
    "Watermark",
    "WatermarkStatus",
    "admit",
    "arrive",
    "combined",
    "fired",
    "held_back",
    "later",
    "resumed",
    "start",
    "unsettled",
    "validate",
]


class WatermarkStatus(Enum):
    """Whether an input, or a partition of a source, counts (Flink's class of this name)."""

    ACTIVE = "active"
    IDLE = "idle"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark on its way.

    Attributes:
        epoch: that of the newest rows before it.
        value: no row with this event time or less follows; None says nothing.
        status: of the input from here on.
    """

    epoch: int
    value: int | None
    status: WatermarkStatus = WatermarkStatus.ACTIVE


@dataclass(frozen=True, slots=True)
class InputTime:
    """Event time on one input.

    Attributes:
        value: the newest watermark that was admitted; never falls.
        status: the newest that was admitted.
        waiting: watermarks that have arrived and are not admitted, in order of arrival. A barrier's
            may have a lower epoch than one before it: the rows of n and of n + 1 may be committed
            before barrier n is.
    """

    value: int | None = None
    status: WatermarkStatus = WatermarkStatus.ACTIVE
    waiting: tuple[Watermark, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTime:
    """Event time at one stage between two micro-batches.

    Attributes:
        inputs: by name.
        value: the stage's watermark; never falls.
        output: what the stage says to those behind it: every timer up to here, and for ``delay``
            more, has fired. Further behind ``value`` only while there are more timers due than fire
            in one micro-batch.
        delay: the rows that it emits may be so much older than its watermark, microseconds.
    """

    inputs: Mapping[str, InputTime]
    value: int | None = None
    output: int | None = None
    delay: int = 0

    @property
    def status(self) -> WatermarkStatus:
        """What the stage says of itself to those behind it."""
        statuses = {given.status for given in self.inputs.values()}
        for status in (WatermarkStatus.ACTIVE, WatermarkStatus.IDLE):
            if status in statuses:
                return status
        return WatermarkStatus.ENDED

    @property
    def settled(self) -> bool:
        """Whether it has said all that follows from its watermark: no timer is due."""
        if self.value is None or self.output is None:
            return self.value is None
        return self.output >= self.value - self.delay


def start(inputs: Iterable[str], delay: int = 0) -> StageTime:
    """Nothing has been said on any input; the rows of the stage may be so much older."""
    return StageTime({name: InputTime() for name in inputs}, delay=delay)


def resumed(time: StageTime, checkpoint_id: int, senders: Mapping[str, StageTime]) -> StageTime:
    """What a stage begins with that is restored from a checkpoint.

    Every input is active in the new attempt: a bounded source may have been given more, and how
    long another has said nothing is counted anew.

    Args:
        time: its own at the checkpoint.
        checkpoint_id: the checkpoint.
        senders: what the stages had at the checkpoint whose channels it reads, by input. What they
            said last is behind the rows that the checkpoint has in flight.
    """
    made = replace(time, inputs={name: InputTime(i.value) for name, i in time.inputs.items()})
    for name, sender in senders.items():
        made = arrive(made, name, Watermark(checkpoint_id, sender.output))
    return made


def arrive(time: StageTime, name: str, watermark: Watermark) -> StageTime:
    """A watermark is read on an input: it waits to be admitted.

    Raises:
        ProtocolViolation: the stage does not have the input.
    """
    given = _input_of(time, name)
    return _with(time, name, replace(given, waiting=(*given.waiting, watermark)))


def admit(time: StageTime, upto: Mapping[str, int | None]) -> StageTime:
    """Every row up to these epochs has been processed: admit the watermarks up to there.

    Args:
        time: before.
        upto: by input, the highest epoch; None for all.

    Returns:
        The time with which timers are due.
    """
    inputs = dict(time.inputs)
    for name, most in upto.items():
        given = _input_of(time, name)
        due = [w for w in given.waiting if most is None or w.epoch <= most]
        rest = tuple(w for w in given.waiting if w not in due)
        # By epoch, for a barrier's own stands behind one of the next epoch; else as they came.
        for watermark in sorted(due, key=lambda w: w.epoch):
            value = later(given.value, watermark.value)
            given = InputTime(value, watermark.status)
        inputs[name] = replace(given, waiting=rest)
    return replace(time, inputs=inputs, value=later(time.value, combined(inputs.values())))


def fired(time: StageTime, next_timer: int | None) -> StageTime:
    """Timers have fired, in the order of their times.

    So what a timer emits has a time behind what was said before it, and is not late where it goes
    (SPARK-40925); and a storm of timers holds back what is said, but neither rows nor barriers
    (FLINK-40101).

    Args:
        time: before.
        next_timer: the time of the first that has not; None if there is none.
    """
    done = time.value
    if next_timer is not None and done is not None and next_timer <= done:
        done = next_timer - 1
    return replace(time, output=later(time.output, None if done is None else done - time.delay))


def held_back(time: StageTime, before: StageTime, next_timer: int | None) -> StageTime:
    """A time that took it for granted that every timer has fired, where some have not.

    Args:
        time: with an output for which none waits.
        before: the stage's before it; what was said is not taken back.
        next_timer: the first that is due and has not fired; None if there is none.
    """
    if next_timer is None:
        return time
    return fired(replace(time, output=before.output), next_timer)


def unsettled(time: StageTime, senders: Mapping[str, StageTime], exhausted: Iterable[str]) -> bool:
    """Whether a stage would still change by itself behind a checkpoint.

    Args:
        time: its own at the checkpoint.
        senders: what the stages had whose channels it reads, by input.
        exhausted: its root inputs that had nothing left. One that was overtaken by the checkpoint
            does not know it yet.
    """
    known = (
        (time.inputs[name].value, time.inputs[name].status) == (sender.output, sender.status)
        for name, sender in senders.items()
    )
    ended = (time.inputs[name].status is WatermarkStatus.ENDED for name in exhausted)
    return not time.settled or not all(known) or not all(ended)


def combined(inputs: Iterable[InputTime]) -> int | None:
    """The watermark of several inputs, or of the partitions of a source, together.

    None if they say nothing together.
    """
    given = list(inputs)
    active = [i.value for i in given if i.status is WatermarkStatus.ACTIVE]
    if active:
        said = [value for value in active if value is not None]
        return min(said) if len(said) == len(active) else None
    return max((i.value for i in given if i.value is not None), default=None)


def later(one: int | None, other: int | None) -> int | None:
    """The greater of two watermarks."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def validate(before: StageTime, after: StageTime) -> None:
    """Check what must hold of two times of a stage; for tests and the simulator.

    Raises:
        ProtocolViolation: naming the first invariant that does not hold.
    """
    pairs = [("the stage", before.value, after.value), ("its output", before.output, after.output)]
    pairs += [
        (f"input {name!r}", given.value, after.inputs[name].value)
        for name, given in before.inputs.items()
    ]
    for what, old, new in pairs:
        if later(old, new) != new:
            raise ProtocolViolation(f"the watermark of {what} falls from {old} to {new}")
    if later(after.output, after.value) != after.value:
        raise ProtocolViolation(f"a stage that is at {after.value} says {after.output}")


def _input_of(time: StageTime, name: str) -> InputTime:
    if name not in time.inputs:
        raise ProtocolViolation(
            f"a watermark names input {name!r}, but the stage has {sorted(time.inputs)}; the row "
            "was written by another graph"
        )
    return time.inputs[name]


def _with(time: StageTime, name: str, given: InputTime) -> StageTime:
    return replace(time, inputs={**time.inputs, name: given})
