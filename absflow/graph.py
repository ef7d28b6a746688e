"""The graph of a job: sources, stages and sinks as declared, checked as a whole before a start.

Nothing here knows Spark: schemas are Arrow schemas, a source is a name and a schema. An input may
be named before it is declared, so a graph can be cyclic by mistake; :func:`check` refuses it.
"""

from __future__ import annotations

import graphlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from absflow.columnar.keys import check_key_type
from absflow.columnar.pages import CHANNEL_FIELDS
from absflow.columnar.process import Process
from absflow.columnar.restore_packer import Migration
from absflow.columnar.stage import InputSpec, StageSpec
from absflow.columnar.state import DELETED, MODIFIED_EPOCH
from absflow.errors import GraphError
from absflow.protocol.coordinator.messages import RootInput, Topology

__all__ = [
    "Graph",
    "SinkNode",
    "SourceNode",
    "StageNode",
    "Upgrade",
    "check",
    "check_unchanged",
    "describe",
    "fingerprint",
    "topology",
]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# Columns of the tables and views of state and rows, beside the user's own; case is ignored.
_RESERVED = {
    *(f.name for f in CHANNEL_FIELDS),
    MODIFIED_EPOCH,
    DELETED,
    "set_id",
    "checkpoint_id",
    "at_checkpoint",
    "key_group",
    "op",
}


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A source.

    Attributes:
        name: its name.
        schema: its columns.
        bounded: it ends.
        format: "kafka", "parquet", ...
        files: it is Spark's file source, of any format.
    """

    name: str
    schema: pa.Schema
    bounded: bool = False
    format: str = ""
    files: bool = False


@dataclass(frozen=True, slots=True)
class Upgrade:
    """How a restored stage gets on with state that an earlier form of it has written.

    Attributes:
        renamed_from: the stage's name then; None if it had this one.
        defaults: what keys of then have in state columns that are new.
        migrate: makes the state of now out of the state of then.
    """

    renamed_from: str | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    migrate: Migration | None = None


@dataclass(frozen=True, slots=True)
class StageNode:
    """A stage as declared.

    Attributes:
        name: its name.
        inputs: names of sources and stages, in order.
        key: names of its key columns; empty for a forwarding stage.
        state: the state columns.
        output: the output columns.
        process: the user's function per input; empty for a forwarding stage.
        upgrade: how it is restored from an earlier form of itself.
    """

    name: str
    inputs: tuple[str, ...]
    key: tuple[str, ...]
    state: pa.Schema
    output: pa.Schema
    process: Mapping[str, Process]
    upgrade: Upgrade = field(default_factory=Upgrade)


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A sink and the stage whose output goes there.

    Attributes:
        name: its name.
        stage: the stage.
        on_checkpoint: rows are published when the checkpoint that holds them completes.
    """

    name: str
    stage: str
    on_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph.

    Attributes:
        job: the job's name.
        sources: by name.
        stages: what the executors need of each stage, by name in topological order.
        upstream: for each stage the stages that it reads.
        sinks: by name.
        upgrades: by stage.
    """

    job: str
    sources: Mapping[str, SourceNode]
    stages: Mapping[str, StageSpec]
    upstream: Mapping[str, tuple[str, ...]]
    sinks: Mapping[str, SinkNode]
    upgrades: Mapping[str, Upgrade]

    @property
    def published(self) -> dict[str, str]:
        """The stage of each on-checkpoint sink, by the sink's name."""
        return {s.name: s.stage for s in self.sinks.values() if s.on_checkpoint}

    @property
    def chains(self) -> list[tuple[str, ...]]:
        """The stages of each query, upstream first: those that direct edges join."""
        chains: dict[str, tuple[str, ...]] = {}
        for name, spec in self.stages.items():  # in topological order
            before = next((chains.pop(i.name) for i in spec.inputs if i.direct), ())
            chains[name] = (*before, name)
        return list(chains.values())

    def has_channel(self, stage: str) -> bool:
        """Whether a query reads this stage's rows, or they wait for a checkpoint."""
        return stage in self.published.values() or any(
            given.channel and given.name == stage
            for spec in self.stages.values()
            for given in spec.inputs
        )


