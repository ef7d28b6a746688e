"""Event time as it is declared: what is refused before anything starts, and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from stage_nodes import stage

from absflow.columnar.event_time import RootTime
from absflow.columnar.process import Result
from absflow.columnar.timers import TIMER_COLUMNS
from absflow.errors import GraphError
from absflow.graph.check import check
from absflow.graph.description import check_unchanged, describe
from absflow.graph.nodes import Graph, SourceNode, StageNode
from absflow.protocol.watermarks import WatermarkStatus
from absflow.watermark import Watermark, declared_delay, root_time

ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)


def declared(column: str | None = "ts", watermark: Watermark | None = None, **more: Any) -> Any:
    given = {"bounded": False, "format": "parquet", "options": [], "schema": ROWS, **more}
    schema = given.pop("schema")
    return root_time("rows", schema, column, watermark, **given)


def test_nothing_is_declared_by_nothing() -> None:
    assert declared(None) is None


def test_what_is_declared() -> None:
    given = Watermark(delay="5s", by="k", idle="1min", late="drop")
    assert declared("ts", given) == RootTime("ts", 5_000_000, ("k",), False, 60_000, "drop")
    assert declared("ts") == RootTime("ts", 0)


def test_of_kafka_a_partition_is_kafkas() -> None:
    """If the frame has its columns; in order if each is read by one task."""
    of_kafka = RootTime("ts", 0, ("topic", "partition"), ordered=True)
    assert declared(format="kafka") == of_kafka
    assert declared(format="kafka", options=["minpartitions"]) == replace(of_kafka, ordered=False)
    few = ROWS.remove(3)
    assert declared(format="kafka", schema=few) == RootTime("ts", 0)


@pytest.mark.parametrize(
    ("column", "watermark", "words"),
    [
        (
            "when",
            None,
            r"source 'rows' has no column 'when' for its event time; it has \['k', 'ts'",
        ),
        ("k", None, "its event time 'k' is a string, but a timestamp is expected"),
        (None, Watermark(), "has a watermark and no event time"),
        (
            "ts",
            Watermark(delay="-5s"),
            "delay of its watermark is '-5s', must be a duration such as",
        ),
        ("ts", Watermark(delay="soon"), "delay of its watermark is 'soon', must be a duration"),
        ("ts", Watermark(delay=5), "delay of its watermark is 5, must be a duration"),  # type: ignore[arg-type]
        ("ts", Watermark(idle="0s"), "idle of its watermark is '0s', must be never, or a duration"),
        ("ts", Watermark(by=["k", "zone"]), "has no column 'zone', by which its watermark is"),
        ("ts", Watermark(late="keep"), r"late is 'keep', must be one of \['table', 'drop'"),
    ],
)
def test_what_cannot_be_is_refused(
    column: str | None, watermark: Watermark | None, words: str
) -> None:
    with pytest.raises(GraphError, match=words):
        declared(column, watermark)


def test_a_bounded_source_is_never_idle() -> None:
    with pytest.raises(GraphError, match="a bounded source is never idle, it ends"):
        declared("ts", Watermark(idle="1min"), bounded=True)


def test_trap_20_an_option_that_delta_would_pass_over_is_refused() -> None:
    words = "'rows' has the option withEventTimeOrder, which this Delta does not know"
    with pytest.raises(GraphError, match=words):
        declared(format="delta", options=["withEventTimeOrder".lower()])
    assert declared(format="delta", options=["maxfilespertrigger"]) == RootTime("ts", 0)


def graph(*stages: StageNode, late: str = "table", other: bool = False) -> Graph:
    """A graph over a source with event time, and over one without if there is an ``other``."""
    sources = [SourceNode("rows", ROWS, event_time=RootTime("ts", 7, late=late))]
    sources += [SourceNode("other", ROWS)] if other else []
    return check("job", sources, list(stages), [], key_groups=4, edges="channel")


def test_a_stage_declares_how_much_older_its_rows_are() -> None:
    made = graph(stage("a", "rows", watermark_delay=declared_delay("a", "30s")))
    begun = made.stages["a"].begin_time()
    assert begun is not None
    assert begun.stage.delay == 30_000_000
    with pytest.raises(GraphError, match="'d' has a watermark_delay, but none of its inputs has"):
        graph(stage("a", "rows"), stage("d", "other", watermark_delay=1), other=True)
    for wrong in ("-1s", "soon", 5):
        with pytest.raises(GraphError, match=f"watermark_delay is {wrong!r}, must be a duration"):
            declared_delay("a", wrong)  # type: ignore[arg-type]


def test_event_time_goes_with_the_rows() -> None:
    made = graph(stage("a", "rows"), stage("b", "a"), stage("c", "b", "other"), other=True)
    timed = {name: [i.name for i in spec.inputs if i.timed] for name, spec in made.stages.items()}
    assert timed == {"a": ["rows"], "b": ["a"], "c": ["b"]}
    begun = made.stages["a"].begin_time()
    assert begun is not None
    assert begun.sources["rows"].newest == {"": None}
    assert begun.stage.inputs["rows"].status is WatermarkStatus.ACTIVE


def test_a_stage_without_event_time_has_none() -> None:
    made = graph(stage("a", "rows"), stage("d", "other"), other=True)
    assert made.stages["d"].begin_time() is None


def test_a_forwarding_stage_passes_event_time_on_but_cannot_mark_late_rows() -> None:
    shared = (stage("a", "rows"), stage("b", "rows"))
    assert graph(*shared).stages["rows"].timed
    with pytest.raises(GraphError, match="a channel does not say of its rows whether they were"):
        graph(*shared, late="process")


def test_an_attempt_does_not_go_on_with_other_event_time() -> None:
    timed = describe(graph(stage("a", "rows")))
    without = check("job", [SourceNode("rows", ROWS)], [stage("a", "rows")], [], 4, "channel")
    assert "event-time" not in describe(without)["a"]
    with pytest.raises(GraphError, match=r"inputs with event time were none, are \['rows'\]"):
        check_unchanged(graph(stage("a", "rows")), describe(without))
    with pytest.raises(GraphError, match=r"inputs with event time were \['rows'\], are none"):
        check_unchanged(without, timed)
    check_unchanged(graph(stage("a", "rows")), timed)


def test_timers_are_columns_of_the_state_that_old_keys_do_not_need() -> None:
    made = graph(stage("a", "rows", on_timer=lambda rows, state, context: Result()))
    assert made.stages["a"].state.names == ["n", *TIMER_COLUMNS]
    assert made.upgrades["a"].defaults == dict.fromkeys(TIMER_COLUMNS)
    with pytest.raises(GraphError, match="'_event_timers' of its state has a name that absflow"):
        graph(stage("a", "rows", state=pa.schema([(TIMER_COLUMNS[0], pa.int64())])))
