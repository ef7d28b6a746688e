"""The alignment machine: Flink's scenarios, one by one.

Names in brackets are those of Flink's tests (``AlignedCheckpointsTest`` and neighbours).
"""

import itertools

import pytest
from aligning import abort, barrier, discarded, end, ignored, play, taken

from absflow.protocol.alignment import (
    BarrierArrived,
    Discard,
    EndStage,
    Ignore,
    Reason,
    TakeSnapshot,
    run,
    start,
    step,
)
from absflow.protocol.alignment_state import Barrier, InputStatus, gate, status

OPEN, BLOCKED = InputStatus.OPEN, InputStatus.BLOCKED

# -- barriers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["a", "ab"])
def test_without_barriers_nothing_waits(inputs):
    """[testSingle/MultiChannelNoBarriers] A stage lets through what comes before barrier 1."""
    state, said = play(inputs)
    assert said == []
    assert [gate(state, name) for name in inputs] == [1] * len(inputs)


def test_an_open_input_admits_the_rows_behind_its_newest_barrier_only():
    """A channel can bring rows from behind barrier 4 before the barrier itself."""
    state, _ = play("ab", barrier("a", 3), barrier("b", 3), abort(5), barrier("a", 5))
    assert [gate(state, name) for name in "ab"] == [6, 4]


def test_an_ended_input_admits_everything():
    """Nothing can come between the rows it brought and its end."""
    state, _ = play("ab", barrier("a", 1), end("a"), end("b"))
    assert [gate(state, name) for name in "ab"] == [None, None]


def test_one_input_snapshots_at_each_barrier():
    """[testSingleChannelWithBarriers] One input is aligned as soon as its barrier is there."""
    state, said = play("a", *(barrier("a", n) for n in (1, 2, 5)))
    assert taken(said) == [1, 2, 5]
    assert (status(state, "a"), state.epoch) == (OPEN, 6)


def test_a_blocked_input_waits_for_the_others():
    """[testMultiChannelWithBarriers] Behind a barrier nothing passes until the rest have it."""
    state, said = play("abc", barrier("b", 1), barrier("a", 1))
    assert said == []
    assert [status(state, name) for name in "abc"] == [BLOCKED, BLOCKED, OPEN]
    assert [gate(state, name) for name in "abc"] == [1, 1, 1]
    state, said = step(state, barrier("c", 1))
    assert taken(said) == [1]
    assert [status(state, name) for name in "abc"] == [OPEN, OPEN, OPEN]
    assert [gate(state, name) for name in "abc"] == [2, 2, 2]


def test_a_fast_input_queues_its_later_barriers():
    """Unlike Flink, several checkpoints are in flight: barriers wait in order, none is dropped."""
    state, said = play("ab", barrier("a", 1), barrier("a", 2), barrier("a", 3))
    assert (said, status(state, "a"), gate(state, "a")) == ([], BLOCKED, 1)
    state, said = run(state, [barrier("b", 1), barrier("b", 2)])
    assert taken(said) == [1, 2]
    assert (status(state, "a"), status(state, "b")) == (BLOCKED, OPEN)
    assert (gate(state, "a"), gate(state, "b")) == (3, 3)


def test_the_barrier_travels_as_it_was_triggered():
    """Base and trigger time go through alignment unchanged, for the snapshot needs them."""
    full = Barrier(4, base_id=2, completed_id=3, triggered_ms=99)
    _, said = play("ab", BarrierArrived("a", full), BarrierArrived("b", full))
    assert said == [TakeSnapshot(full)]


def test_a_free_input_jumps_over_a_checkpoint():
    """[testMultiChannelJumpingOverCheckpoint] Barrier 2 where 1 was awaited gives 1 up."""
    state, said = play("ab", barrier("a", 1), barrier("b", 2))
    assert discarded(said) == [(1, Reason.SKIPPED)]
    assert (status(state, "a"), status(state, "b")) == (OPEN, BLOCKED)
    assert (gate(state, "a"), gate(state, "b")) == (2, 2)
    _, said = step(state, barrier("a", 2))
    assert taken(said) == [2]


def test_a_late_input_finds_the_checkpoint_skipped():
    """A third input that brings the skipped id does not block, and the id is given up once."""
    state, said = play("abc", barrier("a", 1), barrier("b", 2), barrier("c", 1))
    assert discarded(said) == [(1, Reason.SKIPPED)]
    assert status(state, "c") is OPEN


