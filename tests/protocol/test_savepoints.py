"""Savepoints at the coordinator, and the stop that waits for one. Brackets: Flink's tests."""

import pytest
from building import JOIN, SINGLE, Job, X, aborted, manifests, report, triggered

from absflow.errors import ProtocolViolation
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import FailureReason, Kind
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    FailJob,
    HistoryFound,
    Policy,
    RefuseRequest,
    SavepointRequested,
    StageReported,
    StopJob,
    StopRequested,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
)
from absflow.protocol.coordinator.pending import Coordinator, Phase


def test_a_savepoint_from_request_to_completion():
    """[testTriggerAndConfirmSimpleSavepoint] Barrier and manifest know the kind and the request."""
    job = Job(JOIN)
    said = job.post(SavepointRequested("request-1", 3, 3))
    assert said == [WriteBarrier(Barrier(1, 0, 0, 3), Kind.SAVEPOINT, "request-1")]
    job.post(TriggerWritten(1))
    (manifest,) = manifests(job.acknowledge(1, "abc"))
    assert (manifest.kind, manifest.request) == (Kind.SAVEPOINT, "request-1")
    assert job.post(CompletionWritten(1, 20)) == []
    assert job.state.completed == manifest


def test_a_checkpoint_of_the_clock_answers_nobody():
    """Its barrier, manifest and abort carry no request."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    (manifest,) = manifests(job.acknowledge(1))
    job.trigger(20)
    (abort,) = job.fail(2, FailureReason.DECLINED)
    assert {(x.kind, x.request) for x in (job.said[0], manifest, abort)} == {(Kind.CHECKPOINT, "")}


def test_a_savepoint_waits_for_nothing():
    """[testMinDelayBetweenSavepoints] No interval, no pause, no place among the concurrent."""
    job = Job(min_pause_ms=1000)
    job.complete(job.trigger(10), now_ms=11)
    job.trigger(1011)
    assert [job.savepoint(1012, name) for name in ("w1", "w2", "w3")] == [3, 4, 5]
    assert job.pending == [2, 3, 4, 5]


def test_the_clock_waits_while_a_savepoint_takes_its_place():
    """What is triggered behind a savepoint is appended behind it, and would only expire."""
    job = Job(max_concurrent=2)
    job.savepoint(5)
    assert job.trigger(10) == 2
    assert triggered(job.tick(20)) == []
    job.complete(1)
    assert triggered(job.tick(21)) == [3]


def test_a_savepoint_does_not_move_the_interval():
    """The clock triggers when it would have anyhow."""
    job = Job(max_concurrent=2)
    job.savepoint(9)
    assert job.trigger(10) == 2


def test_a_savepoint_is_full_and_stands_alone():
    """Its lineage is itself; the next increment is laid on it."""
    job = Job()
    job.complete(job.trigger(10), now_ms=10)
    job.savepoint(11)
    assert job.state.pending[2].barrier == Barrier(2, 0, 1, 11)
    (savepoint,) = manifests(job.acknowledge(2))
    job.post(CompletionWritten(2, 12))
    job.trigger(30)
    (increment,) = manifests(job.acknowledge(3))
    assert savepoint.stage("a").lineage == (2,)
    assert (increment.base_id, increment.stage("a").lineage) == (2, (2, 3))


def test_an_increment_on_a_savepoint_that_completed_meanwhile():
    """3 has the changes since 1; savepoint 2, which completed later, is what it is laid on."""
    job = Job(max_concurrent=2)
    job.complete(job.trigger(10), now_ms=10)
    job.savepoint(11)
    job.trigger(20)
    job.complete(2, now_ms=21)
    (third,) = manifests(job.acknowledge(3))
    assert (third.base_id, third.stage("a").lineage) == (1, (2, 3))


def test_savepoints_are_not_subsumed():
    """[testSavepointsAreNotSubsumed] 1 and 4 are the clock's, 2 and 3 are savepoints."""
    job = Job(max_concurrent=4)
    job.trigger(10)
    job.savepoint(11, "w2")
    job.savepoint(12, "w3")
    job.trigger(20)
    assert aborted(job.complete(3)) == [(1, FailureReason.SUBSUMED)]
    assert aborted(job.complete(4)) == []
    assert job.pending == [2]
    assert job.complete(2) == []


def test_a_savepoint_that_completes_behind_a_later_checkpoint():
    """It exists and stands alone, but increments go on from the later one."""
    job = Job(max_concurrent=3)
    job.savepoint(5)
    job.trigger(10)
    job.complete(2, now_ms=20)
    job.trigger(30)
    (savepoint,) = manifests(job.acknowledge(1))
    assert savepoint.stage("a").lineage == (1,)
    before = job.state
    assert job.post(CompletionWritten(1, 40)) == []
    assert (job.state.completed, job.state.completed_ms) == (before.completed, 20)
    (third,) = manifests(job.acknowledge(3))
    assert (third.base_id, third.stage("a").lineage) == (2, (2, 3))


