"""Spark's StatefulProcessor classes as functions of a stage, by Spark's rules. No JVM."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_stage import INT, TEXT, TTL_MS, Says, Stage, Wide, columns
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    Row,
)

from absflow.columnar.clocks import moved
from absflow.spark.worker.frames import output_of
from absflow.spark.worker.plain_rows import checked_rows, table_of_rows


class Everything(Says):
    """Does operations that are handed to it with the rows, by number."""

    def __init__(self, operations: list[tuple[str, Any]], ttl: int | None) -> None:
        self.operations, self.ttl = operations, ttl

    def init(self, handle):
        self.value = handle.getValueState("value", INT, self.ttl)
        self.list = handle.getListState("list", TEXT, self.ttl)
        self.map = handle.getMapState("map", TEXT, INT, self.ttl)

    def says(self, _key, values, _times):
        return [self.do(*self.operations[number]) for number in values]

    def do(self, name: str, given: Any) -> Any:
        if name == "value update":
            self.value.update((given,))
        elif name == "list put":
            self.list.put([(text,) for text in given])
        elif name == "list append":
            self.list.appendList([(text,) for text in given])
        elif name == "list append one":
            self.list.appendValue((given,))
        elif name == "map update":
            self.map.updateValue((given[0],), (given[1],))
        elif name == "map remove":
            self.map.removeKey((given,))
        elif name == "clear":
            getattr(self, given).clear()
        else:
            return (
                self.value.get(),
                list(self.list.get()),
                list(self.map.iterator()),
                [self.value.exists(), self.list.exists(), self.map.exists()],
                self.map.getValue(("a",)),
                self.map.containsKey(("b",)),
                list(self.map.keys()),
                list(self.map.values()),
            )
        return None


class Model:
    """What a key has, as plain values with the time of their update."""

    def __init__(self, ttl: int | None) -> None:
        self.ttl = ttl
        self.value: tuple[int | None, int] | None = None
        self.list: list[tuple[str, int]] = []
        self.map: dict[str, tuple[int, int]] = {}

    def do(self, name: str, given: Any, now: int) -> Any:
        self.expire(now)
        if name == "value update":
            self.value = (given, now)
        elif name == "list put":
            self.list = [(text, now) for text in given]
        elif name == "list append":
            self.list += [(text, now) for text in given]
        elif name == "list append one":
            self.list.append((given, now))
        elif name == "map update":
            self.map[given[0]] = (given[1], now)
        elif name == "map remove":
            self.map.pop(given, None)
        elif name == "clear":
            setattr(self, given, {"value": None, "list": [], "map": {}}[given])
        else:
            entries = [((key,), (value,)) for key, (value, _) in self.map.items()]
            found = dict(entries).get(("a",))
            return (
                self.value and self.value[:1],
                [(text,) for text, _ in self.list],
                entries,
                [self.value is not None, bool(self.list), bool(self.map)],
                None if found is None else Row(x=found[0]),
                "b" in self.map,
                [key for key, _ in entries],
                [value for _, value in entries],
            )
        return None

    def expire(self, now: int) -> None:
        if self.ttl is None:
            return
        if self.value is not None and self.value[1] + self.ttl <= now:
            self.value = None
        self.list = [row for row in self.list if row[1] + self.ttl > now]
        self.map = {key: row for key, row in self.map.items() if row[1] + self.ttl > now}

    @property
    def empty(self) -> bool:
        return self.value is None and not self.list and not self.map


NUMBERS = st.none() | st.integers(-(2**31), 2**31 - 1)
NAMES = st.sampled_from("abc")
OPERATIONS = st.one_of(
    st.tuples(st.just("value update"), NUMBERS),
    st.tuples(st.just("list put"), st.lists(NAMES, max_size=3)),
    st.tuples(st.just("list append"), st.lists(NAMES, max_size=3)),
    st.tuples(st.just("list append one"), NAMES),
    st.tuples(st.just("map update"), st.tuples(NAMES, NUMBERS)),
    st.tuples(st.just("map remove"), NAMES),
    st.tuples(st.just("clear"), st.sampled_from(["value", "list", "map"])),
    st.tuples(st.just("look"), st.none()),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, TTL_MS),
        st.lists(st.tuples(st.sampled_from(["k1", "k2", "k3"]), OPERATIONS), max_size=6),
    ),
    max_size=6,
)


@given(STEPS, st.sampled_from([None, TTL_MS]))
@settings(max_examples=150, deadline=None)
def test_state_is_what_a_dict_would_be(steps: Any, ttl: int | None) -> None:
    """Over random operations in random micro-batches; a key with nothing left is gone."""
    operations = [operation for _, of_batch in steps for _, operation in of_batch]
    stage = Stage(Everything(operations, ttl), "none" if ttl is None else "processingtime")
    models: dict[str, Model] = {}
    now, number = 1_000, 0
    for waited, of_batch in steps:
        now += waited
        rows, due = [], []
        for key, operation in of_batch:
            rows.append((key, 0, number))
            due.append((key, models.setdefault(key, Model(ttl)).do(*operation, now)))
            number += 1
        found = dict(stage.batch(*rows, now_ms=now))
        for key, text in found.items():
            assert text == repr([said for of_key, said in due if of_key == key])
        touched = {key for key, _ in of_batch}
        kept = {row["k"] for row in stage.rows_of_state()}
        assert kept & touched == {key for key in touched if not models[key].empty}


def test_state_in_columns_that_sql_can_read() -> None:
    operations = [
        ("value update", 7),
        ("list put", ["a", "b"]),
        ("map update", ("a", 1)),
    ]
    stage = Stage(Everything(operations, None))
    stage.batch(*(("k", 0, number) for number in range(3)))
    (row,) = stage.rows_of_state()
    assert row["value"] == {"x": 7}
    assert row["list"] == [{"s": "a"}, {"s": "b"}]
    assert row["map"] == [{"key": {"s": "a"}, "value": {"x": 1}}]


def test_another_time_to_live_counts_at_once() -> None:
    """For values carry when they were written, not when they end."""
    stage = Stage(Everything([("value update", 7), ("look", None)], 1_000), "processingtime")
    stage.batch(("k", 0, 0), now_ms=1_000)
    shorter = Stage(Everything([("value update", 7), ("look", None)], 50), "processingtime")
    shorter.stored = stage.stored
    (text,) = shorter.texts(("k", 0, 1), now_ms=1_050)
    assert text.startswith("[(None, ")
    assert stage.texts(("k", 0, 1), now_ms=1_050)[0].startswith("[((7,), ")


def test_a_restore_that_moves_clocks_moves_times_to_live() -> None:
    """Of values, of elements and of entries; nothing else of them changes."""
    kept = [("value update", 7), ("list append", ["a", "b"]), ("map update", ("c", 1))]
    stage = Stage(Everything(kept, TTL_MS), "processingtime")
    stage.batch(*(("k", 0, number) for number in range(3)), ("other", 0, 1), now_ms=1_000)
    rows = stage.rows_of_state()
    table = pa.Table.from_pylist(rows, pa.schema([("k", pa.string()), *stage.spec.state]))
    later = moved(table, 5_000, touched=False).to_pylist()
    plain = {name: rows[0][name] for name in later[0]}
    assert later[0] == plain | {
        "value": {"x": 7, "_updated_ms": 1_005},
        "list": [{"s": "a", "_updated_ms": 1_005}, {"s": "b", "_updated_ms": 1_005}],
        "map": [{"key": {"s": "c"}, "value": {"x": 1}, "_updated_ms": 1_005}],
    }
    assert (later[1]["value"], later[1]["map"]) == (None, None)


def test_values_come_back_as_from_spark() -> None:
    """An integer in a column of text is text, a numpy number one of Python's, a struct a Row."""
    now = pd.Timestamp("2026-01-02 03:04:05.000678").to_pydatetime()
    given_row = (1.5, 5, pd.Series([7]).iloc[0], now, [1, None], {"a": 1}, (3,))
    stage = Stage(Wide(given_row))
    assert stage.texts(("k", 0, 0)) == ["None"]
    (found,) = stage.texts(("k", 0, 0))
    assert found == repr((1.5, "5", 7, now, [1, None], {"a": 1}, Row(x=3)))