def check(
    job: str,
    sources: list[SourceNode],
    stages: list[StageNode],
    sinks: list[SinkNode],
    key_groups: int,
    edges: str,
) -> Graph:
    """Check a declared graph and resolve it.

    A source that several inputs read gets a forwarding stage of its own name: read twice, it would
    meet a barrier at two positions, and the cut would not be one.

    Args:
        job: its name.
        sources: as declared.
        stages: as declared.
        sinks: as declared.
        key_groups: of every stage.
        edges: the setting.

    Raises:
        GraphError: the first thing that is wrong, and what to do about it.
    """
    _check_names(job, sources, stages, sinks)
    by_source = {s.name: s for s in sources}
    consumers = [name for stage in stages for name in stage.inputs]
    shared = [s for s in sources if consumers.count(s.name) > 1]
    for source in sources:
        if source.name not in consumers:
            raise GraphError(f"source {source.name!r} is read by no stage; remove or read it")
    by_stage = {s.name: s for s in stages}
    _check_edges(by_source, by_stage, sinks)
    for source in shared:
        by_stage[source.name] = _forwarding(source)
    order = _topological(by_stage)
    specs: dict[str, StageSpec] = {}
    upstream: dict[str, tuple[str, ...]] = {}
    for name in order:
        node = by_stage[name]
        forwards = name in by_source
        read = [i for i in node.inputs if i in by_stage and not (forwards and i == name)]
        inputs = []
        for given in node.inputs:
            if given in read:
                inputs.append(InputSpec(given, by_stage[given].output, root=False))
            else:
                source = by_source[given]
                inputs.append(
                    InputSpec(
                        given, source.schema, True, source.bounded, source.format, source.files
                    )
                )
        specs[name] = _spec(node, tuple(inputs), key_groups)
        upstream[name] = tuple(read)
    if edges != "channel":
        specs = _with_direct_edges(specs, {sink.stage for sink in sinks}, edges)
    upgrades = {name: node.upgrade for name, node in by_stage.items()}
    return Graph(job, by_source, specs, upstream, {s.name: s for s in sinks}, upgrades)


def _with_direct_edges(
    stages: Mapping[str, StageSpec], with_sink: set[str], edges: str
) -> dict[str, StageSpec]:
    """The stages with every edge direct that can be.

    What has one input aligns nothing, so it needs no control table of its own; and what goes one
    way only need not be kept until the slowest of several has read it.
    """
    read = [i.name for spec in stages.values() for i in spec.inputs if not i.root]
    made = dict(stages)
    for name, spec in stages.items():
        for given in (i for i in spec.inputs if not i.root):
            reasons = [
                (len(spec.inputs) > 1, f"{name!r} has {len(spec.inputs)} inputs"),
                (read.count(given.name) > 1, f"{read.count(given.name)} stages read it"),
                (given.name in with_sink, f"{given.name!r} has a sink"),
            ]
            why_not = [why for holds, why in reasons if holds]
            if not why_not:
                made[name] = replace(spec, inputs=(replace(given, direct=True),))
            elif edges == "direct":
                raise GraphError(
                    f"the edge from {given.name!r} to {name!r} cannot be direct, for "
                    f"{' and '.join(why_not)}; set spark.absflow.edges to auto, and this one will "
                    "be a channel"
                )
    return made


def topology(graph: Graph) -> Topology:
    """The graph as the coordinator needs it."""
    roots = {
        RootInput(stage, given.name)
        for stage, spec in graph.stages.items()
        for given in spec.inputs
        if given.root
    }
    return Topology(dict(graph.upstream), frozenset(roots))


def describe(graph: Graph) -> dict[str, dict[str, object]]:
    """What of each stage must stay while an attempt goes on: names, edges, types, key groups."""
    return {
        name: {
            "inputs": [[i.name, _text(i.schema), i.root, i.format] for i in spec.inputs],
            "key": _text(spec.keys),
            "state": _text(spec.state),
            "output": _text(spec.output),
            "key-groups": spec.key_groups,
            "channel": graph.has_channel(name),
        }
        for name, spec in graph.stages.items()
    }


