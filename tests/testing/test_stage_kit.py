"""A stage under test: every form of function, barriers, restores and time, without Spark."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kit_cases import (
    Counter,
    at,
    count,
    count_pandas,
    number,
    per_key,
    processor,
    stage,
    windows,
)

import absflow
from absflow.errors import GraphError, NotFoundError, ProcessError, ResultError
from absflow.testing import (
    BARRIER,
    BATCH,
    END,
    RESTORE,
    AdvanceWatermark,
    BarrierOn,
    Input,
    Stage,
    Wait,
    assert_same_rows,
)

FORMS = {
    "arrow": lambda: stage(count),
    "pandas": lambda: stage(count_pandas, "pandas"),
    "per-row": lambda: stage(number, "per-row"),
    "per-key": lambda: stage(per_key, "per-key"),
    "stateful-processor": processor,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_counts_on_over_micro_batches_and_a_restore_into_other_key_groups(form):
    made = FORMS[form]()
    emitted = made.batch([{"k": "a"}, {"k": "b"}, {"k": "a"}])
    assert_same_rows([row for row in emitted if row["n"] == 2], [("a", 2)])
    assert made.checkpoint() == 1
    made.batch([{"k": "b"}, {"k": None}])
    made.restore(key_groups=3)
    again = made.batch([{"k": "b"}, {"k": None}, {"k": "a"}])
    assert_same_rows(again, [("b", 2), (None, 1), ("a", 3)])
    values = [row["n"] if "n" in row else row["seen"]["n"] for row in made.state]
    assert dict(zip([row["k"] for row in made.state], values, strict=True)) == {
        "a": 3, "b": 2, None: 1
    }  # fmt: skip


def test_rows_may_be_dicts_tuples_tables_and_frames():
    for rows in (
        [{"k": "a"}],
        [("a",)],
        pa.table({"k": ["a"]}),
        pd.DataFrame({"k": ["a"]}),
    ):
        assert stage().batch(rows) == [{"k": "a", "n": 1}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"x": 1}], r"input 'rows': .*has \['x'\], but the columns are \['k'\]"),
        ([("a", 1)], "neither a dict nor has it a value for each of the columns"),
        ({"k": "a"}, "is one row, or none; give a list of rows"),
        ([(1,)], "input 'rows'"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        stage().batch(rows)


def test_what_a_job_would_refuse_is_refused_in_its_words():
    with pytest.raises(GraphError, match="has key column 'x', but its input 'rows'"):
        stage(key="x")
    with pytest.raises(GraphError, match="is not Spark DDL"):
        stage(state="n lomg")
    with pytest.raises(GraphError, match="say which form it has"):
        stage(number)
    with pytest.raises(GraphError, match="no function for initial state"):
        stage().begin_initial(pa.table({"k": ["a"]}))


def test_an_error_of_the_function_leaves_the_stage_as_it_was():
    def picky(rows, state, context):
        if "bad" in rows["k"].to_pylist():
            raise RuntimeError("no")
        return count(rows, state, context)

    made = stage(picky)
    made.batch([("a",)])
    with pytest.raises(ProcessError, match=r"raised RuntimeError: no; .*key \{'k': 'bad'\}"):
        made.batch([("a",), ("bad",)])
    assert made.state == [{"k": "a", "n": 1}]
    with pytest.raises(ResultError, match="output has columns"):
        stage(lambda rows, state, context: absflow.Result(output=rows)).batch([("a",)])


def test_a_stage_may_begin_with_a_state():
    made = stage()
    made.begin([{"k": "a", "n": 10}])
    assert_same_rows(made.batch([("a",), ("b",)]), [("a", 11), ("b", 1)])
    assert made.fresh().state == [{"k": "a", "n": 10}]
    with pytest.raises(GraphError, match="has read something already"):
        made.begin([])


def test_a_processor_begins_with_its_initial_state():
    made = processor()
    made.begin_initial(pa.table({"k": ["a", "b"], "n": [5, 7]}))
    assert_same_rows(made.batch([("a",)]), [("a", 6)])
    assert [row["seen"]["n"] for row in made.state] == [6, 7]


def test_a_checkpoint_that_is_aborted_changes_nothing():
    """The next one holds what it would have held."""
    made = stage()
    made.batch([("a",)])
    made.checkpoint()
    made.batch([("b",)])
    made.checkpoint(completes=False)
    made.batch([("c",)])
    assert made.checkpoint() == 3
    assert made.checkpoints == [1, 3]
    made.batch([("d",)])
    made.restore()
    assert [row["k"] for row in made.state] == ["a", "b", "c"]
    made.restore(1)
    assert [row["k"] for row in made.state] == ["a"]
    with pytest.raises(NotFoundError, match="no checkpoint 3"):
        made.restore(3)


def test_a_restore_in_what_is_fed_reads_the_rows_behind_the_checkpoint_once_more():
    """So the output is as if nothing had been."""
    feed = [("a",), BATCH, ("b",), BARRIER, ("a",), BATCH, ("b",)]
    plain, broken = stage(), stage()
    expected = plain.run(feed)
    assert broken.run([*feed, RESTORE]) == expected
    broken.run([("a",), RESTORE])
    plain.run([("a",)])
    assert broken.output == plain.output
    assert broken.state == plain.state
    nothing = stage()
    assert nothing.run([("a",), RESTORE, ("a",)]) == [{"k": "a", "n": 1}, {"k": "a", "n": 2}]


def test_a_restore_goes_on_with_copies_of_the_functions():
    """As another process has them."""
    kept = []

    def keeping(rows, state, context):
        kept.append(rows.num_rows)
        return count(rows, state, context)

    made = stage(keeping)
    made.batch([("a",)])
    made.restore()
    made.batch([("a",)])
    assert kept == [1]


def two_inputs(of="stage"):
    """Says of each row which input it came on, in the order of the calls."""

    def said(name):
        def process(state, row):
            return ((state[0] if state else "") + name + row[1],), None

        return process

    given = {name: Input("k string, tag string", of=of) for name in "ab"}
    functions = {"a": said("a"), "b": said("b")}
    return Stage(
        functions, inputs=given, key="k", state="seen string", output="k string", form="per-row"
    )


def test_rows_behind_a_barrier_are_held_until_the_other_input_has_it():
    made = two_inputs()
    made.batch({"a": [("x", "1")], "b": [("x", "1")]})
    made.barrier("a")
    made.run([("a", ("x", "2")), BATCH, ("b", ("x", "2"))])
    assert made.held_rows == 1
    assert made.state == [{"k": "x", "seen": "a1b1b2"}]
    made.barrier("b")
    assert made.held_rows == 0
    assert made.state == [{"k": "x", "seen": "a1b1b2a2"}]
    made.restore()
    assert made.state == [{"k": "x", "seen": "a1b1b2"}]


def test_a_barrier_inside_a_micro_batch_cuts_a_call_in_two():
    """Over a channel; the rows of a source are all before it."""
    calls = []

    def seen(rows, state, context):
        calls.append((context.epoch, rows["k"].to_pylist()))
        return count(rows, state, context)

    made = stage(seen, inputs=Input("k string", of="stage"))
    made.run([("a",), BARRIER, ("a",), ("a",)])
    assert calls == [(1, ["a"]), (2, ["a", "a"])]
    made.restore()
    assert made.state == [{"k": "a", "n": 1}]


def test_a_wrong_input_is_named():
    made = two_inputs("source")
    for feed, words in (
        ([("x", "1")], "does not say of which input"),
        ([BarrierOn("c")], "there is no input 'c'"),
        ([BarrierOn("a"), BarrierOn("a")], "has brought barrier 1 already"),
    ):
        with pytest.raises(ValueError, match=words):
            two_inputs("source").run(feed)
    with pytest.raises(ValueError, match="say of which input"):
        made.batch(pa.table({"k": ["x"], "tag": ["1"]}))


def test_timers_fire_when_the_watermark_has_come_to_them():
    made = windows()
    assert made.batch([("a", at(0)), ("b", at(0, 30))]) == []
    assert [(row["k"], row["domain"], row["time"]) for row in made.timers] == [
        ("a", "event", at(1)),
        ("b", "event", at(1, 30)),
    ]
    assert made.batch([("c", at(1, 10))]) == [{"k": "a", "at": at(1), "n": 1}]
    assert made.watermark < at(1, 10)
    made.checkpoint()
    made.restore(key_groups=1)
    assert made.batch([("c", at(2))]) == [{"k": "b", "at": at(1, 30), "n": 1}]
    assert {row["k"] for row in made.end()} == {"c"}
    assert made.state == made.timers == []


def test_late_rows_are_kept_aside_and_count_from_then_on():
    made = windows(
        inputs=Input("k string, at timestamp", event_time="at", watermark=absflow.Watermark("10s"))
    )
    made.batch([("a", at(5))])
    made.batch([("a", at(4, 55)), ("a", at(3))])
    assert made.late == {"rows": [{"k": "a", "at": at(3)}]}
    assert made.state == [{"k": "a", "n": 2}]


def test_a_source_in_order_is_late_by_its_rows():
    rows = [("a", at(5)), ("a", at(3))]
    given = Input("k string, at timestamp", event_time="at")
    by_batch = windows(inputs=given)
    by_batch.run(rows)
    assert by_batch.late == {}
    in_order = windows(inputs=Input("k string, at timestamp", event_time="at", ordered=True))
    in_order.run(rows)
    assert in_order.late == {"rows": [{"k": "a", "at": at(3)}]}


def test_a_stage_that_is_read_says_how_far_event_time_is():
    made = windows(inputs=Input("k string, at timestamp", of="stage", timed=True))
    made.batch([("a", at(0))])
    assert made.watermark is None
    assert made.advance_watermark(at(1)) == [{"k": "a", "at": at(1), "n": 1}]
    assert made.run([("a", at(2)), AdvanceWatermark(at(3)), END]) == [
        {"k": "a", "at": at(3), "n": 1}
    ]
    with pytest.raises(ValueError, match="is no stage with event time"):
        windows().advance_watermark(at(1))


def test_timers_in_processing_time_wait_for_the_clock():
    def remind(state, row, context):
        context.timers.set(now(context) + pd.Timedelta("10min"), domain="processing")
        return (1,), None

    def now(context):
        return pd.Timestamp(context.time_ms, unit="ms", tz="UTC").to_pydatetime()

    def over(timer, state):
        return None, [(timer.key[0], 1)]

    made = stage(remind, "per-row", on_timer=over)
    made.batch([("a",)])
    assert made.wait("9min") == []
    assert made.now == at(9)
    assert made.wait("1min") == [{"k": "a", "n": 1}]


def test_a_key_that_times_out_is_called_once_more():
    def visit(key, frames, state):
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "n": [-1]})
            return
        state.update((sum(len(frame) for frame in frames),))
        state.setTimeoutDuration(60_000)

    made = stage(visit, "per-key", timeout="ProcessingTimeTimeout")
    made.batch([("a",)])
    assert made.state == [{"k": "a", "n": 1}]
    assert made.wait("30s") == []
    assert made.wait("31s") == [{"k": "a", "n": -1}]
    assert made.state == []


def test_state_that_nothing_touches_expires():
    made = stage(ttl=absflow.Ttl("10min"))
    made.batch([("a",), ("b",)])
    made.wait("9min")
    made.batch([("b",)])
    made.checkpoint()
    made.wait("2min")
    assert made.state == [{"k": "b", "n": 2}]
    made.restore(key_groups=2)
    assert made.batch([("a",)]) == [{"k": "a", "n": 1}]


def test_rows_that_are_emitted_behind_the_watermark_are_counted():
    def old(rows, state, context):
        output = pa.table({"k": rows["k"], "at": pa.array([at(0)] * rows.num_rows)})
        return absflow.Result(output=output)

    given = Input("k string, at timestamp", event_time="at")
    made = stage(old, inputs=given, output="k string, at timestamp", output_time="at")
    made.batch([("a", at(5))])
    made.batch([("a", at(6))])
    assert made.late_emitted == 1


def test_a_storm_of_timers_is_fired_to_its_end():
    """In as many micro-batches as a job would take."""
    made = windows()
    made.batch([(f"k{n}", at(0)) for n in range(30)])
    assert len(made.batch([("z", at(9))])) == 30
    np.testing.assert_equal(len(made.timers), 1)


def test_a_processor_is_closed_by_each_task():
    closed = []

    class Closing(Counter):
        def close(self):
            closed.append(1)

    made = stage(Closing(), "stateful-processor", state=None, key_groups=1)
    closed.clear()
    made.batch([("a",)])
    made.run([("a",), Wait("1s")])
    assert len(closed) == 2


def test_the_kit_starts_no_jvm():
    """Nor asks for a Java."""
    program = (
        "import kit_cases, sys\n"
        "made = kit_cases.stage()\n"
        "made.batch([('a',)]); made.checkpoint(); made.restore()\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None, 'a JVM runs'\n"
        "print(made.state)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "", "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[{'k': 'a', 'n': 1}]\n"