def test_a_savepoint_that_is_late_forgives_no_failure():
    """Failures are counted since the newest completed checkpoint, and it is not that."""
    job = Job(max_concurrent=3, tolerable_failed=5)
    job.savepoint(5)
    job.complete(job.trigger(10), now_ms=10)
    job.trigger(20)
    job.fail(3, FailureReason.SNAPSHOT_FAILED)
    job.complete(1)
    assert job.state.failures == 1
    job.complete(job.savepoint(30, "another"))
    assert job.state.failures == 0


@pytest.mark.parametrize("reason", [r for r in FailureReason if r.counted or r.code == "DECLINED"])
@pytest.mark.parametrize("stop", [False, True])
def test_a_failed_savepoint_never_counts(reason, stop):
    """With no failure tolerated the job goes on, and the abort answers the request."""
    job = Job(tolerable_failed=0)
    job.savepoint(5, stop=stop)
    said = job.fail(1, reason, "why")
    assert said == [WriteAbort(Barrier(1, 0, 0, 5), reason, "why", Kind.SAVEPOINT, "request-1")]
    assert job.state.failures == 0
    job.complete(job.trigger(10))
    assert job.state.completed_id == 2


def test_a_failed_savepoint_forgives_nothing():
    """Failures before it and after it are still failures in a row."""
    job = Job(tolerable_failed=1)
    job.trigger(10)
    job.fail(1, FailureReason.SNAPSHOT_FAILED)
    job.savepoint(11)
    job.fail(2, FailureReason.SNAPSHOT_FAILED)
    job.trigger(20)
    said = job.fail(3, FailureReason.SNAPSHOT_FAILED)
    assert [type(a) for a in said] == [WriteAbort, FailJob, StopJob]


def test_a_savepoint_has_a_timeout_of_its_own():
    """2 expires after 100 ms, as ever; savepoint 1 after 500, also when it came first."""
    job = Job(savepoint_timeout_ms=500, max_concurrent=2, tolerable_failed=9)
    job.savepoint(0)
    job.trigger(10)
    assert aborted(job.tick(110)) == [(2, FailureReason.EXPIRED)]
    assert aborted(job.tick(499)) == [(3, FailureReason.EXPIRED)]
    assert (1, FailureReason.EXPIRED) in aborted(job.tick(500))


def test_the_default_timeout_is_an_hour():
    """A full snapshot may take long."""
    assert Policy().savepoint_timeout_ms == 60 * 60 * 1000


def test_a_repeated_request_is_ignored_in_every_phase():
    """A driver that reads the requests again may repeat one until it has its answer."""
    job = Job(max_concurrent=2)
    job.acknowledge(job.trigger(10))  # being finalised, so that the savepoint has to wait
    job.post(SavepointRequested("request-1", 11, 11))
    moves = {
        Phase.TRIGGERING: [TriggerWritten(2)],
        Phase.COLLECTING: [StageReported(report(2, "a")), HistoryFound(2, "a")],
        Phase.READY: [CompletionWritten(1, 12)],
        Phase.FINALIZING: [CompletionWritten(2, 13)],
    }
    for phase, events in moves.items():
        assert job.phase(2) is phase
        before = job.state
        again = (
            SavepointRequested("request-1", 12, 12),
            SavepointRequested("request-1", 13, 13, stop=True),
        )
        assert (job.post(*again), job.state) == ([], before)
        job.post(*events)
    assert job.state.completed.request == "request-1"


def test_a_job_that_is_stopping_refuses():
    """While something is being finalised, and afterwards: the asker learns why."""
    job = Job()
    job.savepoint(5)
    job.acknowledge(1)
    job.post(StopRequested())
    assert job.post(SavepointRequested("request-1", 6, 6)) == []
    refused = [RefuseRequest("another", "the job is stopping")]
    assert job.post(SavepointRequested("another", 6, 6)) == refused
    assert job.post(CompletionWritten(1, 7)) == [StopJob()]
    assert job.post(SavepointRequested("another", 8, 8, stop=True)) == refused
    assert job.pending == []


def test_a_job_whose_inputs_have_ended_refuses():
    """No stage is left that could snapshot."""
    state = Coordinator(SINGLE, Policy(), exhausted={X: 0}, ended=frozenset({X}))
    said = Job(state=state).post(SavepointRequested("request-1", 1, 1))
    assert said == [RefuseRequest("request-1", "every input has ended")]


def test_a_request_without_a_name_is_a_violation():
    """Nobody could find its answer."""
    job = Job()
    with pytest.raises(ProtocolViolation, match="without a name"):
        job.post(SavepointRequested("", 1, 1))
