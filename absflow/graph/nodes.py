"""What a job declares, and the graph that was checked.

Nothing here knows Spark: schemas are Arrow schemas, a source is a name and a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from absflow.columnar.event_time import RootTime
from absflow.columnar.expiry import Expiry
from absflow.columnar.process import Process
from absflow.columnar.restore_packer import Migration
from absflow.columnar.spec import StageSpec

__all__ = ["Graph", "SinkNode", "SourceNode", "StageNode", "Upgrade"]


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A source.

    Attributes:
        name: its name.
        schema: its columns.
        bounded: it ends.
        format: "kafka", "parquet", ...
        files: it is Spark's file source, of any format.
        event_time: what it says of event time; None if its rows have none.
        renamed_from: its name in the checkpoint that is restored; None if it had this one.
    """

    name: str
    schema: pa.Schema
    bounded: bool = False
    format: str = ""
    files: bool = False
    event_time: RootTime | None = None
    renamed_from: str | None = None


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
        on_timer: the user's function for timers; None if it has none.
        expiry: when the state of a key expires; None if never.
        output_time: the output column that has the rows' event times, if one does.
        watermark_delay: how much older than its watermark these may be, microseconds.
    """

    name: str
    inputs: tuple[str, ...]
    key: tuple[str, ...]
    state: pa.Schema
    output: pa.Schema
    process: Mapping[str, Process]
    upgrade: Upgrade = field(default_factory=Upgrade)
    on_timer: Process | None = None
    expiry: Expiry | None = None
    output_time: str | None = None
    watermark_delay: int = 0


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A sink and the stage whose output, or state, goes there.

    Attributes:
        name: its name.
        stage: the stage.
        on_checkpoint: rows are published when the checkpoint that holds them completes.
        of_state: the state of the stage goes there, checkpoint by checkpoint.
    """

    name: str
    stage: str
    on_checkpoint: bool = False
    of_state: bool = False


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
        """The stage of each on-checkpoint sink of output, by the sink's name."""
        return {n: s.stage for n, s in self.sinks.items() if s.on_checkpoint and not s.of_state}

    @property
    def of_state(self) -> dict[str, str]:
        """The stage of each sink of state, by the sink's name."""
        return {name: sink.stage for name, sink in self.sinks.items() if sink.of_state}

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