def fingerprint(graph: Graph) -> str:
    """A digest of :func:`describe`."""
    text = json.dumps(describe(graph), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_unchanged(graph: Graph, before: dict[str, dict[str, object]]) -> None:
    """Refuse to go on with state that another graph has written.

    Args:
        graph: the graph of this start.
        before: what :func:`describe` said when the attempt was started.

    Raises:
        GraphError: naming every difference.
    """
    now = describe(graph)
    differences = [f"stage {name!r} is gone" for name in sorted(before.keys() - now.keys())]
    differences += [f"stage {name!r} is new" for name in sorted(now.keys() - before.keys())]
    for name in sorted(now.keys() & before.keys()):
        for part, value in now[name].items():
            if value == before[name][part]:
                continue
            if part == "channel":
                how = "writes a channel now" if value else "writes no channel any more"
                differences.append(f"stage {name!r} {how} (by the graph or spark.absflow.edges)")
            else:
                differences.append(f"{part} of stage {name!r} was {before[name][part]}, is {value}")
    if differences:
        raise GraphError(
            "the job's graph is not the one whose state lies under this storage root: "
            + "; ".join(differences)
            + ". Restore from a checkpoint (spark.absflow.restore.from=latest), or go back to the "
            "old graph"
        )


def _text(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]


def _check_names(
    job: str, sources: list[SourceNode], stages: list[StageNode], sinks: list[SinkNode]
) -> None:
    named = [("job", job)] + [("source", s.name) for s in sources]
    named += [("stage", s.name) for s in stages] + [("sink", s.name) for s in sinks]
    for what, name in named:
        if not _NAME.fullmatch(name):
            raise GraphError(
                f"{what} name {name!r} is not a letter followed by up to 63 letters, digits, - "
                "and _; names become parts of paths and tables"
            )
    if not stages:
        raise GraphError(f"job {job!r} has no stage; declare one with job.stage(...)")
    seen: dict[str, str] = {}
    for what, name in named[1:]:
        if name.lower() in seen:
            raise GraphError(
                f"{what} {name!r} has the name of a {seen[name.lower()]}; names are unique within "
                "a job (also when case is ignored), for tables are found by them"
            )
        seen[name.lower()] = what


def _check_edges(
    sources: Mapping[str, SourceNode], stages: Mapping[str, StageNode], sinks: list[SinkNode]
) -> None:
    for sink in sinks:
        if sink.stage not in stages:
            raise GraphError(f"sink {sink.name!r} takes {sink.stage!r}, which is no stage")
    for stage in stages.values():
        if not stage.inputs:
            raise GraphError(f"stage {stage.name!r} has no input")
        for given in stage.inputs:
            if given not in sources and given not in stages:
                known = sorted([*sources, *stages])
                raise GraphError(
                    f"stage {stage.name!r} reads {given!r}, which is not declared; the job has "
                    f"{known}"
                )
        if len(set(stage.inputs)) != len(stage.inputs):
            raise GraphError(f"stage {stage.name!r} reads an input twice: {list(stage.inputs)}")
        if set(stage.process) != set(stage.inputs):
            raise GraphError(
                f"stage {stage.name!r} has process functions for {sorted(stage.process)}, but its "
                f"inputs are {sorted(stage.inputs)}; give one function for each input"
            )


def _topological(stages: Mapping[str, StageNode]) -> list[str]:
    edges = {
        name: [
            i for i in node.inputs if (i in stages and i != name) or (i == name and node.process)
        ]
        for name, node in stages.items()
    }
    try:
        return list(graphlib.TopologicalSorter(edges).static_order())
    except graphlib.CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise GraphError(
            f"the graph has a cycle: {path}; barriers can only cut a graph without cycles"
        ) from error


def _forwarding(source: SourceNode) -> StageNode:
    empty = pa.schema([])
    return StageNode(source.name, (source.name,), (), empty, source.schema, {})


def _spec(node: StageNode, inputs: tuple[InputSpec, ...], key_groups: int) -> StageSpec:
    for what, schema in [("state", node.state), ("output", node.output)]:
        _check_columns(node.name, what, schema, node.key if what == "state" else ())
    for given in inputs:
        _check_columns(node.name, f"input {given.name!r}", given.schema, ())
    if node.process and not node.key:
        raise GraphError(f"stage {node.name!r} has no key; name one or several key columns")
    if len(set(node.key)) != len(node.key):
        raise GraphError(f"stage {node.name!r} names a key column twice: {list(node.key)}")
    keys: pa.Schema | None = None
    for given in inputs:
        for column in node.key:
            if column not in given.schema.names:
                raise GraphError(
                    f"stage {node.name!r} has key column {column!r}, but its input {given.name!r} "
                    f"has {given.schema.names}; rename the column there, or choose another key"
                )
            check_key_type(column, given.schema.field(column).type)
        own = pa.schema([pa.field(c, given.schema.field(c).type) for c in node.key])
        if keys is not None and keys != own:
            raise GraphError(
                f"stage {node.name!r} has key {_text(keys)} on input {inputs[0].name!r}, but "
                f"{_text(own)} on {given.name!r}; cast one of them"
            )
        keys = own
    assert keys is not None  # a stage has an input
    _check_defaults(node)
    return StageSpec(
        name=node.name,
        inputs=inputs,
        keys=keys,
        state=node.state,
        output=node.output,
        process=node.process,
        key_groups=key_groups,
    )


def _check_defaults(node: StageNode) -> None:
    for name, value in node.upgrade.defaults.items():
        if name not in node.state.names:
            raise GraphError(
                f"stage {node.name!r} has a default for {name!r}, but its state columns are "
                f"{node.state.names}"
            )
        try:
            pa.scalar(value, node.state.field(name).type)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise GraphError(
                f"stage {node.name!r}: the default {value!r} of state column {name!r} is no "
                f"{node.state.field(name).type} ({error})"
            ) from error


def _check_columns(stage: str, what: str, schema: pa.Schema, keys: tuple[str, ...]) -> None:
    names = [*keys, *schema.names]
    lower = [n.lower() for n in names]
    twice = sorted({n for n in names if lower.count(n.lower()) > 1})
    if twice:
        raise GraphError(
            f"stage {stage!r}: column {twice[0]!r} stands twice in its {what}"
            + (" and key; the key columns are added to the state by absflow" if keys else "")
        )
    taken = sorted(n for n in names if n.lower() in _RESERVED)
    if taken:
        raise GraphError(
            f"stage {stage!r}: column {taken[0]!r} of its {what} has a name that absflow's own "
            "tables use; rename it"
        )
