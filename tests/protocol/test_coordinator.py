"""The coordinator: triggers, reports, completion, aborts. Names in brackets are Flink's tests.

Its end of input, stop and recovery are in ``test_coordinator_end.py``, the walk over its table in
``test_coordinator_table.py``.
"""

from dataclasses import replace

import pytest
from building import JOIN, SINGLE, Job, aborted, manifests, report

from absflow.protocol.checkpoints import FailureReason, SetDigest
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    DiscardReport,
    HistoryFound,
    LineageCompacted,
    StageReported,
    TriggerWritten,
    Unexpected,
    WriteBarrier,
)
from absflow.protocol.coordinator.pending import Phase
from absflow.protocol.lineage import Compacted, compacted_id
from absflow.protocol.tiers import TierPolicy


def test_a_checkpoint_from_trigger_to_completion():
    """[testTriggerAndConfirmSimpleCheckpoint] Trigger, barrier, reports, history, manifest."""
    job = Job(JOIN)
    (written,) = job.tick(10)
    assert isinstance(written, WriteBarrier)
    assert (written.barrier.checkpoint_id, written.barrier.base_id) == (1, 0)
    assert job.phase(1) is Phase.TRIGGERING
    assert job.post(TriggerWritten(1)) == []
    assert job.acknowledge(1, "ab") == []
    said = job.post(StageReported(report(1, "c", positions={"z": "5"})))
    assert (said, job.phase(1)) == ([], Phase.COLLECTING)
    (manifest,) = manifests(job.post(HistoryFound(1, "c", async_ms=7)))
    assert [s.report.stage for s in manifest.stages] == ["a", "b", "c"]
    assert (manifest.checkpoint_id, manifest.triggered_ms) == (1, 10)
    assert manifest.stage("c").report == report(1, "c", positions={"z": "5"}, async_ms=7)
    assert job.post(CompletionWritten(1, now_ms=20)) == []
    assert (job.state.completed, job.state.completed_id, job.pending) == (manifest, 1, [])


def test_a_report_alone_completes_nothing():
    """A snapshot counts when its set was found in the history's log, not when it was reported."""
    job = Job(JOIN)
    job.trigger(10)
    assert job.post(*(StageReported(report(1, s)) for s in "abc")) == []
    assert job.post(HistoryFound(1, "a"), HistoryFound(1, "b")) == []
    assert len(manifests(job.post(HistoryFound(1, "c")))) == 1


def test_reports_may_outrun_the_answer_of_the_trigger():
    """Stages that read the barrier row before the driver knows it is written are received."""
    job = Job()
    job.tick(10)
    assert job.acknowledge(1) == []
    assert job.phase(1) is Phase.TRIGGERING
    assert len(manifests(job.post(TriggerWritten(1)))) == 1


def test_a_repeated_report_is_discarded():
    """[testTriggerAndConfirm..., duplicate ack] The second report and find change nothing."""
    job = Job(JOIN)
    job.trigger(10)
    job.acknowledge(1, "a")
    before = job.state
    for again in (StageReported(report(1, "a", 99)), HistoryFound(1, "a")):
        assert job.post(again) == [DiscardReport(1, "a", Unexpected.DUPLICATE)]
    assert job.state == before


@pytest.mark.parametrize("event", [StageReported(report(1, "a")), HistoryFound(1, "a")])
def test_a_report_of_an_aborted_checkpoint_is_late(event):
    """[testStateCleanupForLateOrUnknownMessages] Its set is an orphan; nothing else happens."""
    job = Job()
    job.trigger(10)
    job.fail(1, FailureReason.SNAPSHOT_FAILED)
    assert job.post(event) == [DiscardReport(1, "a", Unexpected.LATE)]


def test_a_report_of_a_checkpoint_that_never_was_is_unknown():
    """[testHandleMessagesForNonExistingCheckpoints] An id above the last trigger is unknown."""
    job = Job()
    assert job.post(StageReported(report(8, "a"))) == [DiscardReport(8, "a", Unexpected.UNKNOWN)]


def test_a_late_trigger_answer_changes_nothing():
    """A barrier that was written after its checkpoint was given up revives nothing."""
    job = Job(timeout_ms=5)
    job.tick(10)
    job.tick(15)
    before = job.state
    assert job.post(TriggerWritten(1)) == []
    assert job.state == before


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_failure_of_what_is_not_pending_changes_nothing(reason):
    """[...duplicate decline ignored] One abort per checkpoint, whatever is said afterwards."""
    job = Job()
    job.trigger(10)
    job.fail(1, FailureReason.DECLINED)
    before = job.state
    assert job.fail(1, reason) == []
    assert job.state == before


@pytest.mark.parametrize("reason", [r for r in FailureReason if r.counted or r.code == "DECLINED"])
def test_a_failure_aborts_and_the_next_one_goes_on(reason):
    """[testTriggerAndDecline...] The failed one is dropped, a later one is unaffected."""
    job = Job(tolerable_failed=1)
    job.trigger(10)
    (said,) = job.fail(1, reason, "why")
    assert (said.barrier.checkpoint_id, said.reason, said.cause) == (1, reason, "why")
    job.complete(job.trigger(20))
    assert job.state.completed_id == 2