def test_what_a_processor_does_to_a_list_of_its_own_is_not_state() -> None:
    class Keeps(Says):
        def init(self, handle):
            self.value = handle.getValueState("value", columns(a=ArrayType(IntegerType())))

        def says(self, _key, _values, _times):
            mine = [1]
            self.value.update((mine,))
            mine.append(2)
            self.value.get()[0].append(3)
            return self.value.get()

    stage = Stage(Keeps())
    assert stage.texts(("k", 0, 0)) == ["([1],)"]
    assert stage.rows_of_state()[0]["value"] == {"a": [1]}


def test_frames_have_the_numbers_that_spark_gives() -> None:
    """Python's: an int is int64 whatever it was, a null makes floats of its own key's alone."""
    seen = {}

    class Looks(StatefulProcessor):
        def init(self, handle):
            pass

        def handleInputRows(self, key, rows, timerValues):
            (frame,) = rows
            seen[key] = (str(frame["v"].dtype), str(frame["ts"].dtype), list(frame.index))
            yield pd.DataFrame({"k": [key[0]], "what": ["-"]})

    stage = Stage(Looks(), in_pandas=True)
    assert stage.batch(("a", 1, 1), ("b", 1, None), ("a", 2, 3)) == [("a", "-"), ("b", "-")]
    assert seen == {
        ("a",): ("int64", "datetime64[ns]", [0, 1]),
        ("b",): ("float64", "datetime64[ns]", [0]),
    }


