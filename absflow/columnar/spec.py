"""What a stage is: its inputs, its key, its state, its function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from absflow.columnar.event_time import LATE_FIELD, RootTime
from absflow.columnar.expiry import Expiry
from absflow.columnar.pages import ORDER_FIELDS
from absflow.columnar.process import Process
from absflow.columnar.timers import Domain
from absflow.protocol import alignment, alignment_state, event_time
from absflow.protocol.alignment_state import Alignment
from absflow.protocol.event_time import EventTime

__all__ = ["InputSpec", "StageSpec", "input_names"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input as the stage sees it.

    Attributes:
        name: the upstream's name.
        schema: the declared columns.
        root: it reads a source, so its rows carry no epoch.
        bounded: the source ends.
        format: the source's ("kafka", "parquet", ...); "" for a channel.
        files: it is Spark's file source, of any format.
        direct: the upstream runs in the same query, and there is no channel between.
        event_time: what a source says of it; None if its rows have none.
        timed: whether its rows have event time, wherever they come from.
        event_column: the column that has their event times; None if nothing says so.
    """

    name: str
    schema: pa.Schema
    root: bool
    bounded: bool = False
    format: str = ""
    files: bool = False
    direct: bool = False
    event_time: RootTime | None = None
    timed: bool = False
    event_column: str | None = None

    @property
    def channel(self) -> bool:
        """Whether it reads a channel."""
        return not (self.root or self.direct)

    @property
    def page_schema(self) -> pa.Schema:
        """The schema of the payloads of this input's DATA pages."""
        if not self.root:
            return pa.schema([*self.schema, *ORDER_FIELDS])
        if self.event_time is not None and self.event_time.late == "process":
            return self.schema.append(LATE_FIELD)
        return self.schema


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Everything that a stage's work depends on; shipped to the executors.

    Attributes:
        name: the stage's name.
        inputs: its inputs in declared order.
        keys: the key columns.
        state: the state columns.
        output: the columns of its output.
        process: the user's function per input name; empty for a forwarding stage.
        key_groups: how many key groups there are.
        on_timer: the user's function for timers; None if it has none. With it, the state columns
            end with those of the timers.
        expiry: when the state of a key expires; None if never. With it, the state columns end with
            the time at which a key was touched last.
        output_time: the column of its output that has the rows' event times, if one does.
        watermark_delay: how much older than its watermark these may be, microseconds.
        at_least_once: it processes what stands behind a barrier before it has snapshotted.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    keys: pa.Schema
    state: pa.Schema
    output: pa.Schema
    process: Mapping[str, Process]
    key_groups: int
    on_timer: Process | None = None
    expiry: Expiry | None = None
    output_time: str | None = None
    watermark_delay: int = 0
    at_least_once: bool = False

    @property
    def timed(self) -> bool:
        """Whether any of its inputs has event time; then it has a watermark."""
        return any(given.timed for given in self.inputs)

    def expires_in(self, domain: Domain) -> bool:
        """Whether the state of its keys expires in this time."""
        return self.expiry is not None and self.expiry.domain is domain

    def begin_time(self) -> EventTime | None:
        """Its event time when it has read nothing; None if it has none."""
        if not self.timed:
            return None
        timed = [given.name for given in self.inputs if given.timed]
        declared = {i.name: i.event_time for i in self.inputs if i.event_time is not None}
        delays = {name: t.delay for name, t in declared.items()}
        time = event_time.start(timed, delays, self.watermark_delay)
        # A source without partitions has one, which counts from the start.
        whole = [name for name, t in declared.items() if not t.by]
        return event_time.with_partitions(time, {name: [""] for name in whole})

    def input(self, name: str) -> InputSpec:
        """The input called ``name``."""
        return next(i for i in self.inputs if i.name == name)

    def order(self, name: str) -> int:
        """The place of an input in the declared order; pages of one epoch are sorted by it."""
        return next(number for number, i in enumerate(self.inputs) if i.name == name)

    def start(self, last: int) -> Alignment:
        """Its alignment when it has read nothing since checkpoint ``last`` (0: ever)."""
        return alignment.start(input_names(self), last)


def gates(spec: StageSpec, align: Alignment) -> dict[str, int | None]:
    """By input, the highest epoch that may be processed now; None for any."""
    early = spec.at_least_once
    return {name: alignment_state.gate(align, name, early=early) for name in input_names(spec)}


def input_names(spec: StageSpec) -> list[str]:
    """The names of a stage's inputs, in their order."""
    return [given.name for given in spec.inputs]
