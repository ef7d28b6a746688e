"""A10: columns with odd names work or are refused in words, in each place where one can stand."""

import pyarrow as pa
import pytest
from odd_names import REFUSED, TAKEN

from absflow.columnar.process import Result
from absflow.errors import GraphError
from absflow.graph.check import check
from absflow.graph.columns import check_channel, check_state
from absflow.graph.nodes import SinkNode, SourceNode, StageNode
from absflow.sinks import DeltaSink
from absflow.storage.delta.names import same_name, unfit

OWN = {
    "key": ["set_id", "OP", "_deleted", "_modified", "at_checkpoint", "before", "_absflow_x"],
    "state": ["set_id", "Op", "_deleted", "checkpoint_id", "key_group", "_absflow_rank"],
    "output": ["_epoch", "_SEQ", "_kind", "_barrier", "_key_group", "_metadata"],
    "sink": ["_epoch", "_metadata"],
    "input": [],
    "shared": ["_epoch", "_kind", "_metadata"],
}
# What is of no harm in the others' tables.
OTHERS = {
    "key": ["_metadata", "_epoch", "_seq", "after_", "K"],
    "state": ["_metadata", "_epoch", "before", "after"],
    "output": ["op", "set_id", "checkpoint_id", "_deleted"],
    "sink": ["op", "set_id"],
    "input": ["_metadata", "op", "set_id", "_epoch", "_deleted", "_absflow_x", "K"],
    "shared": ["op"],
}


def graph(place, *names):
    """A job with columns of these names in one place; only a sink's go through no channel."""
    odd = pa.schema([(name, pa.int64()) for name in names])
    key = names if place == "key" else ("k",)
    rows = pa.schema([(n, pa.int64()) for n in (*key, "v")])
    read = pa.schema([*rows, *odd]) if place in {"input", "shared"} else rows
    made = pa.schema([("k", pa.int64()), *(odd if place in {"output", "sink"} else ())])
    state = odd if place == "state" else pa.schema([("n", pa.int64())])
    stages = [StageNode("x", ("a",), key, state, made, {"a": lambda *_: Result()})]
    if place == "output":
        schema = pa.schema([("n", pa.int64())])
        process = {"x": lambda *_: Result()}
        stages.append(StageNode("y", ("x",), ("k",), schema, rows, process))
    if place == "shared":
        process = {"a": lambda *_: Result()}
        stages.append(StageNode("y", ("a",), ("k",), state, rows, process))
    sinks = [SinkNode("out", "x")]
    checked = check("job", [SourceNode("a", read)], stages, sinks, key_groups=4, edges="channel")
    if place == "sink":
        DeltaSink("/out").check("out", checked.stages["x"].output)
    return checked


@pytest.mark.parametrize("place", OWN)
@pytest.mark.parametrize("name", TAKEN)
def test_a10_names_that_delta_takes_are_taken(place, name):
    """As key, state, output and input column, and where a source goes through a table."""
    graph(place, name)


@pytest.mark.parametrize("place", OWN)
@pytest.mark.parametrize("name", REFUSED)
def test_a10_names_that_delta_refuses_are_refused_where_there_is_a_table(place, name):
    """By a sentence that names the column; an input column goes into no table."""
    if place == "input":
        graph(place, name)
        return
    with pytest.raises(GraphError) as refused:
        graph(place, name)
    assert repr(name) in str(refused.value)
    assert any(words in str(refused.value) for words in ("rename", "select the column under"))


@pytest.mark.parametrize("place", OWN)
def test_a10_names_of_absflows_own_columns(place):
    """Refused where they would stand beside absflow's own, in any case; taken elsewhere."""
    for name in OWN[place]:
        with pytest.raises(GraphError, match=f"{name!r}.* has a name that absflow's own"):
            graph(place, name)
    for name in OTHERS[place]:
        graph(place, name)


@pytest.mark.parametrize("place", OWN)
@pytest.mark.parametrize("twins", [("A", "a"), ("\u017f", "s"), ("\u0131", "I"), ("Ä", "ä")])
def test_a10_names_that_differ_by_case(place, twins):
    """Spark and Delta take them for one; in a page they are two."""
    assert same_name(twins[0]) == same_name(twins[1])
    if place == "input":
        graph(place, *twins)
        return
    with pytest.raises(GraphError, match=f"{twins[0]!r} and {twins[1]!r} for one column"):
        graph(place, *twins)


