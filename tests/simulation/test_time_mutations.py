"""The checkers of event time can fail: each deliberate mistake is caught within a few seeds."""

from dataclasses import replace

import pytest
from mutating import assert_caught

from absflow.protocol import watermarks
from absflow.protocol.watermarks import StageTime, Watermark, WatermarkStatus
from absflow.simulation import driver, query, restore, stage
from absflow.simulation.items import Fired, Sent, SentWatermark
from absflow.simulation.job import GRAPHS
from absflow.simulation.world import go_back, run

SEEDS = range(480)


def by_the_greatest(inputs):
    """As Spark does it: who is ahead decides."""
    values = [i.value for i in inputs if i.value is not None]
    return max(values, default=None)


def without_gate(real):
    """A watermark counts when it is read, though rows before it are held."""
    return lambda time, upto: real(time, dict.fromkeys(upto))


def no_watermark_at_barriers(real):
    """A barrier says nothing of event time."""

    def snapshot(work, *more):
        real(work, *more)
        work.emitted = [item for item in work.emitted if not isinstance(item, SentWatermark)]

    return snapshot


def said_before_the_rows(outcome):
    """The watermark stands in front of the rows of its commit."""
    rows = [item for item in outcome.emitted if isinstance(item, Sent | Fired)]
    return (*([outcome.watermark] if outcome.watermark else []), *rows)


def behind_the_barrier(real):
    """What a timer says that a barrier makes due comes behind that."""

    def fire(work):
        before = len(work.emitted)
        real(work)
        work.emitted[before:] = [replace(i, epoch=i.epoch + 1) for i in work.emitted[before:]]

    return fire


def fires_before(real):
    """A timer fires when its time has come on some input."""

    def fire(work):
        time = work.time
        newest = by_the_greatest(time.inputs.values())
        work.time = replace(time, value=newest)
        real(work)
        work.time = time

    return fire


def keeps_what_fired(real):
    """A timer that has fired is still there."""

    def fire(work):
        before = dict(work.values)
        real(work)
        work.values = before

    return fire


def end_is_infinite(epoch, value, status=WatermarkStatus.ACTIVE):
    """A source that has ended says that nothing will ever come."""
    if status is WatermarkStatus.ENDED:
        return Watermark(epoch, 1 << 30)
    return Watermark(epoch, value, status)


def never_late(real):
    """Every row of a source is on time."""

    def observe(source, partition, times):
        after, late = real(source, partition, times)
        return after, [False for _ in late]

    return observe


def times_of_the_batch(real):
    """A snapshot keeps how far the sources have been read, not where its barrier stands."""

    def snapshot(work, barrier, after):
        for name, (position, _) in list(work.cuts.get(barrier.checkpoint_id, {}).items()):
            work.cuts[barrier.checkpoint_id][name] = (position, work.sources[name])
        real(work, barrier, after)

    return snapshot


def begins_anew(time, checkpoint_id, senders):
    """As Flink does it: watermarks are made again behind a restore."""
    return watermarks.start(time.inputs)


def overtaken_at_once(real):
    """The watermark of an input counts before the rows that are in flight on it (FLINK-40517)."""

    def resumed(time, checkpoint_id, senders):
        made = real(time, checkpoint_id, senders)
        values = [sender.value for sender in senders.values() if sender.value is not None]
        return StageTime(made.inputs, max([*values, made.value or -1], default=made.value))

    return resumed


MUTATIONS = {
    "the greatest watermark counts": ([(watermarks, "combined", by_the_greatest)], "late"),
    "watermarks pass a closed gate": (
        [(watermarks, "admit", without_gate(watermarks.admit))],
        "watermark",
    ),
    "barriers carry no watermark": (
        [(stage, "_snapshot", no_watermark_at_barriers(stage._snapshot))],
        "watermark",
    ),
    "a watermark stands before its rows": (
        [(stage.Outcome, "rows", property(said_before_the_rows))],
        "late",
    ),
    "what a timer says stands behind the barrier": (
        [(stage, "_fire", behind_the_barrier(stage._fire))],
        "timer",
    ),
    "a timer fires when one input is there": (
        [(stage, "_fire", fires_before(stage._fire))],
        "timer",
    ),
    "a timer stays when it has fired": (
        [(stage, "_fire", keeps_what_fired(stage._fire))],
        "timer",
    ),
    "a stage says more than its timers have done": (
        [(watermarks, "fired", lambda time, _: replace(time, output=time.value))],
        "not at all",
    ),
    "an end is infinite": ([(query, "Watermark", end_is_infinite)], "came beyond"),
    # Two inputs of a stage must end, far apart, while the job goes on.
    "a stage ends though it would still change": (
        [(driver, "unsettled_stages", lambda *_: 0)],
        "consistent cut",
        GRAPHS[-1],
    ),
    "no row is late": ([(stage, "observe", never_late(stage.observe))], "consistent cut"),
    "a snapshot has the times of its batch": (
        [(stage, "_snapshot", times_of_the_batch(stage._snapshot))],
        "partition",
    ),
}
RESTORES = {
    "watermarks are made anew": ([(restore.watermarks, "resumed", begins_anew)], "watermark"),
    "rows in flight are overtaken": (
        [(restore.watermarks, "resumed", overtaken_at_once(watermarks.resumed))],
        "late",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_caught(name, monkeypatch):
    """With this mistake some world breaks a promise, and the checkers say which."""
    patches, words, *graph = MUTATIONS[name]

    def play(seed):
        return run(seed, *graph).violations

    assert_caught(monkeypatch, (patches, words), SEEDS, play, name)


@pytest.mark.parametrize("name", RESTORES)
def test_a_mistake_of_a_restore_is_caught(name, monkeypatch):
    """With this mistake some attempt that is restored from a sound world breaks a promise."""

    def play(seed):
        result = run(seed)
        assert not result.violations
        for number in result.tables.manifests:
            yield from go_back(seed, result, number).violations

    assert_caught(monkeypatch, RESTORES[name], SEEDS, play, name)
