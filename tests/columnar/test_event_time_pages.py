"""What a packing task says of event time: WATERMARK pages of sources and of channels, late rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.event_time import RootTime, range_heads
from absflow.columnar.packing import Packer
from absflow.columnar.pages import (
    TIME_TYPE,
    Page,
    PageKind,
    SentTime,
    channel_schema,
    control_rows,
    decode,
    encode,
    page_batch,
    pages_of,
    unpack,
)
from absflow.errors import ProcessError
from absflow.protocol import event_time, watermarks
from absflow.protocol.event_time import EventTime
from absflow.protocol.watermarks import InputTime, StageTime, Watermark

ROWS = pa.schema([("k", pa.string()), ("p", pa.int32()), ("ts", TIME_TYPE)])
GROUPS = 8


def source(time: RootTime, ranges: int = 2) -> Packer:
    heads = tuple(range_heads(GROUPS, ranges))
    return Packer("rows", ROWS, ("k",), GROUPS, True, event_time=time, timed=True, heads=heads)


def rows(*given: tuple[str, int, int | None]) -> list[pa.RecordBatch]:
    columns: list[Sequence[Any]] = list(zip(*given, strict=True))
    times = pa.array(columns[2], pa.int64()).cast(TIME_TYPE)
    arrays = [pa.array(columns[0]), pa.array(columns[1], pa.int32()), times]
    return [pa.RecordBatch.from_arrays(arrays, schema=ROWS)]


def packed(packer: Packer, batches: list[pa.RecordBatch], before: EventTime) -> list[Page]:
    return [page for made in packer.pack(batches, 0, before) for page in pages_of(made)]


def knowing(delay: int, **newest: int) -> EventTime:
    """A stage whose source has brought these times, by partition."""
    time = event_time.start(["rows"], {"rows": delay})
    return event_time.observed(time, {"rows": 1}, {"rows": newest})


def of_kind(pages: list[Page], kind: PageKind) -> list[Page]:
    return [page for page in pages if page.kind is kind]


def data_of(pages: list[Page]) -> set[tuple[str, int]]:
    tables = [decode(page.payload, ROWS, "") for page in of_kind(pages, PageKind.DATA)]
    return {(r["k"], r["ts"].microsecond) for t in tables for r in t.to_pylist()}


def test_each_range_is_sent_what_each_partition_has_brought() -> None:
    packer = source(RootTime("ts", 0, ("p",), ordered=True))
    pages = packed(packer, rows(("a", 0, 5), ("b", 1, 9), ("c", 0, 7)), knowing(0))
    marks = of_kind(pages, PageKind.WATERMARK)
    assert [page.key_group for page in marks] == [0, 4]
    assert {page.payload for page in marks} == {
        json.dumps({"newest": {"0": 7, "1": 9}, "late": 0}).encode()
    }


def test_a_task_without_rows_says_nothing() -> None:
    assert packed(source(RootTime("ts", 0)), [], knowing(0)) == []


def test_a_row_is_late_by_the_rows_before_it_in_its_partition() -> None:
    packer = source(RootTime("ts", 10, ("p",), ordered=True, late="table"))
    given = rows(("a", 0, 100), ("b", 0, 90), ("c", 0, 89), ("d", 1, 3), ("e", 0, 99))
    pages = packed(packer, given, knowing(10))
    assert data_of(pages) == {("a", 100), ("b", 90), ("d", 3), ("e", 99)}
    (late,) = of_kind(pages, PageKind.LATE)
    assert [row["k"] for row in decode(late.payload, ROWS, "").to_pylist()] == ["c"]
    assert json.loads(of_kind(pages, PageKind.WATERMARK)[0].payload)["late"] == 1


def test_without_an_order_the_batch_before_decides() -> None:
    """Its rows may come in any order, and a replay must say the same."""
    packer = source(RootTime("ts", 10, ("p",), late="drop"))
    given = rows(("a", 0, 1_000), ("b", 0, 90), ("c", 0, 89))
    pages = packed(packer, given, knowing(10, **{"0": 100}))
    assert data_of(pages) == {("a", 1_000), ("b", 90)}


def test_what_is_not_behind_the_stages_watermark_is_late() -> None:
    """It is of a partition that is new, or was idle: nothing else can be."""
    packer = source(RootTime("ts", 0, ("p",), ordered=True, late="drop"))
    assert data_of(packed(packer, rows(("a", 7, 99), ("b", 7, 100)), knowing(0, **{"0": 100}))) == {
        ("b", 100)
    }


def test_late_rows_may_be_marked_or_be_an_error() -> None:
    given = rows(("a", 0, 100), ("b", 0, 1))
    marked = source(RootTime("ts", 0, ordered=True, late="process"))
    schema = ROWS.append(pa.field("_late", pa.bool_()))
    seen = {
        (row["k"], row["_late"])
        for page in of_kind(packed(marked, given, knowing(0)), PageKind.DATA)
        for row in decode(page.payload, schema, "").to_pylist()
    }
    assert seen == {("a", False), ("b", True)}
    failing = source(RootTime("ts", 0, ordered=True, late="fail"))
    with pytest.raises(ProcessError, match="source 'rows': 1 rows come late, behind the watermark"):
        packed(failing, given, knowing(0))


def test_a_row_without_event_time_is_an_error_that_shows_it() -> None:
    with pytest.raises(ProcessError, match=r"'ts' is null in \{'k': 'b', 'p': 3, 'ts': None\}"):
        packed(source(RootTime("ts", 0)), rows(("a", 0, 1), ("b", 3, None)), knowing(0))


def sent(*given: tuple[int, int | None]) -> list[pa.RecordBatch]:
    """Rows of a channel: epoch, and what their sender had said before their batch."""
    made = []
    for epoch, watermark in given:
        out = pa.record_batch(
            [pa.array(["a"]), pa.array([1], pa.int32()), pa.nulls(1, TIME_TYPE)], schema=ROWS
        )
        page = Page(0, PageKind.DATA, checkpoint_id=epoch, rows=1, payload=encode(out))
        made += list(unpack([page_batch([page])], ROWS, 3, SentTime(watermark)))
    return made


def reader() -> Packer:
    heads = tuple(range_heads(GROUPS, 2))
    return Packer("a", ROWS, ("k",), GROUPS, False, timed=True, heads=heads)


def test_trap_7_a_row_says_what_its_sender_had_said_before_the_batch() -> None:
    """So a reader that has one file of a commit, and not the other, has admitted too little.

    Each epoch has its own, for rows of a later one may be held back.
    """
    assert sent((1, 50))[0].schema == channel_schema(ROWS, timed=True)
    before = EventTime(StageTime({"a": InputTime(40)}, 40, 40))
    marks = of_kind(packed(reader(), sent((1, 50), (1, 45), (2, 60)), before), PageKind.WATERMARK)
    said = [(page.key_group, page.checkpoint_id, json.loads(page.payload)) for page in marks]
    assert said == [
        (head, epoch, {"value": value, "status": "active"})
        for epoch, value in ((1, 50), (2, 60))
        for head in (0, 4)
    ]


def test_what_the_stage_knows_costs_no_page() -> None:
    waiting = InputTime(40, waiting=(Watermark(1, 50),))
    before = EventTime(StageTime({"a": waiting}, 40, 40))
    assert of_kind(packed(reader(), sent((1, 50), (2, 50)), before), PageKind.WATERMARK) == []
    assert of_kind(packed(reader(), sent((1, None)), before), PageKind.WATERMARK) == []


def test_a_barrier_carries_what_its_sender_has_there() -> None:
    payload = json.dumps({"value": 70, "status": "idle"}).encode()
    barrier = Page(0, PageKind.BARRIER, checkpoint_id=5, payload=payload)
    table = control_rows([barrier], ROWS, 3, timed=True)
    before = EventTime(StageTime({"a": InputTime()}))
    pages = packed(reader(), table.to_batches(), before)
    assert [page.key_group for page in pages] == list(range(GROUPS))
    assert {(page.kind, page.checkpoint_id, page.payload) for page in pages} == {
        (PageKind.BARRIER, 5, payload)
    }


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(0, 20),
    st.lists(st.integers(1, 7), min_size=1, max_size=9),
)
def test_trap_17_the_same_rows_are_late_wherever_batches_are_cut(
    given_rows: list[tuple[int, int]], delay: int, sizes: list[int]
) -> None:
    """As after a restore, which cuts others: the rows before it in its partition decide."""
    packer = source(RootTime("ts", delay, ("p",), ordered=True, late="drop"))
    named = [(f"r{number}", p, ts) for number, (p, ts) in enumerate(given_rows)]
    begun = event_time.with_partitions(knowing(delay), {"rows": ["0", "1", "2"]})
    whole = data_of(packed(packer, rows(*named), begun))
    found: set[tuple[str, int]] = set()
    before, begin, turn = begun, 0, 0
    while begin < len(named):
        part = named[begin : begin + sizes[turn % len(sizes)]]
        begin, turn = begin + len(part), turn + 1
        pages = packed(packer, rows(*part), before)
        found |= data_of(pages)
        newest = json.loads(of_kind(pages, PageKind.WATERMARK)[0].payload)["newest"]
        before = event_time.observed(before, {"rows": 1}, {"rows": newest})
        admitted = watermarks.admit(before.stage, {"rows": None})
        before = replace(before, stage=watermarks.fired(admitted, None))
    assert found == whole