@pytest.mark.parametrize("place", ["state", "output", "input", "key"])
def test_a10_the_same_name_twice(place):
    """Nobody could say which of them is meant."""
    with pytest.raises(GraphError, match=r"twice|for one column"):
        graph(place, "a", "a")


def test_a10_key_and_state_do_not_share_a_name():
    """They stand in one table, which ignores case."""
    for name in ("k", "K"):
        with pytest.raises(GraphError, match=f"column {name!r} stands twice in its state and key"):
            graph("state", name)


def test_a10_names_within_structs_are_those_of_columns():
    """However deep they lie."""
    odd = pa.struct([("ok", pa.list_(pa.struct([("a b", pa.int64())])))])
    assert "no column 'a b' of column 's'" in unfit(pa.schema([("s", odd)]))
    twins = pa.map_(pa.string(), pa.struct([("A", pa.int64()), ("a", pa.int64())]))
    assert "'A' and 'a' within column 'm' for one" in unfit(pa.schema([("m", twins)]))
    assert unfit(pa.schema([("a", pa.struct([("a", pa.int64()), ("b.c", pa.int64())]))])) == ""


VARIANT = pa.struct(
    [("value", pa.binary()), pa.field("of", pa.binary(), metadata={"variant": "1"})]
)


@pytest.mark.parametrize("deep", [lambda of: of, pa.list_, lambda of: pa.map_(pa.string(), of)])
@pytest.mark.parametrize(
    ("of", "what"),
    [
        (pa.duration("us"), "an interval"),
        (pa.time64("ns"), "a time of day"),
        (VARIANT, "a variant"),
    ],
)
def test_a_type_that_no_table_holds_is_refused(of, what, deep):
    """Before the first start has written anything."""
    schema = pa.schema([("n", pa.int64()), ("gap", deep(of))])
    with pytest.raises(
        GraphError, match=f"its state goes into a table, but column 'gap' .* {what}"
    ):
        check_state("s", ("k",), pa.schema([("k", pa.string())]), schema)
    if of is VARIANT:
        check_channel("s", schema, forwards=False)  # Delta can hold it
        return
    for forwards, whose in ((False, "the output of 's'"), (True, "the rows of source 's'")):
        with pytest.raises(GraphError, match=f"{whose} .* channel, but column 'gap'"):
            check_channel("s", schema, forwards=forwards)
    with pytest.raises(GraphError, match="sink 'out': column 'gap'"):
        DeltaSink("/x").check("out", schema)


@pytest.mark.parametrize("what", ["job", "source", "stage", "sink"])
@pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "ü", "a=b", "_x", "1", "x" * 65, "a\n"])
def test_a10_jobs_sources_stages_and_sinks_have_plain_names(what, name):
    """They are parts of paths, of tables' and of views' names."""
    names = {"job": "j", "source": "a", "stage": "x", "sink": "out", what: name}
    schema = pa.schema([("k", pa.int64())])
    state = pa.schema([("n", pa.int64())])
    process = {names["source"]: lambda *_: Result()}
    stage = StageNode(names["stage"], (names["source"],), ("k",), state, schema, process)
    source, sink = SourceNode(names["source"], schema), SinkNode(names["sink"], names["stage"])
    with pytest.raises(GraphError, match=r"is not a letter followed by up to 63 letters"):
        check(names["job"], [source], [stage], [sink], key_groups=4, edges="channel")


def test_a10_partition_columns_of_a_sink_are_columns():
    """A text would be taken for a list of letters."""
    schema = pa.schema([("day", pa.string()), ("v", pa.int64())])
    DeltaSink("/out", ["day"]).check("out", schema)
    with pytest.raises(GraphError, match=r"partition_by is the text 'day'.*\['day'\]"):
        DeltaSink("/out", "day").check("out", schema)
    with pytest.raises(GraphError, match="partition column 'dy' is none of the stage's output"):
        DeltaSink("/out", ["dy"]).check("out", schema)
