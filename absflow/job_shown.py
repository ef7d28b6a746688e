"""A job as a notebook shows it before it runs: its graph, and what it is made of."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence

import pyarrow as pa

from absflow.drawing.html import fragment, headed, table
from absflow.drawing.pictures import Node, graph_picture, graph_shapes
from absflow.drawing.words import NONE, duration
from absflow.graph.nodes import SinkNode, SourceNode, StageNode

__all__ = ["job_html"]

_SOURCES = ("source", "format", "columns", "event time", "ends")
_STAGES = ("stage", "reads", "key", "state", "emits", "timers", "state lives for")
_SINKS = ("sink", "gets", "of", "kind", "rows are there")


def job_html(
    name: str,
    sources: Sequence[SourceNode],
    stages: Sequence[StageNode],
    sinks: Sequence[SinkNode],
    kinds: Mapping[str, str],
) -> str:
    """A job as HTML. It may be unfinished, or wrong; that is said at its start.

    Args:
        name: the job's.
        sources: as declared.
        stages: as declared.
        sinks: as declared.
        kinds: of each sink, what it is.
    """
    parts = [headed(f"job {name}")]
    if drawn := _graph(sources, stages, sinks, kinds):
        parts.append(f'<div class="wide">{drawn}</div>')
    if sources:
        parts.append(table(_SOURCES, [_source(each) for each in sources]))
    if stages:
        parts.append(table(_STAGES, [_stage(each) for each in stages]))
    if sinks:
        parts.append(table(_SINKS, [_sink(each, kinds[each.name]) for each in sinks]))
    return fragment(*parts)


def _graph(
    sources: Sequence[SourceNode],
    stages: Sequence[StageNode],
    sinks: Sequence[SinkNode],
    kinds: Mapping[str, str],
) -> str:
    """Its picture; none of a graph that goes round in a circle."""
    inputs: dict[str, Sequence[str]] = {source.name: () for source in sources}
    inputs |= {stage.name: stage.inputs for stage in stages}
    inputs |= {sink.name: (sink.stage,) for sink in sinks}
    try:
        graphlib.TopologicalSorter(inputs).prepare()
    except graphlib.CycleError:
        return ""
    said = {source.name: ("source", (source.format,)) for source in sources}
    said |= {stage.name: ("stage", (f"by {', '.join(stage.key)}",)) for stage in stages}
    said |= {sink.name: ("sink", (kinds[sink.name],)) for sink in sinks}
    boxes, edges, size = graph_shapes(inputs)
    nodes = [Node(box, *said.get(box.name, ("source", ("not declared",)))) for box in boxes]
    return graph_picture(nodes, [(edge, "") for edge in edges], size) if nodes else ""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or NONE


def _source(source: SourceNode) -> tuple[str, ...]:
    time = source.event_time
    return (
        source.name,
        source.format,
        _columns(source.schema),
        NONE if time is None else time.column,
        "yes" if source.bounded else "no",
    )


def _stage(stage: StageNode) -> tuple[str, ...]:
    expiry = stage.expiry
    lives = "ever"
    if expiry is not None:
        lives = f"{duration(expiry.after / 1_000)} of {expiry.domain.value} time"
    return (
        stage.name,
        ", ".join(stage.inputs),
        ", ".join(stage.key),
        _columns(stage.state),
        _columns(stage.output),
        NONE if stage.on_timer is None else "yes",
        lives,
    )


def _sink(sink: SinkNode, kind: str) -> tuple[str, ...]:
    return (
        sink.name,
        "the state" if sink.of_state else "the output",
        sink.stage,
        kind,
        "with the checkpoint" if sink.on_checkpoint else "with the micro-batch",
    )
