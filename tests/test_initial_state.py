"""Initial state of a StatefulProcessor: from rows to what a job begins with. No JVM."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest
from processor_stage import INT, TTL_MS, Says, Stage

from absflow.columnar.expiry import TOUCHED, Expiry
from absflow.columnar.timers import Domain
from absflow.errors import ProcessError
from absflow.spark.worker import initial_rows as rooms
from absflow.spark.worker.initial_rows import initial_rows
from absflow.spark.worker.processor_timers import timer_ms

GIVEN = pa.schema([("first", pa.int64()), ("k", pa.string())])


class Begins(Says):
    """Adds up what it begins with, and notes what it is given."""

    def __init__(self, calls: list[Any], ttl: int | None = None, timer_ms: int | None = None):
        self.calls, self.ttl, self.timer_ms = calls, ttl, timer_ms

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", INT, self.ttl)
        self.list = handle.getListState("list", INT)

    def add(self, values):
        (before,) = self.total.get() or (0,)
        self.total.update((before + sum(values),))
        self.list.appendList([(value,) for value in values])

    def handleInitialState(self, key, initialState, timerValues):
        time = timerValues.getCurrentProcessingTimeInMs()
        if isinstance(initialState, tuple):
            values = [initialState.first]
        else:
            assert list(initialState.index) == list(range(len(initialState)))
            values = initialState["first"].tolist()
        self.calls.append((key, values, time))
        if values == [-1]:  # nothing is to be kept of it
            return
        self.add(values)
        if self.timer_ms is not None:
            self.handle.registerTimer(self.timer_ms)

    def says(self, _key, values, _times):
        self.add(values)
        return [value for (value,) in self.list.get()]

    def close(self):
        self.calls.append("closed")


def made(stage: Stage, *rows: tuple[str, int], now_ms: int = 7) -> list[dict[str, Any]]:
    """The state of rows that stand together by key, each a batch of Arrow."""
    batches = [pa.RecordBatch.from_pylist([{"first": v, "k": k}], GIVEN) for k, v in rows]
    function = initial_rows(stage.spec, stage.made.initial(), GIVEN, now_ms)
    return [row for batch in function(iter(batches)) for row in batch.to_pylist()]


ROWS = [("a", 1), ("a", 2), ("b", -1), ("c", 5)]


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("flush", [1, 2, 100])
def test_each_row_or_all_rows_of_a_key_at_once(monkeypatch, in_pandas: bool, flush: int) -> None:
    """As with Spark a Row each, or one frame; however the rows of a partition are cut."""
    monkeypatch.setattr(rooms, "_FLUSH_ROWS", flush)
    calls: list[Any] = []
    stage = Stage(Begins(calls), "processingtime", in_pandas=in_pandas)
    calls.clear()
    rows = made(stage, *ROWS)
    assert [(row["k"], row["total"], row["list"]) for row in rows] == [
        ("a", {"x": 3}, [{"x": 1}, {"x": 2}]),
        ("c", {"x": 5}, [{"x": 5}]),
    ]
    of_a = [(("a",), [1, 2], 7)] if in_pandas else [(("a",), [1], 7), (("a",), [2], 7)]
    assert calls == [*of_a, (("b",), [-1], 7), (("c",), [5], 7), "closed"]


def test_no_rows_are_no_state() -> None:
    calls: list[Any] = []
    stage = Stage(Begins(calls))
    calls.clear()
    assert made(stage) == []
    assert calls == []  # as with a task without rows


@pytest.mark.parametrize("mode", ["processingtime", "eventtime"])
def test_a_timer_is_a_part_of_it(mode: str) -> None:
    """Also one for a time that has come: it fires in the first micro-batch."""
    stage = Stage(Begins([], timer_ms=5), mode)
    column = "_event_timers" if mode == "eventtime" else "_processing_timers"
    (row,) = made(stage, ("a", 1))
    (timer,) = row[column]
    assert timer_ms(round(timer["time"].timestamp() * 1_000_000)) == 5


def test_times_to_live_begin_with_it() -> None:
    stage = Stage(Begins([], TTL_MS), "processingtime")
    (row,) = made(stage, ("a", 1), now_ms=70)
    assert row["total"] == {"x": 1, "_updated_ms": 70}


@pytest.mark.parametrize("domain", list(Domain))
def test_a_stage_whose_keys_expire_has_touched_them_then(domain: Domain) -> None:
    stage = Stage(Begins([]), "none")
    stage.spec = dataclasses.replace(
        stage.spec, expiry=Expiry(1_000, domain), state=stage.spec.state.append(TOUCHED)
    )
    (row,) = made(stage, ("a", 1), now_ms=70)
    assert row["_touched"].timestamp() * 1_000 == 70


def test_an_error_names_the_stage_and_the_key() -> None:
    class Fails(Begins):
        def handleInitialState(self, key, initialState, timerValues):
            if key == ("c",):
                raise RuntimeError("broken")

    stage = Stage(Fails([]))
    with pytest.raises(
        ProcessError, match=r"stage 's', input 'initial state', .*: broken; the first bad"
    ) as is_:
        made(stage, *ROWS)
    assert "{'k': 'c'}" in str(is_.value)
    assert "in handleInitialState" in str(is_.value)
