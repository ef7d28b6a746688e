"""The coordinator at the ends of things: exhausted inputs, the final checkpoint, recovery."""

from dataclasses import replace

import pytest
from building import JOIN, SINGLE, Job, X, Y, aborted, manifests, report, rows, triggered

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    Fact,
    FactKind,
    FailureReason,
    Manifest,
    StageManifest,
)
from absflow.protocol.coordinator import machine, messages
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    DiscardReport,
    FinishJob,
    InputExhausted,
    Policy,
    RootInput,
    StageReported,
    StopJob,
    Tick,
    Topology,
    Triggered,
    Unexpected,
    WriteAbort,
    WriteEnd,
)
from absflow.protocol.coordinator.triggers import live_stages, next_trigger_ms

POLICY = Policy(interval_ms=10, timeout_ms=100)


# -- the final checkpoint -----------------------------------------------------------------------


def test_the_final_checkpoint_is_triggered_at_once():
    """When every input is exhausted, the last checkpoint waits for neither interval nor pause."""
    job = Job(interval_ms=10_000, min_pause_ms=10_000)
    job.complete(job.trigger(10_000), now_ms=10_001)
    job.post(InputExhausted(X))
    assert job.trigger(10_002) == 2
    said = job.complete(2, now_ms=10_003)
    assert said[-2:] == [FinishJob(2), StopJob()]
    assert job.state.stopped


def test_a_checkpoint_from_before_the_exhaustion_does_not_finish_the_job():
    """Rows may have come after barrier 1, so its completion is followed by one more."""
    job = Job()
    job.trigger(10)
    job.post(InputExhausted(X))
    assert job.complete(1) == []
    assert job.trigger(11) == 2
    assert FinishJob(2) in job.complete(2)


def test_only_one_final_checkpoint_is_pending():
    """Ticks while the final checkpoint is under way trigger no second one, though two may fly."""
    job = Job(max_concurrent=3)
    job.post(InputExhausted(X))
    assert [triggered(job.tick(t)) for t in range(1, 60)] == [[1]] + [[]] * 58


def test_a_failed_final_checkpoint_is_tried_again():
    """The job does not end without a checkpoint that holds every row."""
    job = Job(tolerable_failed=3)
    job.post(InputExhausted(X))
    job.trigger(1)
    job.fail(1, FailureReason.SNAPSHOT_FAILED)
    assert triggered(job.tick(2)) == [2]


def test_a_finished_job_gives_up_what_is_pending():
    """A younger checkpoint that is still under way when the final one completes is not awaited."""
    job = Job(max_concurrent=3)
    job.trigger(10)
    job.trigger(20)
    job.post(InputExhausted(X))
    job.trigger(21)
    job.complete(1, now_ms=22)
    assert aborted(job.complete(3)) == [(2, FailureReason.SUBSUMED)]
    assert job.state.stopped


# -- inputs that end before others --------------------------------------------------------------


def test_an_input_ends_when_a_checkpoint_holds_all_of_it():
    """END is written when a checkpoint that was triggered after the exhaustion has completed."""
    job = Job(JOIN)
    job.trigger(10)
    job.post(InputExhausted(X))
    assert WriteEnd(X) not in job.complete(1, "abc")
    assert job.state.ended == frozenset()
    assert WriteEnd(X) in job.complete(job.trigger(20), "abc", now_ms=20)
    assert job.complete(job.trigger(30), "bc", now_ms=30) == []


def test_an_input_beside_others_that_end_gets_no_end():
    """What comes before the next start is taken up: a job that is all bounded ends at once."""
    job = Job(replace(JOIN, bounded=True))
    job.post(InputExhausted(X))
    assert job.complete(job.trigger(10), "abc", now_ms=10) == []
    job.post(InputExhausted(Y))
    said = job.complete(job.trigger(20), "abc", now_ms=20)
    assert said[-2:] == [FinishJob(2), StopJob()]


def test_an_ended_stage_is_not_awaited_and_keeps_its_part():
    """Stage a, whose only input has ended, counts with its last state in later checkpoints."""
    job = Job(JOIN)
    job.post(InputExhausted(X))
    job.complete(job.trigger(10), "abc", now_ms=10)
    job.trigger(20)
    assert job.state.pending[2].awaited == {"b", "c"}
    (manifest,) = manifests(job.acknowledge(2, "bc"))
    assert manifest.stage("a").report.checkpoint_id == 1
    assert manifest.stage("a").lineage == (1,)
    assert manifest.stage("c").lineage == (1, 2)