def test_a_timeout_names_who_is_missing():
    """[testExpiredCheckpoint...] The abort says whose report and whose history did not come."""
    job = Job(JOIN, tolerable_failed=9)
    job.trigger(10)
    job.acknowledge(1, "a")
    job.post(StageReported(report(1, "b")))
    (said, _next) = job.tick(110)
    assert (said.reason, said.cause) == (
        FailureReason.EXPIRED,
        "no report from c; history not found of b",
    )


def test_a_timeout_is_isolated():
    """[testCheckpointTimeoutIsolated] The expiry of 1 leaves 2, which is younger, untouched."""
    job = Job(max_concurrent=2, tolerable_failed=9, interval_ms=50)
    job.trigger(50)
    job.trigger(100)
    job.tick(149)
    assert job.pending == [1, 2]
    assert aborted(job.tick(150)) == [(1, FailureReason.EXPIRED)]
    assert 2 in job.pending


def test_the_clock_cannot_abort_a_finalisation():
    """Once the manifest is under way its outcome belongs to the storage, not to the timeout."""
    job = Job(tolerable_failed=9)
    job.trigger(10)
    job.acknowledge(1)
    assert aborted(job.tick(10_000)) == []
    assert job.fail(1, FailureReason.SNAPSHOT_FAILED) == []
    assert job.finalising == [1]
    assert aborted(job.fail(1, FailureReason.FINALIZE_FAILED)) == [
        (1, FailureReason.FINALIZE_FAILED)
    ]


def test_a_completion_subsumes_older_pending_ones():
    """[testSuccessfulCheckpointSubsumesUnsuccessful] 2 completes, so 1 is given up, 3 is not."""
    job = Job(max_concurrent=3)
    for now_ms in (10, 20, 30):
        job.trigger(now_ms)
    assert aborted(job.complete(2)) == [(1, FailureReason.SUBSUMED)]
    assert job.pending == [3]
    assert job.state.failures == 0


def test_one_finalisation_at_a_time():
    """While 1 is being committed, 2 is ready and waits; then it is its turn."""
    job = Job(max_concurrent=3)
    for now_ms in (10, 20, 30):
        job.trigger(now_ms)
    assert [m.checkpoint_id for m in manifests(job.acknowledge(1))] == [1]
    assert manifests(job.acknowledge(3) + job.acknowledge(2)) == []
    assert job.phase(2) is job.phase(3) is Phase.READY
    said = job.post(CompletionWritten(1, 40))
    assert [m.checkpoint_id for m in manifests(said)] == [2]


def test_a_failed_finalisation_lets_the_next_one_begin():
    """A commit that failed does not leave a ready checkpoint waiting for ever."""
    job = Job(max_concurrent=2, tolerable_failed=9)
    job.trigger(10)
    job.trigger(20)
    job.acknowledge(1)
    job.acknowledge(2)
    said = job.fail(1, FailureReason.FINALIZE_FAILED)
    assert [m.checkpoint_id for m in manifests(said)] == [2]


def test_an_older_one_that_becomes_ready_too_late_is_subsumed():
    """1 became ready while 2 was being committed: the completion of 2 gives it up."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.trigger(20)
    job.acknowledge(2)
    job.acknowledge(1)
    assert job.phase(1) is Phase.READY
    assert aborted(job.post(CompletionWritten(2, 30))) == [(1, FailureReason.SUBSUMED)]


def test_increments_are_laid_on_the_newest_completed_checkpoint():
    """2 was triggered with base 0, 3 with base 1: each lineage adds up to that stage's state."""
    job = Job(max_concurrent=2)
    job.trigger(10)
    job.trigger(20)
    job.complete(1)
    job.trigger(30)
    (second,) = manifests(job.acknowledge(2))
    job.post(CompletionWritten(2, 40))
    (third,) = manifests(job.acknowledge(3))
    assert (second.base_id, second.stage("a").lineage) == (0, (2,))
    assert (third.base_id, third.stage("a").lineage) == (1, (2, 3))


def test_a_snapshot_without_changes_adds_no_set():
    """A stage that changed nothing since its base keeps the lineage it had."""
    job = Job()
    job.complete(job.trigger(10))
    job.trigger(20)
    (manifest,) = manifests(job.acknowledge(2, rows_changed=0))
    assert manifest.stage("a").lineage == (1,)


def bases(job, *brought):
    """Complete a checkpoint for each of these (rows, of so many keys), by stage; all bases."""
    found = []
    for of_stages in brought:
        now_ms = 10 * job.state.next_id
        number = job.trigger(now_ms)
        found.append(job.state.pending[number].barrier.base_id)
        for stage, (rows, keys) in of_stages.items():
            made = report(number, stage, rows, keys_total=keys, bytes_total=20 * keys)
            digest = SetDigest(number, rows, 0) if rows else None
            job.post(StageReported(made), HistoryFound(number, stage, digest=digest))
        job.post(CompletionWritten(number, now_ms))
    return found


