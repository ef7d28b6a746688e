"""A graph that cannot run is refused as a whole, before anything starts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from stage_nodes import ROWS, stage

from absflow.errors import GraphError
from absflow.graph.check import check
from absflow.graph.description import check_unchanged, describe
from absflow.graph.description import topology as topology_of
from absflow.graph.nodes import Graph, SinkNode, SourceNode, StageNode
from absflow.protocol.coordinator.messages import RootInput


def checked(
    *stages: StageNode, sources: str = "a", sinks: str = "", edges: str = "channel"
) -> Graph:
    """The graph of ``stages`` over sources with one-letter names."""
    return check(
        "job",
        [SourceNode(name, ROWS) for name in sources],
        list(stages),
        [SinkNode(f"to-{name}", name) for name in sinks.split()],
        key_groups=4,
        edges=edges,
    )


@pytest.mark.parametrize(
    ("stages", "sinks", "chains", "why_not"),
    [
        ([stage("x", "a"), stage("y", "x"), stage("z", "y")], "z", "xyz", ""),
        ([stage("x", "a"), stage("y", "x"), stage("z", "y")], "x z", "x yz", "'x' has a sink"),
        ([stage("x", "a"), stage("y", "x"), stage("z", "x")], "y", "x y z", "2 stages read it"),
        (
            [stage("x", "a"), stage("y", "a", "x"), stage("z", "y")],
            "",
            "a x yz",
            "2 stages read it",
        ),
        ([stage("x", "a")], "", "x", ""),
    ],
)
def test_an_edge_is_direct_where_nothing_fans_out_or_in(
    stages: list[StageNode], sinks: str, chains: str, why_not: str
) -> None:
    """With `auto` the others are channels; with `direct` they are refused, with the reason."""
    graph = checked(*stages, sinks=sinks, edges="auto")
    assert sorted(map("".join, graph.chains)) == sorted(chains.split())
    for chain in graph.chains:
        assert not any(map(graph.has_channel, chain[:-1]))
        assert [graph.stages[name].inputs[0].direct for name in chain[1:]] == [True] * len(
            chain[1:]
        )
        assert not any(given.direct for given in graph.stages[chain[0]].inputs)
    assert checked(*stages, sinks=sinks).chains == [(name,) for name in graph.stages]
    if why_not:
        with pytest.raises(GraphError, match=f"cannot be direct, for .*{why_not}.*auto"):
            checked(*stages, sinks=sinks, edges="direct")
    else:
        assert checked(*stages, sinks=sinks, edges="direct") == graph


def test_edges_that_become_channels_are_another_graph() -> None:
    """A channel that begins in the middle of an attempt would have no rows before."""
    stages = [stage("x", "a"), stage("y", "x")]
    before = describe(checked(*stages, edges="auto"))
    with pytest.raises(GraphError, match=r"(?s)it writes a channel now.*restore\.from=latest"):
        check_unchanged(checked(*stages), before)
    with pytest.raises(GraphError, match=r"(?s)it writes a channel now.*no checkpoint.*begin anew"):
        check_unchanged(checked(*stages), before, lambda: False)
    check_unchanged(checked(*stages), describe(checked(*stages)), lambda: False)


def test_a_shared_source_gets_a_forwarding_stage() -> None:
    """Read twice, it would meet a barrier at two positions."""
    graph = checked(stage("x", "a"), stage("y", "a", "x"))
    assert list(graph.stages) == ["a", "x", "y"]
    assert graph.upstream == {"a": (), "x": ("a",), "y": ("a", "x")}
    assert topology_of(graph).roots == {RootInput("a", "a")}
    assert graph.has_channel("a")
    assert graph.has_channel("x")
    assert not graph.has_channel("y")


FLOATS = pa.schema([("k", pa.float64()), ("v", pa.int64())])


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], ["no stage"]),
        ([stage("x", "a", "y"), stage("y", "x")], ["cycle", "x", "y"]),
        ([stage("x", "a", "x")], ["cycle", "x"]),
        ([stage("x", "a"), stage("x", "a")], ["stage 'x'", "unique"]),
        ([stage("x", "a"), stage("X", "a")], ["stage 'X'", "case"]),
        ([stage("a", "a")], ["source", "unique"]),
        ([stage("x", "a", key=("tailnum",))], ["'tailnum'", "['k', 'v']", "input 'a'"]),
        ([stage("x", "a", key=())], ["no key"]),
        ([stage("x", "a", "b")], ["'b'", "not declared", "['a', 'x']"]),
        ([stage("x", "a", "a")], ["twice"]),
        ([stage("x", "a", process={})], ["process functions", "['a']"]),
        ([stage("x", "a", state=ROWS)], ["column 'k'", "twice", "state"]),
        ([stage("x", "a", state=pa.schema([("op", pa.int64())]))], ["'op'", "rename"]),
        ([stage("1x", "a")], ["'1x'", "letter"]),
        ([stage("x", "a", output=FLOATS), stage("y", "x")], ["'k'", "double", "cast"]),
    ],
)
def test_a_graph_that_cannot_run_is_refused(stages: list[StageNode], words: list[str]) -> None:
    """The message names what was seen and what to do."""
    with pytest.raises(GraphError) as refused:
        checked(*stages)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_source_that_nobody_reads_is_refused() -> None:
    """It would never be read, and its barriers never travel."""
    with pytest.raises(GraphError, match="source 'b' is read by no stage"):
        checked(stage("x", "a"), sources="ab")


def test_a_sink_of_no_stage_is_refused() -> None:
    """A sink takes the output of a stage, not of a source."""
    with pytest.raises(GraphError, match="'a', which is no stage"):
        checked(stage("x", "a"), sinks="a")


def test_a_sink_with_the_name_of_a_stage_is_refused() -> None:
    """Its message says what to do."""
    sinks = [SinkNode("x", "x")]
    with pytest.raises(GraphError, match=r"sink 'x' has the name of a stage; .*; rename one"):
        check("job", [SourceNode("a", ROWS)], [stage("x", "a")], sinks, 4, edges="channel")


def test_keys_of_all_inputs_have_one_type() -> None:
    """Else equal keys would not meet."""
    wide = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    with pytest.raises(GraphError, match="cast one of them"):
        checked(stage("x", "a", output=wide), stage("y", "a", "x"))


def test_going_on_with_another_graph_is_refused_and_every_difference_named() -> None:
    """State that another graph wrote is not read as if it were this one's."""
    before = describe(checked(stage("x", "a"), stage("y", "x")))
    wide = pa.schema([("n", pa.int32())])
    with pytest.raises(GraphError) as refused:
        check_unchanged(checked(stage("x", "a", state=wide), stage("z", "x")), before)
    for words in ("stage 'y' is gone", "stage 'z' is new", "stage 'x': state column 'n' was"):
        assert words in str(refused.value)
    check_unchanged(checked(stage("x", "a"), stage("y", "x")), before)