def test_a_report_of_an_ended_stage_is_of_no_use():
    """A barrier that overtook the END row makes the ended stage report; nobody waits for that."""
    job = Job(JOIN)
    job.post(InputExhausted(X))
    job.complete(job.trigger(10), "abc", now_ms=10)
    job.trigger(20)
    said = job.post(StageReported(report(2, "a")))
    assert said == [DiscardReport(2, "a", Unexpected.UNKNOWN)]


def test_the_last_input_to_end_finishes_the_job_instead():
    """When the rest is exhausted too, no END is written: the final checkpoint holds everything."""
    job = Job(JOIN)
    job.post(InputExhausted(X), InputExhausted(Y))
    said = job.complete(job.trigger(1), "abc")
    assert said[-2:] == [FinishJob(1), StopJob()]
    assert not any(isinstance(a, WriteEnd) for a in job.said)


def test_exhaustion_is_heard_once():
    """A second word of it does not ask for another checkpoint."""
    job = Job()
    job.post(InputExhausted(X))
    job.trigger(1)
    job.post(InputExhausted(X))
    assert FinishJob(1) in job.complete(1)


@pytest.mark.parametrize(
    ("ended", "live"),
    [
        (set(), {"a", "b", "c", "d"}),
        ({X}, {"b", "c", "d"}),
        ({Y}, {"a", "b", "c", "d"}),
        ({X, Y}, {"c", "d"}),
        ({X, Y, RootInput("c", "z")}, set()),
    ],
)
def test_a_stage_lives_as_long_as_one_of_its_inputs(ended, live):
    """x into a; a and y into b; z into c; b and c into d."""
    upstream = {"a": (), "b": ("a",), "c": (), "d": ("b", "c")}
    topology = Topology(upstream, frozenset({X, Y, RootInput("c", "z")}))
    assert live_stages(topology, frozenset(ended)) == live


# -- recovery -----------------------------------------------------------------------------------


def test_a_first_start_has_nothing_to_repair():
    """Without barriers and facts the first id is 1, one interval after the start."""
    state, said = machine.recover(SINGLE, POLICY, 500, (), (), None)
    assert said == ()
    assert (state.next_id, next_trigger_ms(state)) == (1, 510)


def test_a_restart_aborts_what_was_pending():
    """Triggers without a terminal fact are aborted, oldest first; the others are let alone."""
    triggers = tuple(Triggered(Barrier(n)) for n in (4, 1, 3, 2))
    facts = (Fact(1, FactKind.COMPLETED), Fact(3, FactKind.ABORTED, FailureReason.EXPIRED))
    _, said = machine.recover(SINGLE, POLICY, 0, triggers, facts, None)
    assert said == tuple(WriteAbort(Barrier(n), FailureReason.DRIVER_RESTART) for n in (2, 4))


@pytest.mark.parametrize(
    ("barriers", "facts", "expected"),
    [
        ((5,), (), 6),
        ((5,), (7,), 8),  # the barrier row of 7 could not be written, but its id was used
        ((5, 6), (5,), 7),
    ],
)
def test_ids_rise_over_a_restart(barriers, facts, expected):
    """The next id is above every trigger and every fact of all drivers before."""
    state, _ = machine.recover(
        SINGLE,
        POLICY,
        0,
        tuple(Triggered(Barrier(n)) for n in barriers),
        tuple(Fact(n, FactKind.ABORTED, FailureReason.TRIGGER_FAILED) for n in facts),
        None,
    )
    assert state.next_id == expected


def restarted(job, **more):
    """The job after a driver restart at 1000 ms."""
    completed = job.state.completed
    facts = (Fact(completed.checkpoint_id, FactKind.COMPLETED),) if completed else ()
    state, _ = machine.recover(
        job.state.topology, job.state.policy, 1000, rows(job.said), facts, completed, **more
    )
    return Job(state=state)


