"""Watermarks and lateness: the traps that others have met, and what holds for every stream.

The numbers are those of `time.md`, A2: what goes wrong elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.errors import ProtocolViolation
from absflow.protocol.source_time import (
    SourceTime,
    input_time,
    observe,
    partition_status,
    start_source,
)
from absflow.protocol.watermarks import (
    InputTime,
    StageTime,
    Watermark,
    WatermarkStatus,
    admit,
    arrive,
    combined,
    fired,
    later,
    resumed,
    start,
    unsettled,
    validate,
)

ACTIVE, IDLE, ENDED = WatermarkStatus.ACTIVE, WatermarkStatus.IDLE, WatermarkStatus.ENDED


def after(time: StageTime, *said: tuple[str, Watermark], **upto: int | None) -> StageTime:
    """These are read, then everything up to these epochs is admitted; without any, all of it."""
    for name, watermark in said:
        time = arrive(time, name, watermark)
    return admit(time, upto or dict.fromkeys(time.inputs))


def read(source: SourceTime, *rows: tuple[str, int]) -> tuple[SourceTime, list[bool]]:
    """Rows of partitions, in the order in which they are read, and which of them are late."""
    late = []
    for partition, time in rows:
        source, one = observe(source, partition, [time])
        late += one
    return source, late


def test_trap_1_a_partition_that_lags_loses_nothing() -> None:
    """Spark takes the greatest of all partitions; here each decides about its own rows."""
    source, late = read(start_source(10, ["0", "1"]), ("0", 1000), ("1", 5), ("0", 990), ("1", 6))
    assert late == [False, False, False, False]
    assert input_time(source) == InputTime(6 - 10 - 1, ACTIVE)
    _, late = read(source, ("0", 989), ("1", 7))
    assert late == [True, False]


def test_trap_2_what_says_nothing_is_idle_and_holds_nobody_up() -> None:
    """One partition of two, then both: the stage goes on, first by one, then to the greatest."""
    source, _ = read(start_source(0, ["0", "1"]), ("0", 100), ("1", 3))
    assert input_time(source).value == 2
    source = partition_status(source, ["1"])
    assert input_time(source) == InputTime(99, ACTIVE)
    assert input_time(partition_status(source, ["0", "1"])) == InputTime(99, IDLE)
    source, late = read(source, ("1", 4))  # back: on time by its own partition
    assert (late, input_time(source).value) == ([False], 3)


def test_trap_3_the_last_to_fall_idle_does_not_matter() -> None:
    """In whatever order the inputs fall idle, the stage comes to the same watermark."""
    values = {"a": 10, "b": 70, "c": 40}
    for order in (("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")):
        time = start(values)
        for name in order:
            time = after(time, (name, Watermark(1, values[name])))
        for name in order:
            time = after(time, (name, Watermark(1, None, IDLE)))
        assert (time.value, time.status) == (70, IDLE)


def test_trap_4_a_partition_that_has_brought_nothing_counts() -> None:
    """Else the first rows of a slow one would be late (FLINK-32828)."""
    source, _ = read(start_source(0, ["0", "1"]), ("0", 100))
    assert input_time(source).value is None
    time = after(start(["a", "b"]), ("a", Watermark(1, 100)))
    assert time.value is None


def test_trap_5_an_end_is_no_infinity() -> None:
    """It lets the others decide (FLINK-38477); when all have ended, whoever was ahead."""
    time = after(start(["a", "b"]), ("a", Watermark(1, 10)), ("b", Watermark(1, 50)))
    time = after(time, ("a", Watermark(2, None, ENDED)), a=1, b=1)
    assert time.value == 10  # it comes with barrier 2
    time = after(time, a=2, b=2)
    assert (time.value, time.status) == (50, ACTIVE)
    both = after(time, ("b", Watermark(3, 60)), ("b", Watermark(3, None, ENDED)))
    assert (both.value, both.status) == (60, ENDED)
    turned = after(time, ("b", Watermark(3, 60)))
    assert after(turned, ("b", Watermark(3, None, ENDED))) == both


def test_nothing_ends_with_a_stage_that_would_still_change() -> None:
    """It has timers left, or does not know the last of who is before it, or of its source."""
    sender = StageTime({"x": InputTime(9, ENDED)}, 9, 9)
    behind = StageTime({"a": InputTime(9, ENDED)}, 9, 9)
    assert not unsettled(sender, {}, ["x"])
    assert unsettled(StageTime({"x": InputTime(9)}, 9, 9), {}, ["x"])
    assert not unsettled(behind, {"a": sender}, [])
    assert unsettled(replace(behind, output=8), {"a": sender}, [])
    assert unsettled(StageTime({"a": InputTime(9)}, 9, 9), {"a": sender}, [])
    assert unsettled(StageTime({"a": InputTime(8, ENDED)}, 8, 8), {"a": sender}, [])


def test_trap_6_a_watermark_waits_with_the_rows_before_it() -> None:
    """A blocked input admits up to its barrier; what stands behind that waits."""
    time = start(["a"])
    said = [("a", Watermark(2, 90)), ("a", Watermark(1, 40))]  # rows of 1 and 2, then barrier 1
    time = after(time, *said, a=1)
    assert (time.value, [w.value for w in time.inputs["a"].waiting]) == (40, [90])
    assert after(time).value == 90


def test_trap_8_a_restore_goes_on_where_the_checkpoint_was() -> None:
    """Not anew, not with another's; what is in flight stands before the sender's watermark."""
    time = after(start(["x", "a"]), ("x", Watermark(3, 80)), ("a", Watermark(3, 30)))
    sender = StageTime({"y": InputTime(70)}, 70, 60)
    back = resumed(time, 3, {"a": sender})
    assert back.value == 30  # with which the rows in flight are looked at
    assert after(back, x=4, a=4).value == 60
    ended = resumed(replace(time, inputs={"x": InputTime(80, ENDED)}), 3, {})
    assert ended.inputs["x"] == InputTime(80, ACTIVE)


def test_traps_9_and_12_a_stage_says_what_its_timers_have_done() -> None:
    """A storm is done in pieces: what is said goes on with it, behind the timers that wait."""
    time = after(start(["a"]), ("a", Watermark(1, 100)))
    assert fired(time, None).output == 100
    time = fired(time, 40)
    assert (time.value, time.output) == (100, 39)  # what a timer at 40 emits is on time
    time = fired(time, 70)
    assert time.output == 69
    assert fired(time, 101).output == 100  # that one is not due
    with pytest.raises(ProtocolViolation, match="a stage that is at 100 says 101"):
        validate(time, replace(time, output=101))


def test_a_stage_whose_rows_are_older_says_so_much_less() -> None:
    """And has said all when it has said that; a greater delay takes nothing back."""
    time = fired(after(start(["a"], delay=30), ("a", Watermark(1, 100))), None)
    assert (time.value, time.output, time.settled) == (100, 70, True)
    held = fired(after(time, ("a", Watermark(1, 200))), 150)
    assert (held.output, held.settled) == (119, False)
    assert not unsettled(replace(time, inputs={"a": InputTime(100, ENDED)}), {}, ["a"])
    known = StageTime({"x": InputTime(70, ACTIVE)}, 70, 70)
    assert not unsettled(known, {"x": time}, [])
    assert resumed(known, 2, {"x": time}).inputs["x"].waiting == (Watermark(2, 70),)
    later = fired(after(replace(time, delay=50), ("a", Watermark(1, 110))), None)
    assert (later.output, later.settled) == (70, True)
    assert start(["a"], delay=30).settled


def test_trap_21_an_input_that_comes_back_holds_the_stage_but_never_takes_it_back() -> None:
    """The same for one that an upgrade adds."""
    time = after(start(["a", "b"]), ("a", Watermark(1, 100)), ("b", Watermark(1, None, IDLE)))
    assert time.value == 100
    time = after(time, ("b", Watermark(1, 20)), ("a", Watermark(1, 200)))
    assert time.value == 100
    assert after(time, ("b", Watermark(1, 150))).value == 150


def test_what_cannot_be_is_refused() -> None:
    """A row of another graph; a watermark that falls."""
    with pytest.raises(ProtocolViolation, match="names input 'c', but the stage has"):
        arrive(start(["a"]), "c", Watermark(1, 1))
    before = after(start(["a"]), ("a", Watermark(1, 10)))
    with pytest.raises(ProtocolViolation, match="of the stage falls from 10 to 9"):
        validate(before, StageTime(before.inputs, 9))
    with pytest.raises(ProtocolViolation, match="of input 'a' falls from 10 to None"):
        validate(before, StageTime({"a": InputTime()}, 10))


ROWS = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 60)), max_size=40)


@given(ROWS, st.integers(0, 20), st.lists(st.integers(1, 7), min_size=1))
def test_trap_17_lateness_does_not_depend_on_batches(
    rows: list[tuple[str, int]], delay: int, sizes: list[int]
) -> None:
    """Cut anywhere, with each batch's rows by partition: the same rows are late, and W the same."""
    whole, due = read(start_source(delay, "pqr"), *rows)
    source, found, begin, turn = start_source(delay, "pqr"), {}, 0, 0
    while begin < len(rows):
        batch = list(enumerate(rows))[begin : begin + sizes[turn % len(sizes)]]
        for partition in "rqp":  # partitions of a batch are packed by different tasks
            mine = [(n, time) for n, (p, time) in batch if p == partition]
            source, late = observe(source, partition, [time for _, time in mine])
            found |= dict(zip([n for n, _ in mine], late, strict=True))
        begin, turn = begin + len(batch), turn + 1
    assert [found[n] for n in range(len(rows))] == due
    assert source == whole


@given(ROWS, st.integers(0, 20))
def test_what_is_on_time_is_ahead_of_every_watermark_before_it(
    rows: list[tuple[str, int]], delay: int
) -> None:
    """So it is late nowhere: a stage has what was said before the row, and no more."""
    source = start_source(delay, "pqr")
    said: int | None = None
    for partition, time in rows:
        source, (late,) = observe(source, partition, [time])
        assert late or said is None or time > said
        now = input_time(source).value
        assert later(said, now) == now  # and the watermark never falls
        said = now


STATUSES = st.sampled_from([ACTIVE, IDLE, ENDED])
INPUTS = st.lists(st.builds(InputTime, st.none() | st.integers(0, 99), STATUSES), max_size=5)


@given(INPUTS, st.randoms())
def test_the_order_of_inputs_does_not_matter(inputs: list[InputTime], dice: object) -> None:
    """And what inputs say together is said by one of them, or by none."""
    turned = list(inputs)
    dice.shuffle(turned)  # type: ignore[attr-defined]
    assert combined(turned) == combined(inputs)
    assert combined(inputs) in {None, *(i.value for i in inputs)}
