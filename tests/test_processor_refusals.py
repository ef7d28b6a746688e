"""What a StatefulProcessor cannot ask for, keep or emit, refused in words. No JVM."""

from __future__ import annotations

from typing import Any

import pytest
from processor_stage import INT, TEXT, Says, Stage, Wide, columns, no_ddl
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    Row,
    StructType,
)

from absflow.errors import GraphError, ProcessError, ResultError
from absflow.spark.worker.processor_init import asked_variables


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((1, "s", 2.5, None, None, None, None), "2.5 in column 'n', but an integer"),
        ((1, "s", "x", None, None, None, None), "returned a value that does not fit: .*'x'"),
        ((1, "s", 2**70, None, None, None, None), "returned a value that does not fit"),
        ((1, "s"), r"value state 'value' was given the value .* tuple of 7 \(d, s, n"),
        (5, r"was given the value 5, but a tuple of 7"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(wrong: Any, words: str) -> None:
    """With the stage, the key and what was expected; Spark 4.2 hangs on the second."""
    stage = Stage(Wide(wrong))
    with pytest.raises((ProcessError, ResultError), match=words) as raised:
        stage.batch(("k", 0, 0))
    assert "stage 's'" in str(raised.value)
    assert "{'k': 'k'}" in str(raised.value)
    assert not stage.stored


class Asks(Says):
    """Asks for something in init, or later."""

    def __init__(self, init: Any, says: Any = None) -> None:
        self.asks, self.asks_later = init, says

    def init(self, handle):
        self.handle = handle
        self.asks(handle)

    def says(self, *_):
        return self.asks_later(self)


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (lambda h: (h.getValueState("a", INT), h.getListState("a", INT)), "twice for the state"),
        (lambda h: h.getValueState("a", StructType()), "value state 'a' has no column"),
        (lambda h: h.getMapState("m", columns(a=ArrayType(IntegerType())), INT), "array<int>"),
        (lambda h: h.getValueState("a", INT, 50), "a time to live, which is of processing time"),
        (lambda h: h.getValueState("a", INT, -1), "time to live -1, but ms are expected"),
        (lambda h: h.registerTimer(5), "the stage has no timers; declare stage"),
        (lambda h: h.getValueState("a", INT).exists(), "'a' was used outside of a key's call"),
        (lambda h: h.getQueryInfo(), "no attribute 'getQueryInfo'"),
    ],
)
def test_what_init_cannot_ask_for_is_refused_before_anything_runs(asks: Any, words: str) -> None:
    with pytest.raises(GraphError, match=f"stage 's': .*{words}"):
        asked_variables("s", Asks(asks), "none", no_ddl)


def test_state_is_asked_for_in_init_only() -> None:
    later = Asks(lambda h: None, lambda self: self.handle.getValueState("late", INT))
    with pytest.raises(ProcessError, match="getValueState was called outside of init"):
        Stage(later).batch(("k", 0, 0))


def test_workers_ask_for_what_the_driver_has_seen() -> None:
    schemas = [INT, TEXT]
    differs = Asks(lambda h: h.getValueState("a", schemas[0]), lambda self: None)
    stage = Stage(differs)
    schemas.reverse()
    with pytest.raises(ProcessError, match="it must ask for the same everywhere"):
        stage.batch(("k", 0, 0))


@pytest.mark.parametrize(
    ("emits", "words"),
    [
        (lambda k: [(k, "x")], "a Row with names is expected"),
        (lambda k: [Row(k=k, other="x")], r"columns \['k', 'other'\], but \['k', 'what'\]"),
        (lambda k: Row(k=k, what="x"), "returned Row, but an iterable"),
        (lambda k: None, "returned NoneType, but an iterable"),
    ],
)
def test_what_is_no_row_of_the_output_is_refused(emits: Any, words: str) -> None:
    class Emits(Asks):
        def handleInputRows(self, key, rows, timerValues):
            return emits(key[0])

    with pytest.raises(ResultError, match=words):
        Stage(Emits(lambda h: None)).batch(("k", 0, 0))


def test_null_is_refused_where_the_schema_says_so() -> None:
    """Though the column of the state is nullable, for a key may have no state."""
    schema = StructType().add("x", IntegerType(), nullable=False)

    class Keeps(Says):
        def init(self, handle):
            self.value = handle.getValueState("value", schema)

        def says(self, _key, values, _times):
            self.value.update((values[0],))

    stage = Stage(Keeps())
    assert stage.texts(("a", 0, 1)) == ["None"]
    with pytest.raises(ResultError, match="'value' was given null for 'x', which is not nullable"):
        stage.batch(("a", 0, None))