def test_behind_one_that_brought_most_of_the_state_a_checkpoint_is_full():
    """And then one that says what has changed: after a load it is little again."""
    job = Job(full_from_rows=100)
    most, few = {"a": (600, 1000)}, {"a": (10, 1000)}
    full = {"a": (1000, 1000)}
    assert bases(job, full, most, full, most, full, few, few) == [0, 1, 0, 3, 0, 5, 6]


def test_a_small_state_is_not_snapshotted_whole_again():
    """Its sets are read faster than written, and who reads changes finds what has changed."""
    job = Job(full_from_rows=100)
    assert bases(job, *[{"a": (99, 99)}] * 4) == [0, 1, 2, 3]


def test_a_large_stage_is_not_snapshotted_for_a_small_one():
    """What counts is the state of the whole job, by its bytes."""
    job = Job(JOIN, full_from_rows=100)
    small, large = (900, 1000), (10, 100_000)
    assert bases(job, *[{"a": small, "b": large, "c": (0, 0)}] * 3) == [0, 1, 2]
    job = Job(JOIN, full_from_rows=100)
    assert bases(job, *[{"a": small, "b": (9, 10), "c": (0, 0)}] * 3) == [0, 1, 0]


FEW, ALL = {"a": (400, 1000)}, {"a": (1000, 1000)}


def with_tiers(topology=SINGLE, *, bytes_=1 << 30, **tiers):
    settings = {"full_from_rows": 100, "full_upto_bytes": bytes_}
    return Job(topology, tiers=TierPolicy(**{"free_dead": 0, **tiers}), **settings)


def test_before_all_sets_would_become_one_a_checkpoint_is_full():
    """Of 1000 + 5 x 400 rows two for each live key are dead, which is as many as may be."""
    job = with_tiers()
    found = bases(job, ALL, *[FEW] * 5, ALL, FEW, FEW)
    assert found == [0, 1, 2, 3, 4, 5, 0, 7, 8]
    assert job.state.completed.stages[0].lineage == (7, 8, 9)


def test_before_too_many_sets_would_become_one_a_checkpoint_is_full():
    """The oldest is not larger than all others."""
    assert bases(with_tiers(max_sets=3), ALL, *[FEW] * 2, ALL) == [0, 1, 2, 0]


def test_where_only_small_sets_would_become_one_they_are_compacted():
    """That writes less than a full snapshot."""
    few = {"a": (10, 1000)}
    assert bases(with_tiers(max_sets=3), ALL, *[few] * 9) == [*range(10)]


def test_few_rows_are_compacted():
    """That takes no time, and who reads changes finds what has changed."""
    few = {"a": (4, 10)}
    assert bases(with_tiers(max_sets=3), *[few] * 9) == [*range(9)]


def test_a_state_that_takes_long_is_compacted():
    """No micro-batch is held up for longer than some seconds by a snapshot of everything."""
    assert 0 in bases(with_tiers(bytes_=20_000), *[FEW] * 9)[1:]
    assert 0 not in bases(with_tiers(bytes_=19_999), *[FEW] * 9)[1:]


def test_a_large_stage_is_not_snapshotted_for_the_sets_of_a_small_one():
    """Those are compacted."""
    some, large = {**FEW, "c": (0, 0)}, (10, 100_000)
    assert 0 not in bases(with_tiers(JOIN), *[{**some, "b": large}] * 9)[1:]
    assert 0 in bases(with_tiers(JOIN), *[{**some, "b": (1, 10)}] * 9)[1:]


def test_what_was_compacted_is_not_dead():
    """A merge that was made meanwhile has taken dead rows out."""
    job = with_tiers()
    bases(job, ALL, *[FEW] * 5)
    merged = Compacted(6, "a", compacted_id(0, 6), (1, 2, 3, 4, 5, 6), SetDigest(-6, 1000, 0))
    job.post(LineageCompacted(merged))
    assert bases(job, FEW) == [6]


def test_while_a_full_checkpoint_is_pending_none_is_full():
    """It was due by the newest that is complete, and so it would be once more."""
    job = with_tiers()
    job.state = replace(job.state, policy=replace(job.state.policy, max_concurrent=2))
    bases(job, ALL, *[FEW] * 5)
    first, second = job.trigger(70), job.trigger(80)
    pending = job.state.pending
    assert [pending[n].barrier.base_id for n in (first, second)] == [0, 6]


def test_rows_of_deleted_keys_are_not_most_of_a_state():
    """A million deletions of a state with one key left."""
    job = Job(full_from_rows=100)
    assert bases(job, *[{"a": (1_000_000, 0)}] * 3) == [0, 1, 2]
