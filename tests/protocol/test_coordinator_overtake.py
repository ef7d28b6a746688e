"""The coordinator: when a checkpoint overtakes, and what rows in flight mean for the job's end.

Names in brackets are Flink's settings.
"""

import pytest
from building import JOIN, SINGLE, Job, X, aborted, report, triggered

from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    FinishJob,
    HeldTooMuch,
    InputExhausted,
    StageReported,
    TriggerWritten,
    WriteEnd,
    WriteOvertake,
)


def overtaking(said):
    return [a.barrier.checkpoint_id for a in said if isinstance(a, WriteOvertake)]


def test_without_a_timeout_nothing_overtakes():
    """Mode aligned: barriers wait for as long as the checkpoint may take."""
    job = Job(JOIN)
    job.trigger(10)
    assert overtaking(job.tick(109)) == []
    assert aborted(job.tick(110)) == [(1, FailureReason.EXPIRED)]


def test_a_timeout_of_zero_overtakes_at_once():
    """Mode unaligned: as soon as the barrier is written, not before."""
    job = Job(JOIN, aligned_timeout_ms=0)
    assert triggered(job.tick(10)) == [1]
    assert overtaking(job.said) == []
    assert overtaking(job.post(TriggerWritten(1))) == [1]
    assert overtaking(job.tick(11)) == []


def test_barriers_that_do_not_align_in_time_overtake_once():
    """[execution.checkpointing.aligned-checkpoint-timeout], counted from the trigger."""
    job = Job(JOIN, aligned_timeout_ms=20, max_concurrent=1)
    job.trigger(10)
    assert overtaking(job.tick(29)) == []
    assert overtaking(job.tick(30)) == [1]
    assert overtaking(job.tick(40)) == []
    assert overtaking(job.post(HeldTooMuch(1))) == []


def test_the_overtake_carries_the_barrier_of_the_checkpoint():
    job = Job(JOIN, aligned_timeout_ms=20)
    job.trigger(10)
    job.complete(1, "abc")
    job.trigger(20)
    (said,) = [a for a in job.tick(40) if isinstance(a, WriteOvertake)]
    assert said.barrier == job.state.pending[2].barrier
    assert said.barrier.base_id == 1


def test_a_checkpoint_that_every_stage_has_reported_overtakes_nothing():
    """It waits for its history only."""
    job = Job(JOIN, aligned_timeout_ms=20)
    job.trigger(10)
    job.post(*(StageReported(report(1, stage)) for stage in "abc"))
    assert overtaking(job.tick(50)) == []


def test_several_in_flight_overtake_the_oldest_first():
    job = Job(JOIN, aligned_timeout_ms=20, max_concurrent=3)
    job.trigger(10)
    job.trigger(20)
    assert overtaking(job.tick(45)) == [1, 2]


def test_an_expired_checkpoint_overtakes_nothing_any_more():
    job = Job(JOIN, aligned_timeout_ms=100)
    job.trigger(10)
    said = job.tick(110)
    assert aborted(said) == [(1, FailureReason.EXPIRED)]
    assert overtaking(said) == []


# -- held too much --------------------------------------------------------------------------------


def test_a_stage_that_holds_too_much_has_the_checkpoint_overtake():
    job = Job(JOIN, aligned_timeout_ms=50)
    job.trigger(10)
    said = job.post(HeldTooMuch(1, "stage c holds 9 bytes"))
    assert (overtaking(said), aborted(said)) == ([1], [])
    assert job.post(HeldTooMuch(1)) == []


def test_where_nothing_may_overtake_it_is_aborted():
    job = Job(JOIN)
    job.trigger(10)
    said = job.post(HeldTooMuch(1, "stage c holds 9 bytes"))
    assert aborted(said) == [(1, FailureReason.HELD_TOO_MUCH)]
    assert "holds 9 bytes" in job.state.last_failure
    assert job.post(HeldTooMuch(1)) == []


# -- savepoints -----------------------------------------------------------------------------------


def test_a_savepoint_is_always_aligned():
    """[Flink: savepoints are aligned whatever the setting.]"""
    job = Job(JOIN, aligned_timeout_ms=0)
    job.savepoint(10)
    assert overtaking([*job.said, *job.tick(90)]) == []
    assert aborted(job.post(HeldTooMuch(1))) == [(1, FailureReason.HELD_TOO_MUCH)]


def test_nothing_overtakes_a_savepoint():
    """A checkpoint behind it would have every stage snapshot the savepoint too, unaligned."""
    job = Job(JOIN, aligned_timeout_ms=0, max_concurrent=2)
    job.savepoint(5)
    job.trigger(15)
    assert overtaking(job.said) == []
    assert overtaking(job.complete(1, "abc")) == []
    assert overtaking(job.tick(16)) == [2]


def test_a_savepoint_behind_it_keeps_no_checkpoint_from_overtaking():
    job = Job(JOIN, aligned_timeout_ms=20)
    job.trigger(10)
    job.savepoint(15)
    assert overtaking(job.tick(30)) == [1]


# -- rows in flight at the end --------------------------------------------------------------------


def test_a_job_does_not_finish_while_rows_are_in_flight():
    """They are in the checkpoint, but not in the output; the next one is due by the clock."""
    job = Job(SINGLE, aligned_timeout_ms=0)
    job.post(InputExhausted(X))
    assert triggered(job.tick(3)) == [1]
    job.post(TriggerWritten(1))
    job.acknowledge(1)
    said = job.post(CompletionWritten(1, 8, in_flight=4))
    assert said == []
    assert triggered(job.tick(12)) == []
    assert triggered(job.tick(13)) == [2]
    job.post(TriggerWritten(2))
    assert FinishJob(2) in job.complete(2, now_ms=20)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_an_input_does_not_end_while_rows_are_in_flight(in_flight):
    job = Job(JOIN, aligned_timeout_ms=0)
    job.post(InputExhausted(X))
    job.trigger(10)
    job.acknowledge(1, "abc")
    said = job.post(CompletionWritten(1, 20, in_flight))
    assert said == ([] if in_flight else [WriteEnd(X)])
