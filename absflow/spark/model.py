"""A job that has been checked, as every wing sees it; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from absflow.columnar.process import Process
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import HIDDEN_COLUMNS
from absflow.errors import GraphError
from absflow.graph.nodes import Graph
from absflow.settings.reading import Settings
from absflow.sinks import Sink

__all__ = [
    "DELETED",
    "ControlStart",
    "InitialState",
    "JobSpec",
    "query_name",
    "restored_index",
    "source_index",
    "state_schema",
]


# Of a row that goes to a sink of state: whether the row of its key goes.
DELETED = "_deleted"


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a stage of a new job begins with (Spark: ``initialState``).

    Attributes:
        frame: rows that have the stage's key columns.
        process: makes state of them; columnar.
    """

    frame: DataFrame
    process: Process


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that has been checked and can be started.

    Attributes:
        graph: its graph.
        settings: its settings.
        frames: the frame of each source.
        sinks: by name.
        initial: by stage, what it begins with if the job is new.
    """

    graph: Graph
    settings: Settings
    frames: Mapping[str, DataFrame]
    sinks: Mapping[str, Sink]
    initial: Mapping[str, InitialState] = field(default_factory=dict)

    def sink_rows(self, sink: str) -> pa.Schema:
        """The columns that a sink gets."""
        node = self.graph.sinks[sink]
        spec = self.graph.stages[node.stage]
        return state_schema(spec) if node.of_state else spec.output

    def immediate_sinks(self, stage: str) -> dict[str, Sink]:
        """The sinks that a stage's batches write, by name."""
        return {
            node.name: self.sinks[node.name]
            for node in self.graph.sinks.values()
            if node.stage == stage and not node.on_checkpoint
        }


@dataclass(frozen=True, slots=True)
class ControlStart:
    """From which versions on an attempt reads the control tables; older rows are of others.

    Attributes:
        barriers: version of ``barriers``.
        overtakes: version of ``overtakes``.
    """

    barriers: int
    overtakes: int


def state_schema(spec: StageSpec) -> pa.Schema:
    """The rows of a stage's state as a sink gets them: key, state, and :data:`DELETED`.

    Raises:
        GraphError: the stage keeps no state, or has a column of that name.
    """
    if not spec.keys:
        raise GraphError(f"stage {spec.name!r} keeps no state; name another for the sink")
    state = [field for field in spec.state if field.name not in HIDDEN_COLUMNS]
    if any(field.name == DELETED for field in (*spec.keys, *state)):
        raise GraphError(
            f"stage {spec.name!r} has a column {DELETED!r}, which absflow needs in a sink of its "
            "state; rename it"
        )
    return pa.schema([*spec.keys, *state, pa.field(DELETED, pa.bool_())])


def source_index(spec: StageSpec, name: str) -> int:
    """The place of an input of a chain's first stage among its query's sources."""
    return spec.order(name)


def restored_index(first: StageSpec) -> int:
    """The place of the first source of restored pages, behind all others of a chain's query."""
    return len(first.inputs) + any(given.root for given in first.inputs) + 1


def query_name(job: str, chain: Sequence[str]) -> str:
    """The name of a chain's query, as Spark's progress has it."""
    return f"{job}/{'+'.join(chain)}"