def test_a_processor_is_initialised_once_and_closed_at_the_end() -> None:
    called = []

    class Counts(Everything):
        def init(self, handle):
            called.append("init")
            super().init(handle)

        def close(self):
            called.append("close")

    stage = Stage(Counts([("look", None)], None))
    called.clear()
    stage.batch(("a", 0, 0), ("b", 0, 0))
    stage.batch(("a", 0, 0))
    stage.made.close()
    stage.made.close()
    assert called == ["init", "close"]


def test_a_variable_that_init_deletes_is_no_column() -> None:
    """And to use it is Spark's error."""

    class Deletes(Says):
        def init(self, handle):
            self.kept = handle.getValueState("kept", INT)
            self.gone = handle.getValueState("gone", INT)
            handle.deleteIfExists("gone")
            handle.deleteIfExists("never")

        def says(self, _key, _values, _times):
            self.kept.update((1,))
            with pytest.raises(PySparkRuntimeError, match="Error checking value state exists"):
                self.gone.exists()

    stage = Stage(Deletes())
    stage.batch(("a", 0, 0))
    assert stage.spec.state.names == ["kept"]


def test_a_processor_without_state_keeps_no_key() -> None:
    class Nothing(Says):
        def init(self, handle):
            pass

        def says(self, _key, values, _times):
            return values

    stage = Stage(Nothing())
    assert stage.texts(("a", 0, 1), ("a", 0, 2)) == ["[1, 2]"]
    assert stage.rows_of_state() == []


def test_iterators_of_a_list_do_not_disturb_each_other() -> None:
    """Each has the list as it was when it was asked for."""

    class Iterates(Says):
        def init(self, handle):
            self.list = handle.getListState("list", INT)

        def says(self, _key, _values, _times):
            self.list.put([(1,), (2,)])
            first, seen = self.list.get(), []
            seen.append(next(first))
            second = self.list.get()
            self.list.appendValue((3,))
            return [*seen, next(second), *first, *second, list(self.list.get())]

    stage = Stage(Iterates())
    assert stage.texts(("k", 0, 0)) == ["[(1,), (1,), (2,), (2,), [(1,), (2,), (3,)]]"]


def test_a_text_of_one_letter_is_a_key_of_one_column() -> None:
    """Spark goes through what it is given."""

    class Letters(Says):
        def init(self, handle):
            self.map = handle.getMapState("map", TEXT, INT)

        def says(self, _key, _values, _times):
            self.map.updateValue("a", (1,))
            return (self.map.containsKey("a"), self.map.getValue(("a",)), list(self.map.keys()))

    assert Stage(Letters()).texts(("k", 0, 0)) == ["(True, Row(x=1), [('a',)])"]


@pytest.mark.parametrize("of", [Row, dict])
def test_what_is_emitted_may_hold_structs_lists_and_maps(of: Any) -> None:
    """As Rows or dicts, in Rows and in frames."""
    inner = pa.struct([("n", pa.int32()), ("m", pa.map_(pa.string(), pa.int64()))])
    schema = pa.schema([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner)), ("s", inner)])
    values = [of(n=1, m={"x": 2}), of(n=None, m={})]
    emitted = {"l": values, "m": {"a": values[0]}, "s": values[1]}
    rows = list(checked_rows([Row(**emitted)], schema))
    table = table_of_rows(rows, schema, "UTC")
    assert table is not None
    one, other = {"n": 1, "m": [("x", 2)]}, {"n": None, "m": []}
    assert table.to_pylist() == [{"l": [one, other], "m": [("a", one)], "s": other}]
    frame = pd.DataFrame({name: [value] for name, value in emitted.items()})
    assert output_of([frame, frame], schema, "UTC") == pa.concat_tables([table, table])
