"""The graph checked as a whole, before anything starts.

An input may be named before it is declared, so a graph can be cyclic by mistake; that is refused
here, as is everything else that cannot run.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from absflow.columnar.expiry import TOUCHED, Expiry
from absflow.columnar.keys import check_key_type
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.timers import TIMER_COLUMNS, Domain, timer_fields
from absflow.errors import GraphError
from absflow.graph.columns import check_channel, check_input, check_output, check_state
from absflow.graph.description import _text
from absflow.graph.nodes import Graph, SinkNode, SourceNode, StageNode, Upgrade

__all__ = ["check", "check_name"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_name(what: str, name: str) -> None:
    """Refuse what a job, source, stage or sink cannot be called.

    Args:
        what: which of them it is.
        name: its name.

    Raises:
        GraphError: with what a name may be.
    """
    if not _NAME.fullmatch(name):
        raise GraphError(
            f"{what} name {name!r} is not a letter followed by up to 63 letters, digits, - "
            "and _; names become parts of paths and tables"
        )


def check(
    job: str,
    sources: list[SourceNode],
    stages: list[StageNode],
    sinks: list[SinkNode],
    key_groups: int,
    edges: str,
    *,
    at_least_once: bool = False,
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
        at_least_once: no stage waits for a barrier.

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
                inputs.append(_stage_input(specs[given]))
            else:
                inputs.append(_root_input(by_source[given], forwards))
        spec = _spec(node, tuple(inputs), key_groups)
        specs[name] = replace(spec, at_least_once=at_least_once)
        upstream[name] = tuple(read)
    if edges != "channel":
        with_sinks = {sink.stage for sink in sinks if not sink.of_state}
        specs = _with_direct_edges(specs, with_sinks, edges)
    upgrades = {name: _upgrade(node) for name, node in by_stage.items()}
    graph = Graph(job, by_source, specs, upstream, {s.name: s for s in sinks}, upgrades)
    return _with_checked_channels(graph)


def _stage_input(spec: StageSpec) -> InputSpec:
    timed, column = spec.timed, spec.output_time
    return InputSpec(spec.name, spec.output, root=False, timed=timed, event_column=column)


def _root_input(source: SourceNode, forwards: bool) -> InputSpec:
    time = source.event_time
    if forwards and time is not None and time.late == "process":
        raise GraphError(
            f"source {source.name!r} is read by several inputs, and a channel does not say of its "
            'rows whether they were late; choose another answer than late="process"'
        )
    return InputSpec(
        source.name,
        source.schema,
        True,
        source.bounded,
        source.format,
        source.files,
        event_time=time,
        timed=time is not None,
        event_column=None if time is None else time.column,
    )


def _with_checked_channels(graph: Graph) -> Graph:
    for name, spec in graph.stages.items():
        if graph.has_channel(name):
            check_channel(name, spec.output, forwards=name in graph.sources)
    return graph


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


def _check_names(
    job: str, sources: list[SourceNode], stages: list[StageNode], sinks: list[SinkNode]
) -> None:
    named = [("job", job)] + [("source", s.name) for s in sources]
    named += [("stage", s.name) for s in stages] + [("sink", s.name) for s in sinks]
    for what, name in named:
        check_name(what, name)
    if not stages:
        raise GraphError(f"job {job!r} has no stage; declare one with job.stage(...)")
    seen: dict[str, str] = {}
    for what, name in named[1:]:
        if name.lower() in seen:
            raise GraphError(
                f"{what} {name!r} has the name of a {seen[name.lower()]}; names are unique within "
                "a job (also when case is ignored), for tables are found by them; rename one"
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
    empty, time = pa.schema([]), source.event_time
    column = None if time is None else time.column
    return StageNode(source.name, (source.name,), (), empty, source.schema, {}, output_time=column)


def _spec(node: StageNode, inputs: tuple[InputSpec, ...], key_groups: int) -> StageSpec:
    for given in inputs:
        if given.root:
            check_input(node.name, given.name, given.schema)
    check_output(node.name, node.output)
    _check_output_time(node, timed=any(given.timed for given in inputs))
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
    check_state(node.name, node.key, keys, node.state)
    _check_defaults(node)
    state = node.state
    if node.on_timer is not None:
        state = pa.schema([*state, *timer_fields()])
    if node.expiry is not None:
        _check_expiry(node.name, node.expiry, inputs)
        state = state.append(TOUCHED)
    return StageSpec(
        name=node.name,
        inputs=inputs,
        keys=keys,
        state=state,
        output=node.output,
        process=node.process,
        key_groups=key_groups,
        on_timer=node.on_timer,
        expiry=node.expiry,
        output_time=node.output_time,
        watermark_delay=node.watermark_delay,
    )


def _check_output_time(node: StageNode, *, timed: bool) -> None:
    """Refuse a column for the event time of a stage's rows that cannot be one."""
    column = node.output_time
    if node.watermark_delay and not timed:
        raise GraphError(
            f"stage {node.name!r} has a watermark_delay, but none of its inputs has event time; "
            "declare source(..., event_time=...), or leave it out"
        )
    if column is None:
        return
    if column not in node.output.names:
        raise GraphError(
            f"stage {node.name!r} has no output column {column!r} for the event time of its rows; "
            f"it has {node.output.names}"
        )
    if not pa.types.is_timestamp(node.output.field(column).type):
        raise GraphError(
            f"stage {node.name!r}: the event time of its rows, {column!r}, is a "
            f"{node.output.field(column).type}, but a timestamp is expected"
        )


def _check_expiry(stage: str, expiry: Expiry, inputs: tuple[InputSpec, ...]) -> None:
    """Refuse to have state expire by an event time that rows do not have."""
    for given in inputs if expiry.domain is Domain.EVENT else ():
        if given.event_column is None or not given.timed:
            what = "source(..., event_time=...)" if given.root else "stage(..., output_time=...)"
            raise GraphError(
                f"stage {stage!r}: its state expires in event time, but the rows of its input "
                f"{given.name!r} have none; declare {what} there, or expire by processing time"
            )


def _upgrade(node: StageNode) -> Upgrade:
    """As declared; keys of then have no timers, and when they were touched a restore says."""
    none: dict[str, object] = {}
    if node.on_timer is not None:
        none |= dict.fromkeys(TIMER_COLUMNS)
    if node.expiry is not None:
        none[TOUCHED.name] = None
    return replace(node.upgrade, defaults={**none, **node.upgrade.defaults})


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
