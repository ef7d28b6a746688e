"""When a checkpoint is triggered, and when failures end the job."""

import copy

import pytest
from building import JOIN, Job, aborted, manifests, report, triggered

from absflow.errors import ProtocolViolation
from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.coordinator import machine
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    FailJob,
    HistoryFound,
    InputExhausted,
    LineageCompacted,
    RootInput,
    StageReported,
    StopJob,
    StopRequested,
    WriteAbort,
)
from absflow.protocol.coordinator.triggers import next_trigger_ms
from absflow.protocol.lineage import Compacted


def test_the_first_trigger_comes_after_one_interval():
    """[testTriggeringDelay] Nothing is triggered at the start, something at start + interval."""
    job = Job()
    assert next_trigger_ms(job.state) == 10
    assert job.tick(9) == []
    assert triggered(job.tick(10)) == [1]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_concurrent(most):
    """[testMaxConcurrentAttempts1/2/5] So many are in flight, and no more until one has ended."""
    job = Job(max_concurrent=most)
    for now_ms in range(0, 90, 10):
        job.tick(now_ms)
    assert len(job.pending) == most
    assert next_trigger_ms(job.state) is None
    job.fail(1, FailureReason.DECLINED)
    assert triggered(job.tick(90)) == [most + 1]


def test_subsumed_checkpoints_free_their_places():
    """[testMaxConcurrentAttemptsWithSubsumption] After 2 of 2 completed, two more may start."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.trigger(20)
    job.complete(2, now_ms=25)
    assert [triggered(job.tick(t)) for t in (30, 40, 50)] == [[3], [4], []]


def test_min_pause():
    """[testMinCheckpointPause] The pause counts from the completion, whatever the interval."""
    job = Job(min_pause_ms=50)
    job.complete(job.trigger(10), now_ms=15)
    assert triggered(job.tick(64)) == []
    assert triggered(job.tick(65)) == [2]


def test_ids_only_rise():
    """Failed ones leave gaps, but no id is ever used twice."""
    job = Job(tolerable_failed=99)
    for now_ms in range(10, 100, 10):
        job.tick(now_ms)
        job.fail(job.pending[0], FailureReason.TRIGGER_FAILED)
    assert triggered(job.said) == list(range(1, 10))


def test_failures_in_a_row_beyond_the_tolerated_fail_the_job():
    """[testContinuousFailure] The third counted failure in a row is one too many for 2."""
    job = Job(tolerable_failed=2)
    for now_ms in (10, 20):
        job.trigger(now_ms)
        job.fail(job.pending[0], FailureReason.SNAPSHOT_FAILED)
    job.trigger(30)
    said = job.fail(3, FailureReason.EXPIRED, "disk full")
    assert said[1:] == [FailJob(3, said[1].cause), StopJob()]
    assert "disk full" in said[1].cause
    assert (job.tick(1000), job.state.stopped) == ([], True)


def test_a_success_forgives_earlier_failures():
    """[testBreakContinuousFailure] Only failures in a row count."""
    job = Job(tolerable_failed=1)
    for now_ms in range(10, 100, 20):
        job.trigger(now_ms)
        job.fail(job.pending[0], FailureReason.EXPIRED)
        job.complete(job.trigger(now_ms + 10), now_ms=now_ms + 10)
    assert job.state.failures == 0
    assert not job.state.stopping


@pytest.mark.parametrize("reason", [r for r in FailureReason if not r.counted])
def test_uncounted_failures_never_fail_the_job(reason):
    """[testTotalCountValue] What says nothing about checkpoints does not count against them."""
    job = Job()
    job.trigger(10)
    job.fail(1, reason)
    assert (job.state.failures, job.state.stopping) == (0, False)


def test_a_checkpoint_counts_once():
    """[testIgnoreOneCheckpointRepeatedlyCountMultiTimes] Five words of one failure are one."""
    job = Job(tolerable_failed=1)
    job.trigger(10)
    for _ in range(5):
        job.fail(1, FailureReason.SNAPSHOT_FAILED)
    assert job.state.failures == 1


def test_failures_older_than_the_last_success_do_not_count():
    """[testIgnoresPastCheckpoints] What a completion subsumes cannot be counted any more."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.trigger(20)
    job.complete(2)
    assert job.fail(1, FailureReason.EXPIRED) == []
    assert job.state.failures == 0


def test_no_trigger_in_the_tick_that_exceeds_the_tolerance():
    """The expiry that fails the job and a due trigger fall on one tick: nothing is triggered."""
    job = Job(tolerable_failed=0)
    job.trigger(10)
    said = job.tick(110)
    assert triggered(said) == []
    assert [type(a) for a in said] == [WriteAbort, FailJob, StopJob]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (StageReported(report(1, "x")), "job has"),
        (HistoryFound(1, "x"), "job has"),
        (HistoryFound(1, "b"), "report comes first"),
        (CompletionWritten(1, 0), "not being finalised"),
        (CompletionWritten(9, 0), "not being finalised"),
        (InputExhausted(RootInput("a", "nothing")), "root inputs are"),
    ],
)
def test_an_illegal_move_raises_and_changes_nothing(event, words):
    """What the graph does not have or nobody asked for is a violation; the state is the same."""
    job = Job(JOIN)
    job.trigger(10)
    job.acknowledge(1, "a")
    state, before = job.state, copy.deepcopy(job.state)
    with pytest.raises(ProtocolViolation, match=words):
        machine.step(state, event)
    assert state == before


def test_a_stop_gives_up_what_is_pending():
    """A stop aborts what is under way, once, and says when nothing is pending any more."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.trigger(20)
    job.acknowledge(1)
    assert aborted(job.post(StopRequested())) == [(2, FailureReason.JOB_STOPPED)]
    assert job.post(StopRequested()) == []
    assert job.post(CompletionWritten(1, 30)) == [StopJob()]
    assert (job.state.completed_id, next_trigger_ms(job.state)) == (1, None)


def test_a_compaction_makes_later_lineages_shorter():
    """Manifests name the set in the place of those it replaces, so they do not grow for ever."""
    job = Job()
    for now in (10, 20, 30):
        job.complete(job.trigger(now), now_ms=now)
    assert job.post(LineageCompacted(Compacted(2, "a", -2, (1, 2)))) == []
    job.complete(job.trigger(40), now_ms=40)
    assert [m.stages[0].lineage for m in manifests(job.said)[-2:]] == [(1, 2, 3), (-2, 3, 4)]


def test_a_compaction_before_anything_completed_changes_nothing():
    """It is of a checkpoint that the attempt does not go on from."""
    job = Job()
    before = job.state
    assert job.post(LineageCompacted(Compacted(2, "a", -2, (1, 2)))) == []
    assert job.state == before
