"""Stops with a savepoint, savepoints at the end of inputs, and restarts."""

import pytest
from building import JOIN, Job, X, aborted, manifests, rows, triggered

from absflow.protocol.checkpoints import Fact, FactKind, FailureReason, Kind
from absflow.protocol.coordinator import machine
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    FailJob,
    FinishJob,
    InputExhausted,
    StopJob,
    StopRequested,
    WriteAbort,
    WriteEnd,
)
from absflow.protocol.coordinator.triggers import next_trigger_ms


def test_a_stop_waits_for_its_savepoint():
    """[stop-with-savepoint] Pending ones go on, none is triggered, the completion stops the job."""
    job = Job(max_concurrent=3)
    job.trigger(10)
    job.savepoint(11, stop=True)
    assert next_trigger_ms(job.state) is None
    assert job.tick(50) == []
    job.complete(1, now_ms=50)
    assert not job.state.stopping
    assert job.tick(99) == []
    job.acknowledge(2)
    assert job.post(CompletionWritten(2, 100)) == [StopJob()]
    assert (job.state.completed_id, job.state.stopped) == (2, True)


def test_a_stop_gives_up_the_rest_when_its_savepoint_completes():
    """Lower periodic ones are subsumed; savepoints, lower and higher, are stopped with the job."""
    job = Job(max_concurrent=3)
    job.trigger(10)
    job.savepoint(11, "w2")
    job.savepoint(12, "w3", stop=True)
    job.savepoint(13, "w4")
    said = job.complete(3, now_ms=20)
    assert aborted(said) == [
        (1, FailureReason.SUBSUMED),
        (2, FailureReason.JOB_STOPPED),
        (4, FailureReason.JOB_STOPPED),
    ]
    assert said[-1] == StopJob()


@pytest.mark.parametrize(
    "reason",
    [
        FailureReason.EXPIRED,
        FailureReason.TRIGGER_FAILED,
        FailureReason.SNAPSHOT_FAILED,
        FailureReason.FINALIZE_FAILED,
        FailureReason.HELD_TOO_MUCH,
        FailureReason.DECLINED,
    ],
)
def test_a_job_goes_on_when_the_savepoint_of_its_stop_fails(reason):
    """[stop failure: the job keeps running] The clock triggers again, when it would have."""
    job = Job()
    job.complete(job.trigger(10), now_ms=11)
    job.savepoint(12, stop=True)
    if reason is FailureReason.FINALIZE_FAILED:
        job.acknowledge(2)
    (abort,) = job.fail(2, reason)
    assert (abort.request, job.state.stopping) == ("request-1", False)
    assert next_trigger_ms(job.state) == 20
    job.complete(job.trigger(20))
    assert job.state.completed_id == 3


def test_the_savepoint_of_a_stop_that_expires_lets_the_clock_trigger_at_once():
    """One tick gives up the savepoint and triggers what is overdue."""
    job = Job(savepoint_timeout_ms=50)
    job.savepoint(5, stop=True)
    said = job.tick(55)
    assert aborted(said) == [(1, FailureReason.EXPIRED)]
    assert triggered(said) == [2]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_first_of_several_stops_that_completes_stops_the_job(first):
    """The others are answered by their aborts."""
    job = Job()
    for name in ("w1", "w2", "w3"):
        job.savepoint(5, name, stop=True)
    said = job.complete(first)
    others = [n for n in (1, 2, 3) if n != first]
    assert aborted(said) == [(n, FailureReason.JOB_STOPPED) for n in others]
    assert [a.request for a in said if isinstance(a, WriteAbort)] == [f"w{n}" for n in others]
    assert said[-1] == StopJob()


def test_the_clock_waits_until_the_last_of_several_stops_has_failed():
    """One that failed does not set off what another one still holds back."""
    job = Job(max_concurrent=5)
    job.savepoint(5, "w1", stop=True)
    job.savepoint(6, "w2", stop=True)
    job.fail(1, FailureReason.DECLINED)
    assert next_trigger_ms(job.state) is None
    job.fail(2, FailureReason.DECLINED)
    assert next_trigger_ms(job.state) == 10


def test_a_plain_stop_does_not_wait_for_a_savepoint():
    """The savepoint is given up, and the asker learns it."""
    job = Job()
    job.savepoint(5, stop=True)
    said = job.post(StopRequested())
    assert aborted(said) == [(1, FailureReason.JOB_STOPPED)]
    assert (said[0].request, said[-1]) == ("request-1", StopJob())


def test_a_plain_stop_lets_a_savepoint_be_finalised():
    """Its outcome is already in the hands of the storage."""
    job = Job()
    job.savepoint(5, stop=True)
    job.acknowledge(1)
    assert job.post(StopRequested()) == []
    assert job.post(CompletionWritten(1, 6)) == [StopJob()]