def test_of_changed_columns_each_is_named_in_a_line() -> None:
    """What is as it was is not: a state may have a hundred columns."""
    same = [(f"same{n}", pa.int64()) for n in range(100)]
    was = pa.schema([*same, ("gone", pa.string()), ("count", pa.int32())])
    now = pa.schema([*same, ("count", pa.int64()), ("added", pa.float64())])
    other = pa.schema(list(was)[::-1])
    before = describe(checked(stage("x", "a", state=was), stage("y", "a", state=was)))
    with pytest.raises(GraphError) as refused:
        check_unchanged(checked(stage("x", "a", state=now), stage("y", "a", state=other)), before)
    assert str(refused.value).splitlines()[1:-1] == [
        "  stage 'x': state column 'count' was int32, is int64",
        "  stage 'x': state column 'added' (double) is added",
        "  stage 'x': state column 'gone' is dropped",
        "  stage 'y': its state columns stand in another order",
    ]


def test_of_changed_inputs_each_is_named_in_a_line() -> None:
    """An input that came or went, its columns, and what it is."""
    wide = pa.schema([*ROWS, ("more", pa.int64())])
    before = describe(checked(stage("x", "a"), stage("y", "x", "b"), stage("z", "y"), sources="ab"))
    now = checked(stage("x", "a", output=wide), stage("y", "b", "x"), stage("z", "x"), sources="ab")
    with pytest.raises(GraphError) as refused:
        check_unchanged(now, before)
    lines = str(refused.value).splitlines()[1:-1]
    assert [line for line in lines if "input" in line] == [
        "  stage 'y': its inputs stand in another order",
        "  stage 'y': input 'x': column 'more' (int64) is added",
        "  stage 'z': input 'x' is added",
        "  stage 'z': input 'y' is dropped",
    ]


def test_an_input_that_is_another_kind_of_source_is_named() -> None:
    """Its positions would mean nothing to the other."""
    made = [
        check("job", [SourceNode("a", ROWS, format=format_)], [stage("x", "a")], [], 4, "channel")
        for format_ in ("parquet", "delta")
    ]
    with pytest.raises(GraphError, match="input 'a' was a source of parquet, is a source of delta"):
        check_unchanged(made[1], describe(made[0]))