def test_an_input_past_an_id_never_brings_it():
    """Input a went past 1 with a dead barrier 2, so 1 is skipped when b brings it, not awaited.

    Found by the exhaustive walk: b waited until a's next barrier, and if a ended instead, a
    snapshot 1 was taken that held rows of a from behind its barrier 2.
    """
    state, said = play("ab", abort(2), barrier("a", 2), barrier("b", 1))
    assert discarded(said) == [(2, Reason.ABORTED), (1, Reason.SKIPPED)]
    assert status(state, "b") is OPEN
    _, said = step(state, end("a"))
    assert taken(said) == []


def test_lost_aborts_do_not_wedge_later_checkpoints():
    """[testMissingCancellationBarriers] Ids given up without word to the stage are passed over."""
    events = [barrier("a", 1), barrier("b", 3), barrier("a", 3), barrier("b", 7), barrier("a", 9)]
    state, said = play("ab", *events, barrier("b", 9))
    assert taken(said) == [3, 9]
    assert [n for n, _ in discarded(said)] == [1, 7]
    assert [(status(state, name), gate(state, name)) for name in "ab"] == [(OPEN, 10)] * 2


@pytest.mark.parametrize(
    ("events", "reasons"),
    [
        ([barrier("a", 1), barrier("a", 1)], [Reason.DUPLICATE]),
        ([barrier("a", 2), barrier("a", 1)], [Reason.LATE]),
        ([barrier("a", 1), barrier("b", 1), barrier("a", 1)], [Reason.LATE]),
        ([end("a"), barrier("a", 1)], [Reason.ENDED]),
        ([end("a"), end("a")], [Reason.DUPLICATE]),
        ([abort(1), abort(1)], [Reason.DUPLICATE]),
        ([barrier("a", 1), barrier("b", 1), abort(1)], [Reason.LATE]),
        ([abort(1), barrier("a", 1), barrier("b", 1), abort(1)], [Reason.LATE]),
        ([end("a"), end("b"), abort(1)], [Reason.LATE]),
    ],
)
def test_what_comes_twice_or_late_changes_nothing(events, reasons):
    """A repeated or outdated event is ignored, with the reason, and the state is the same."""
    before, _ = play("ab", *events[:-1])
    after, said = step(before, events[-1])
    assert (after, ignored(said)) == (before, reasons)


# -- ends ---------------------------------------------------------------------------------------


def test_alignment_starts_with_an_ended_input():
    """[testStartAlignmentWithClosedChannels] An input that ended before counts as aligned."""
    _, said = play("abc", end("b"), barrier("a", 1), barrier("c", 1))
    assert taken(said) == [1]


def test_an_end_completes_the_alignment():
    """[testTriggerCheckpointsWithEndOfPartition] The last awaited input may end instead."""
    _, said = play("abc", barrier("a", 1), barrier("b", 1), end("c"))
    assert taken(said) == [1]


def test_an_end_while_others_are_awaited_changes_nothing():
    """[testEndOfStreamWhileCheckpoint] The alignment goes on without the ended input."""
    state, said = play("abc", barrier("a", 1), end("b"))
    assert (said, status(state, "a"), gate(state, "a")) == ([], BLOCKED, 1)


def test_barrier_and_end_of_one_input_count_once():
    """[testDeduplicateChannelsWithBothBarrierAndEndOfPartition] Barrier + END is one input."""
    state, said = play("abc", barrier("a", 1), end("a"), barrier("b", 1))
    assert taken(said) == []
    assert status(state, "a") is BLOCKED
    state, said = step(state, barrier("c", 1))
    assert taken(said) == [1]
    assert status(state, "a") is InputStatus.ENDED


def test_checkpoints_go_on_after_an_end():
    """[testTriggerCheckpointsAfterReceivedEndOfPartition] The live inputs alone decide."""
    _, said = play("ab", barrier("a", 1), end("a"), barrier("b", 1), barrier("b", 2))
    assert taken(said) == [1, 2]


def test_several_queued_checkpoints_end_with_the_slow_input():
    """When the only other input ends, everything that waits on the fast one is taken in order."""
    state, said = play("ab", barrier("a", 1), barrier("a", 2), end("a"), end("b"))
    assert taken(said) == [1, 2]
    assert said[-1] == EndStage()
    assert state.ended


def test_a_stage_ends_once():
    """EndStage is said when the last input ends, after its snapshots, and never again."""
    state, said = play("ab", end("a"), barrier("b", 1), end("b"))
    assert [type(a) for a in said] == [TakeSnapshot, EndStage]
    assert step(state, end("a"))[1] == (Ignore(end("a"), Reason.DUPLICATE),)


# -- aborts -------------------------------------------------------------------------------------


