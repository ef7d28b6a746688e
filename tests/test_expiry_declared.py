"""What may be declared of state that expires, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from stage_nodes import stage

from absflow.columnar.event_time import RootTime
from absflow.columnar.expiry import TOUCHED, Expiry
from absflow.columnar.pages import TIME_TYPE, PageKind, pages_of
from absflow.columnar.process import Result
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.restoring import Restoring
from absflow.columnar.timers import TIMER_COLUMNS, Domain
from absflow.errors import GraphError
from absflow.graph.check import check
from absflow.graph.description import check_unchanged, describe
from absflow.graph.nodes import Graph, SourceNode, StageNode
from absflow.protocol.event_time import to_datetime
from absflow.ttl import Ttl, declared_expiry

ROWS = pa.schema([("k", pa.string()), ("ts", TIME_TYPE), ("v", pa.int64())])
EVENT = Expiry(1_000, Domain.EVENT)


def test_what_is_declared() -> None:
    hour = 3_600_000_000
    assert declared_expiry("a", None) is None
    assert declared_expiry("a", Ttl("1h")) == Expiry(hour, Domain.PROCESSING)
    given = Ttl("1h", domain="event", refresh="read")
    assert declared_expiry("a", given) == Expiry(hour, Domain.EVENT, on_read=True)


@pytest.mark.parametrize(
    ("ttl", "words"),
    [
        ("1h", r"ttl is '1h', must be an absflow.Ttl, as Ttl\(\"1h\"\)"),
        (Ttl("soon"), "its ttl is 'soon', must be a duration above 0 such as 1h"),
        (Ttl("0s"), "its ttl is '0s', must be a duration above 0"),
        (Ttl("-1h"), "its ttl is '-1h', must be a duration above 0"),
        (Ttl(60), "its ttl is 60, must be a duration above 0"),  # type: ignore[arg-type]
        (Ttl("1h", "wall"), r"domain of its ttl is 'wall', must be one of \['event', 'processing'"),
        (Ttl("1h", refresh="look"), r"refresh of its ttl is 'look', must be one of \['write', "),
    ],
)
def test_what_cannot_be_is_refused(ttl: Any, words: str) -> None:
    with pytest.raises(GraphError, match=f"stage 'a': .*{words}"):
        declared_expiry("a", ttl)


def graph(*stages: StageNode, timed: bool = True) -> Graph:
    time = RootTime("ts", 7) if timed else None
    sources = [SourceNode("rows", ROWS, event_time=time)]
    return check("job", sources, list(stages), [], key_groups=4, edges="channel")


def test_event_time_needs_rows_that_have_one() -> None:
    """Of a source its own, of a stage the column that it names; also through a forwarding stage."""
    with pytest.raises(GraphError, match="of its input 'rows' have none; declare source"):
        graph(stage("a", "rows", expiry=EVENT), timed=False)
    with pytest.raises(GraphError, match=r"input 'a' have none; declare stage\(..., output_time="):
        graph(stage("a", "rows"), stage("b", "a", expiry=EVENT))
    named = stage("a", "rows", output=ROWS, output_time="ts")
    made = graph(named, stage("b", "a", expiry=EVENT))
    assert made.stages["b"].input("a").event_column == "ts"
    shared = graph(stage("a", "rows", expiry=EVENT), stage("b", "rows", expiry=EVENT))
    assert shared.stages["b"].input("rows").event_column == "ts"


def test_the_event_time_of_a_stages_rows_is_a_timestamp_among_them() -> None:
    with pytest.raises(GraphError, match="stage 'a' has no output column 'when' for the event"):
        graph(stage("a", "rows", output=ROWS, output_time="when"))
    with pytest.raises(GraphError, match="'a': the event time of its rows, 'v', is a int64, but"):
        graph(stage("a", "rows", output=ROWS, output_time="v"))


def test_when_a_key_was_touched_is_a_column_of_the_state() -> None:
    timers = {"on_timer": lambda rows, state, context: Result()}
    made = graph(stage("a", "rows", expiry=EVENT, **timers))
    assert made.stages["a"].state.names == ["n", *TIMER_COLUMNS, TOUCHED.name]
    assert made.upgrades["a"].defaults == dict.fromkeys([*TIMER_COLUMNS, TOUCHED.name])
    with pytest.raises(GraphError, match="'_touched' of its state has a name that absflow"):
        graph(stage("a", "rows", state=pa.schema([TOUCHED])))


def test_an_attempt_does_not_go_on_with_another_ttl() -> None:
    before = describe(graph(stage("a", "rows", expiry=EVENT)))
    check_unchanged(graph(stage("a", "rows", expiry=EVENT)), before)
    longer = graph(stage("a", "rows", expiry=Expiry(2_000, Domain.EVENT)))
    with pytest.raises(GraphError, match="expired after 1 ms of event time since the last"):
        check_unchanged(longer, before)
    with pytest.raises(GraphError, match=r"since the last write, now after never"):
        check_unchanged(graph(stage("a", "rows")), before)


def test_a_restore_leaves_out_what_had_expired() -> None:
    """Of two sets: an expired row hides an older one, and the digests still count every row."""
    keys, state = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64()), TOUCHED])
    clock = to_datetime(77)
    packer = StatePacker(
        "a", keys, state, 1, 2, (1, 2), {TOUCHED.name: clock}, expired_upto=20
    )  # fmt: skip
    rows = pa.table({
        "set_id": pa.array([1, 1, 1, 2, 2]),
        "op": ["upsert"] * 5,
        "k": ["a", "b", "c", "a", "d"],
        "n": pa.array([1, 2, 3, 4, 5]),
        "_touched": pa.array([10, 20, 21, 15, None], TIME_TYPE),
    })  # fmt: skip
    pages = [p for batch in packer.pack(rows.to_batches()) for p in pages_of(batch)]
    assert {p.kind for p in pages} == {PageKind.RESTORE}
    assert sum(p.rows for p in pages) == rows.num_rows
    assert sum(p.base_id != 0 for p in pages) == 2  # a digest for each set
    restoring = Restoring("a", keys, state, 0)
    for page in pages:
        restoring.add(page)
    found = pa.Table.from_batches(restoring.batches()).to_pylist()
    # d is of a written savepoint, in which nobody has said when it was touched.
    assert {row["k"]: row["_touched"] for row in found} == {"c": to_datetime(21), "d": clock}