def test_increments_go_on_after_a_restart():
    """The first checkpoint of a new driver is laid on the last one of the old."""
    job = Job()
    job.complete(job.trigger(10), now_ms=10)
    job.trigger(20)
    after = restarted(job)
    assert after.trigger(1010) == 3
    (manifest,) = manifests(after.acknowledge(3))
    assert (manifest.base_id, manifest.stage("a").lineage) == (1, (1, 3))


MANIFEST = Manifest(4, 2, 0, (StageManifest(report(4, "a"), (2, 4)),))


def restored(completed, floor=0):
    """A first driver of an attempt that was restored from 4, in a job that had come to 7."""
    facts = (Fact(4, FactKind.COMPLETED), Fact(6, FactKind.COMPLETED))
    triggers = tuple(Triggered(Barrier(n, 2, 2), ours=False) for n in (4, 5, 6, 7))
    return machine.recover(SINGLE, POLICY, 0, triggers, facts, completed, floor=floor)


def test_an_attempt_gives_up_what_another_left_pending():
    """5 and 7 come to their end, and no stage of this attempt has to release them."""
    _, said = restored(MANIFEST)
    reason = FailureReason.DRIVER_RESTART
    assert said == tuple(WriteAbort(Barrier(n, 2, 2), reason, release=False) for n in (5, 7))


def test_increments_go_on_from_the_checkpoint_that_was_restored():
    """Not from 6, which is newer, but was left behind; ids rise over it all the same."""
    job = Job(state=restored(MANIFEST)[0])
    assert job.trigger(10) == 8
    assert job.state.pending[8].barrier == Barrier(8, 4, 4, 10)
    (manifest,) = manifests(job.acknowledge(8))
    assert (manifest.base_id, manifest.stage("a").lineage) == (4, (2, 4, 8))


@pytest.mark.parametrize(("triggers", "floor", "first"), [((7,), 4, 8), ((), 4, 5)])
def test_an_attempt_that_must_start_full(triggers, floor, first):
    """A fork or a migrated state: everything is full until one has completed, then as ever."""
    rows = tuple(Triggered(Barrier(n, 2, 2), ours=False) for n in triggers)
    policy = replace(POLICY, max_concurrent=2)
    job = Job(state=machine.recover(SINGLE, policy, 0, rows, (), None, floor=floor)[0])
    assert (job.trigger(10), job.trigger(20)) == (first, first + 1)
    assert {(p.barrier.base_id, p.barrier.completed_id) for p in job.state.pending.values()} == {
        (0, 0)
    }
    job.complete(first, now_ms=20)
    (second,) = manifests(job.acknowledge(first + 1))
    assert second.stage("a").lineage == (first + 1,)
    assert job.trigger(30) == first + 2
    assert job.state.pending[first + 2].barrier.base_id == first


def test_reports_to_the_dead_driver_are_late():
    """Stages report to the new driver what the old one triggered; it is discarded."""
    job = Job()
    job.trigger(10)
    said = restarted(job).post(StageReported(report(1, "a")))
    assert said == [DiscardReport(1, "a", Unexpected.LATE)]


def test_ended_inputs_stay_ended_over_a_restart():
    """An END row is there for good: its stage is not awaited, and END is not asked for again."""
    job = Job(JOIN)
    job.post(InputExhausted(X))
    job.complete(job.trigger(10), "abc", now_ms=10)
    after = restarted(job, ended=frozenset({X}))
    after.trigger(1010)
    assert after.state.pending[2].awaited == {"b", "c"}
    assert not any(isinstance(a, WriteEnd) for a in after.complete(2, "bc", now_ms=1011))
    after.post(InputExhausted(Y))
    assert FinishJob(3) in after.complete(after.trigger(1012), "bc", now_ms=1013)


def test_a_job_that_finished_before_the_crash_finishes_again():
    """The final manifest landed unanswered: one more checkpoint, without changes, ends it."""
    job = Job()
    job.post(InputExhausted(X))
    job.complete(job.trigger(1))
    after = restarted(job)
    after.post(InputExhausted(X), Tick(1000, 1000))
    after.acknowledge(2, rows_changed=0)
    assert after.phase(2).value == "triggering"
    after.post(messages.TriggerWritten(2))
    assert after.post(CompletionWritten(2, 1001)) == [FinishJob(2), StopJob()]
    assert after.state.completed.stage("a").lineage == (1,)