def test_an_abort_releases_what_is_blocked():
    """[testMultiChannelAbortCheckpoint] Blocked inputs go on; the id is given up exactly once."""
    state, said = play("abc", barrier("a", 1), barrier("b", 1), abort(1))
    assert discarded(said) == [(1, Reason.ABORTED)]
    assert [(status(state, name), gate(state, name)) for name in "abc"] == [
        (OPEN, 2),
        (OPEN, 2),
        (OPEN, 1),
    ]
    _, said = run(state, [barrier("c", 1), *(barrier(name, 2) for name in "abc")])
    assert taken(said) == [2]


def test_an_abort_lets_the_next_barrier_block():
    """The barrier that waited behind a dead one takes its place at the head."""
    state, _ = play("ab", barrier("a", 1), barrier("a", 2), abort(1))
    assert gate(state, "a") == 2


def test_an_abort_in_the_middle_of_a_queue():
    """An id that is not yet at the head dies in its place, and its neighbours are untouched."""
    events = [barrier("a", 1), barrier("a", 2), barrier("a", 3), abort(2)]
    _, said = play("ab", *events, barrier("b", 1), barrier("b", 2), barrier("b", 3))
    assert taken(said) == [1, 3]


def test_a_dead_barrier_is_not_forwarded():
    """[testAbortOnCanceledBarriers] After its abort, barriers of an id pass without a word."""
    state, said = play("ab", abort(1), barrier("a", 1), barrier("b", 1))
    assert said == [Discard(1, Reason.ABORTED)]
    assert state.epoch == 1
    assert state.dead == frozenset()


def test_an_abort_below_a_taken_snapshot_is_late():
    """[testIgnoreCancelBarrierIfCheckpointSubsumed] What is past cannot be given up."""
    _, said = play("ab", barrier("a", 2), barrier("b", 2), abort(1), abort(2))
    assert ignored(said) == [Reason.LATE, Reason.LATE]


def test_dead_ids_are_forgotten():
    """A thousand aborts leave nothing behind once every input has gone past them."""
    aborts = [abort(n) for n in range(1, 1001)]
    state, _ = play("ab", *aborts, barrier("a", 1001), barrier("b", 1001))
    assert state.dead == frozenset()


NOT_TAKEN_YET = "one input waits for the other, and aligned means no snapshot before both are there"
SEVERAL = "several checkpoints may be in flight, so an abort of 20 says nothing about 10"
QUEUED = "several checkpoints may be in flight, so 20 waits behind 10 instead of aborting it"

# Rows of Flink's UnalignedCheckpointsCancellationTest: events on the first input, number of inputs,
# Flink's answer (taken, aborted), ours, and why if it differs.
CANCELLATIONS = [
    ("c10 c20", 1, (False, True), (False, True), ""),
    ("c20 c10", 1, (False, True), (False, True), ""),
    ("c10 b10", 1, (False, True), (False, True), ""),
    ("c10 b20", 1, (True, True), (True, True), ""),
    ("c20 b10", 1, (False, True), (True, True), SEVERAL),
    ("b10 b10", 1, (True, False), (True, False), ""),
    ("b10 b20", 1, (True, False), (True, False), ""),
    ("b10 b20", 2, (True, True), (False, False), f"{NOT_TAKEN_YET}; {QUEUED}"),
    ("b20 b10", 1, (True, False), (True, False), ""),
    ("b10 c10", 1, (True, False), (True, False), ""),
    ("b10 c10", 2, (True, True), (False, True), NOT_TAKEN_YET),
    ("b10 c20", 1, (True, True), (True, True), ""),
    ("b20 c10", 1, (True, False), (True, False), ""),
]


@pytest.mark.parametrize(("events", "inputs", "flink", "ours", "why"), CANCELLATIONS)
def test_cancellation_truth_table(events, inputs, flink, ours, why):
    """Each of Flink's 13 orders of barrier and abort has its answer; a different one has a reason.

    Flink's handler is unaligned there: it snapshots at the first barrier.
    """
    kinds = {"b": lambda n: barrier("a", n), "c": abort}
    _, said = play("abc"[:inputs], *(kinds[e[0]](int(e[1:])) for e in events.split()))
    assert (bool(taken(said)), bool(discarded(said))) == ours
    assert (ours == flink) is (why == "")


# -- starts and orders -----------------------------------------------------------------------------


def test_restored_stages_begin_behind_their_checkpoint():
    """After a restore from 7, older barriers are late, and the first epoch is 8."""
    state = start("ab", last=7)
    after, said = step(state, barrier("a", 7))
    assert (after, ignored(said), state.epoch) == (state, [Reason.LATE], 8)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_the_order_of_the_inputs_does_not_matter(order):
    """Whichever input brings 1 first, 1 is taken when the last one has brought it."""
    _, said = play("abc", *(barrier(name, 1) for name in order), *(barrier(n, 2) for n in order))
    assert taken(said) == [1, 2]