def test_a_job_that_fails_gives_up_its_savepoint():
    """Too many failures of the clock's checkpoints stop the job, whatever a person waits for."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.savepoint(11, stop=True)
    said = job.fail(1, FailureReason.SNAPSHOT_FAILED)
    assert aborted(said)[1:] == [(2, FailureReason.JOB_STOPPED)]
    assert {type(a) for a in said} == {WriteAbort, FailJob, StopJob}


@pytest.mark.parametrize("stop", [False, True])
def test_a_savepoint_after_the_exhaustion_is_the_last_checkpoint(stop):
    """It holds every row, so no other is triggered beside it, and its completion finishes."""
    job = Job(max_concurrent=3)
    job.post(InputExhausted(X))
    job.savepoint(1, stop=stop)
    assert [job.tick(now_ms) for now_ms in (2, 50, 99)] == [[], [], []]
    assert job.complete(1) == [FinishJob(1), StopJob()]


def test_a_savepoint_from_before_the_exhaustion_does_not_finish_the_job():
    """The last checkpoint is triggered though the savepoint is pending, and need not wait."""
    job = Job(max_concurrent=2)
    job.savepoint(1)
    job.post(InputExhausted(X))
    assert job.trigger(2) == 2
    said = job.complete(2)
    assert aborted(said) == [(1, FailureReason.JOB_STOPPED)]
    assert said[-1] == StopJob()
    assert FinishJob(2) in said


def test_an_early_savepoint_that_completes_leaves_the_last_checkpoint_to_come():
    """Rows may have come behind barrier 1."""
    job = Job()
    job.savepoint(1)
    job.post(InputExhausted(X))
    assert job.tick(2) == []
    assert FinishJob(1) not in job.complete(1)
    assert job.trigger(3) == 2
    assert FinishJob(2) in job.complete(2)


@pytest.mark.parametrize("stop", [False, True])
def test_a_failed_last_savepoint_is_followed_by_a_checkpoint(stop):
    """The job does not end without a checkpoint that holds every row."""
    job = Job()
    job.post(InputExhausted(X))
    job.savepoint(1, stop=stop)
    job.fail(1, FailureReason.SNAPSHOT_FAILED)
    assert job.trigger(2) == 2
    assert FinishJob(2) in job.complete(2)


def test_a_savepoint_beside_the_last_checkpoint():
    """Whichever completes first finishes the job; the other one is not awaited."""
    for first, other in ((1, 2), (2, 1)):
        job = Job()
        job.post(InputExhausted(X))
        job.trigger(1)
        job.savepoint(2)
        said = job.complete(first)
        reason = FailureReason.JOB_STOPPED if first == 1 else FailureReason.SUBSUMED
        assert aborted(said) == [(other, reason)]
        assert FinishJob(first) in said


def test_a_stop_with_savepoint_of_an_exhausted_job_is_a_stop():
    """Its savepoint came before the exhaustion: not every row is in it, so nothing has finished."""
    job = Job(max_concurrent=3)
    job.savepoint(1, stop=True)
    job.post(InputExhausted(X))
    assert job.tick(2) == []
    said = job.complete(1)
    assert said[-1] == StopJob()
    assert FinishJob(1) not in said


def test_an_input_ends_by_a_savepoint():
    """A savepoint that holds all of an input is as good as any checkpoint for its END."""
    job = Job(JOIN)
    job.post(InputExhausted(X))
    assert WriteEnd(X) in job.complete(job.savepoint(1), "abc", now_ms=1)
    job.savepoint(2, "another")
    assert job.state.pending[2].awaited == {"b", "c"}
    (manifest,) = manifests(job.acknowledge(2, "bc"))
    assert [s.lineage for s in manifest.stages] == [(1,), (2,), (2,)]


def restart(job, answered=()):
    """What the next driver has to write."""
    facts = tuple(Fact(n, FactKind.COMPLETED) for n in answered)
    completed = job.state.completed
    return machine.recover(
        job.state.topology, job.state.policy, 1000, rows(job.said), facts, completed
    )


@pytest.mark.parametrize("stop", [False, True])
def test_a_savepoint_that_is_lost_with_its_driver_is_answered(stop):
    """The abort carries the request; the new driver's clock triggers as ever."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.savepoint(11, stop=stop)
    state, said = restart(job)
    assert [(a.kind, a.request, a.reason) for a in said] == [
        (Kind.CHECKPOINT, "", FailureReason.DRIVER_RESTART),
        (Kind.SAVEPOINT, "request-1", FailureReason.DRIVER_RESTART),
    ]
    assert next_trigger_ms(state) == 1010


def test_increments_go_on_from_a_savepoint_after_a_restart():
    """It is the newest completed checkpoint, and is not aborted."""
    job = Job()
    job.complete(job.savepoint(5, stop=True))
    state, said = restart(job, answered=[1])
    after = Job(state=state)
    assert said == ()
    after.trigger(1010)
    assert after.state.pending[2].barrier.base_id == 1
