"""A stage under test as it is declared, checked as the stage of a job is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from absflow.columnar.event_time import RootTime
from absflow.columnar.process import Process
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.declared import declared_columns, declared_upgrade
from absflow.declared_functions import FunctionsAsked, declared_functions
from absflow.declared_stage import check_called, declared_stage
from absflow.errors import GraphError
from absflow.graph.check import check
from absflow.graph.nodes import SourceNode
from absflow.testing.signs import Input
from absflow.ttl import Ttl
from absflow.watermark import root_time

__all__ = ["Declaration", "Made", "named_inputs"]

_OF = ("source", "stage")


@dataclass(frozen=True, slots=True)
class Made:
    """What the executors need of a stage, and a restore.

    Attributes:
        spec: the stage.
        defaults: of state columns that given state does not have.
        initial: the function for initial state; None if nothing takes it.
    """

    spec: StageSpec
    defaults: Mapping[str, object]
    initial: Process | None


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything but the functions; the attributes are as of :meth:`absflow.Job.stage`.

    Attributes:
        name: the stage's.
        inputs: by name.
        key: the key columns.
        state: the state columns.
        output: the output columns.
        form: of the functions.
        timeout: of form "per-key".
        time_mode: of a ``StatefulProcessor``.
        ttl: how long state lives.
        output_time: the output column with event times.
        watermark_delay: how much older these may be.
        time_zone: the session's.
    """

    name: str
    inputs: Mapping[str, Input]
    key: str | Sequence[str]
    state: str | StructType | None
    output: str | StructType
    form: str
    timeout: str
    time_mode: str
    ttl: Ttl | None
    output_time: str | None
    watermark_delay: str
    time_zone: str

    def make(self, process: Any, on_timer: Any, key_groups: int) -> Made:
        """The stage with these functions.

        Raises:
            GraphError: something cannot be so.
        """
        schemas = {name: _schema(name, given.columns) for name, given in self.inputs.items()}
        asked = FunctionsAsked(
            process, self.form, self.state, on_timer, self.timeout, self.time_mode
        )
        names = tuple(self.inputs)
        functions = declared_functions(
            self.name, names, asked, lambda given: list(schemas[given].names), self.time_zone
        )
        node = declared_stage(
            self.name,
            names,
            functions,
            key=self.key,
            output=self.output,
            ttl=self.ttl,
            output_time=self.output_time,
            watermark_delay=self.watermark_delay,
            upgrade=declared_upgrade(None, None, None, self.timeout),
        )
        sources = [_source(name, given, schemas[name]) for name, given in self.inputs.items()]
        graph = check("test", sources, [node], [], key_groups, "channel")
        spec = graph.stages[self.name]
        check_called(node, timed=spec.timed)
        inputs = tuple(_input(each, self.inputs[each.name]) for each in spec.inputs)
        return Made(
            replace(spec, inputs=inputs), graph.upgrades[self.name].defaults, functions.initial
        )


def named_inputs(inputs: object) -> dict[str, Input]:
    """The inputs by name; one that has none is called "rows"."""
    given = dict(inputs) if isinstance(inputs, Mapping) else {"rows": inputs}
    return {name: each if isinstance(each, Input) else Input(each) for name, each in given.items()}


def _schema(name: str, columns: str | StructType | pa.Schema) -> pa.Schema:
    if isinstance(columns, pa.Schema):
        return columns
    return declared_columns(name, "columns", columns)


def _source(name: str, given: Input, schema: pa.Schema) -> SourceNode:
    if given.of not in _OF:
        raise GraphError(f"input {name!r} is of {given.of!r}, must be of one of {list(_OF)}")
    if given.of == "stage" and given.watermark is not None:
        raise GraphError(
            f"input {name!r} is of a stage, and has a watermark; a source has one. Say how far "
            "event time has come by AdvanceWatermark"
        )
    if given.of == "stage" and given.timed and given.event_time is None:
        return SourceNode(name, schema, event_time=RootTime("", 0))
    time = root_time(
        name, schema, given.event_time, given.watermark, bounded=False, format="", options=()
    )
    if time is not None and given.ordered:
        time = replace(time, ordered=True)
    return SourceNode(name, schema, event_time=time)


def _input(made: InputSpec, given: Input) -> InputSpec:
    """As the stage has it: what comes from a stage is no root."""
    if given.of == "source":
        return made
    return replace(made, root=False, event_time=None, event_column=given.event_time)
