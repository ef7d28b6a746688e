"""A job as its author declares it: sources, stages, sinks, and the start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from absflow.columnar.restore_packer import Migration
from absflow.declared import declared_upgrade
from absflow.declared_functions import (
    AnyProcess,
    AnyTimerFunction,
    Functions,
    FunctionsAsked,
    declared_functions,
    declared_initial,
)
from absflow.declared_stage import check_called, declared_stage
from absflow.errors import AbsflowError, GraphError
from absflow.graph.check import check
from absflow.graph.nodes import Graph, SinkNode, SourceNode, StageNode
from absflow.graph.places import check_places
from absflow.job_shown import job_html
from absflow.settings.catalog import PREFIX
from absflow.settings.reading import Settings
from absflow.sinks import ChecksColumns, Sink
from absflow.spark.control.run import Run, start_run
from absflow.spark.model import DELETED, InitialState, JobSpec, state_schema
from absflow.spark.sources.describe import check_source, describe_source, paths_read
from absflow.spark.start.decision import restore_plan_of
from absflow.spark.start.initial_state import check_initial
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.savepoint_writer import write_savepoint
from absflow.spark.versions import check_versions
from absflow.storage.root import StorageRoot
from absflow.transactional import TransactionalSink
from absflow.ttl import Ttl
from absflow.watermark import Watermark, root_time

__all__ = ["AnyProcess", "AnyTimerFunction", "Job", "Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """A declared source or stage; pass it, or its name, as an input."""

    name: str


_Inputs: TypeAlias = "Node | str | Sequence[Node | str]"


def _names(inputs: _Inputs) -> tuple[str, ...]:
    given = [inputs] if isinstance(inputs, Node | str) else inputs
    return tuple(i.name if isinstance(i, Node) else i for i in given)


class Job:
    """A directed acyclic graph of sources, stages and sinks that is checkpointed as one.

    Nothing runs, and nothing is written, before :meth:`start`. Settings come from the session's
    conf (``spark.absflow.*``).

    Example::

        job = absflow.Job("flights", spark)
        legs = job.source("legs", spark.readStream.schema(LEGS).parquet(path))
        aircraft = job.stage("aircraft", legs, key="tailnum", state="legs long",
                             output="tailnum string, legs long", process=rotate)
        job.sink("delays", aircraft, absflow.DeltaSink(out))
        job.start().await_termination()
    """

    def __init__(self, name: str, spark: SparkSession) -> None:
        """An empty job."""
        self._name = name
        self._spark = spark
        self._sources: list[SourceNode] = []
        self._frames: dict[str, DataFrame] = {}
        self._stages: list[StageNode] = []
        self._sinks: list[SinkNode] = []
        self._targets: dict[str, Sink] = {}
        self._initial: dict[str, InitialState] = {}

    def source(
        self,
        name: str,
        frame: DataFrame,
        *,
        bounded: bool = False,
        event_time: str | None = None,
        watermark: Watermark | None = None,
        renamed_from: str | None = None,
    ) -> Node:
        """Declare a source.

        Args:
            name: its name, unique within the job.
            frame: a streaming DataFrame that reads one stream, without stateful operators.
            bounded: the source ends: once nothing is left to read, no more will come. A job all of
                whose sources are bounded takes a last checkpoint and ends.

            event_time: the column, a timestamp, that says when what a row is about has happened.
            watermark: how far that has come; without, ``Watermark()``: by no delay.
            renamed_from: for a restore: its name in the checkpoint, from whose position it goes on.

        Raises:
            GraphError: the frame is not one stream, or its event time cannot be so.
        """
        check_source(name, frame)
        described = describe_source(frame)
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        time = root_time(
            name,
            schema,
            event_time,
            watermark,
            bounded=bounded,
            format=described.format,
            options=list(described.options),
        )
        self._sources.append(
            SourceNode(
                name, schema, bounded, described.format, described.is_files, time, renamed_from
            )
        )
        self._frames[name] = frame
        return Node(name)

    def stage(
        self,
        name: str,
        inputs: Node | str | Sequence[Node | str],
        *,
        key: str | Sequence[str],
        state: str | StructType | None = None,
        output: str | StructType,
        process: AnyProcess | Mapping[str, AnyProcess],
        form: str = "arrow",
        on_timer: AnyTimerFunction | None = None,
        timeout: str = "NoTimeout",
        time_mode: str = "None",
        ttl: Ttl | None = None,
        output_time: str | None = None,
        watermark_delay: str = "0s",
        initial_state: DataFrame | None = None,
        renamed_from: str | None = None,
        defaults: Mapping[str, object] | None = None,
        migrate: Migration | None = None,
    ) -> Node:
        """Declare a keyed stateful stage.

        Args:
            name: its name, unique within the job; its state is found by it.
            inputs: one or several sources and stages, or their names.
            key: one or several columns that every input has, with equal types.
            state: the state columns (Spark DDL or StructType), without the key.
            output: the columns of the rows it emits.
            process: the function; if there are several inputs, one for each, by its name.
            form: "arrow", "pandas", "per-row", "per-key", "stateful-processor[-in-pandas]".
            on_timer: that for timers, of the same form; with it the others may set timers.
            timeout: of form "per-key": Spark's ``GroupStateTimeout``.
            time_mode: of a ``StatefulProcessor``: Spark's ``timeMode``.
            ttl: how long the state of a key lives that nothing touches; without, for ever.
            output_time: the output column, a timestamp, that has the event times of the rows.
            watermark_delay: how much older than the watermark of the stage these may be, as "30s".
            initial_state: rows with the key, for ``handleInitialState`` at a job's first start.
            renamed_from: for a restore: the stage's name in the checkpoint.
            defaults: for a restore: what its keys get in state columns that are new, by column.
            migrate: for a restore from other columns: a part of the state, a pyarrow.Table, to new.

        Raises:
            GraphError: something here cannot be read; the graph itself is checked at the start.
        """
        functions = self._called(name, inputs, process, form, state, on_timer, timeout, time_mode)
        node = declared_stage(
            name,
            _names(inputs),
            functions,
            key=key,
            output=output,
            ttl=ttl,
            output_time=output_time,
            watermark_delay=watermark_delay,
            upgrade=declared_upgrade(renamed_from, defaults, migrate, timeout),
        )
        return self._with(node, functions, initial_state)

    def sink(
        self,
        name: str,
        stage: Node | str,
        sink: Sink,
        *,
        mode: str | None = None,
        of: str = "output",
    ) -> None:
        """Declare that the output of ``stage`` goes to ``sink``.

        Args:
            name: the sink's name, unique within the job.
            stage: the stage, or its name.
            sink: the destination.
            mode: "immediate": rows are there with the micro-batch that made them, and a restore
                takes back what came after the checkpoint. "on-checkpoint": rows are there with the
                checkpoint that holds them, in one write, and only a restore to an older one takes
                them back. Without: "on-checkpoint" for a :class:`TransactionalSink` and a
                :class:`FileSink`, which have no other but for :class:`KafkaSink`, whose
                "immediate" is at least once; "immediate" for others.
            of: "output". "state": the sink keeps a table of the stage's state, a row for each key,
                which is that of the newest checkpoint at any time (:class:`SqlSink`).

        Raises:
            GraphError: there is no such mode, or not for this sink.
        """
        if of not in {"output", "state"}:
            raise GraphError(f"sink {name!r}: of is {of!r}, must be 'output' or 'state'")
        if of == "state" and not isinstance(sink, TransactionalSink):
            raise GraphError(
                f"sink {name!r}: a {type(sink).__name__} keeps no table of a state; leave out "
                'of="state"'
            )
        only = getattr(sink, "on_checkpoint_only", False)
        if mode is None:
            mode = "on-checkpoint" if only else "immediate"
        if mode not in {"immediate", "on-checkpoint"}:
            raise GraphError(
                f"sink {name!r}: mode is {mode!r}, must be 'immediate' or 'on-checkpoint'"
            )
        if only and mode == "immediate":
            if of == "state" or not isinstance(sink, TransactionalSink):
                raise GraphError(
                    f"sink {name!r}: a {type(sink).__name__} publishes with checkpoints; leave out "
                    "mode='immediate'"
                )
            sink = sink.immediate(name)
        given = stage.name if isinstance(stage, Node) else stage
        self._sinks.append(SinkNode(name, given, mode == "on-checkpoint", of == "state"))
        self._targets[name] = sink

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        kinds = {name: type(sink).__name__ for name, sink in self._targets.items()}
        return job_html(self._name, self._sources, self._stages, self._sinks, kinds)

    def start(self) -> Run:
        """Check everything, then start the job, go on where the last driver left it, or restore.

        Where code is run cell by cell, as in a notebook, a cell that is run again gets the run that
        it has started before, and says so; nothing is started then. It must declare the same.

        Raises:
            VersionError: what runs here, or on the workers, is not what absflow needs.
            SettingsError: a setting is unknown or malformed.
            GraphError: the graph cannot run, or is not the one that the stored state belongs to.
            RestoreError: the checkpoint of ``spark.absflow.restore.from`` cannot be restored.
            NotFoundError: there is no such checkpoint.
            StorageError: the storage root cannot be used, or another driver does not let go of it.
            SystemExit: ``spark.absflow.restore.plan`` is set, and the plan is written; 1 if it has
                problems.
        """
        if plan_file := self._settings().restore_plan:
            raise SystemExit(self._write_plan(Path(plan_file)))
        return start_run(self._spark, self._checked())

    def plan_restore(self) -> RestorePlan | None:
        """What :meth:`start` would restore, and what stands against it; changes nothing.

        Returns:
            None if the start would go on where the last driver stopped, or begin with nothing.

        Raises:
            VersionError: what runs here, or on the workers, is not what absflow needs.
            SettingsError: a setting is unknown or malformed.
            GraphError: the graph cannot run.
            NotFoundError: there is no such checkpoint.
        """
        job = self._checked()
        return restore_plan_of(StorageRoot.open(self._spark, job.settings.storage_path), job)

    def write_savepoint(
        self,
        states: Mapping[str, DataFrame],
        *,
        base: int | str | None = None,
        positions: Mapping[str, str] | None = None,
    ) -> int:
        """Write a savepoint whose state is that of DataFrames; the job must not be running.

        Restore it as any other: ``spark.absflow.restore.from``.

        Args:
            states: by stage: one row per key, with the stage's key and state columns. Columns go by
                name, and are widened if need be.
            base: the checkpoint of which everything else is kept: the state of other stages, the
                positions of the sources, the cut of the sinks; its id, or "latest". None begins a
                new storage root: other stages are empty, sources begin where their options say.
            positions: without a base, by source: the ``checkpointLocation`` of a stopped query of
                plain Spark that has read it so far (``PATH#1``: as its second source). It goes on
                where that query stood.

        Returns:
            The savepoint's id.

        Raises:
            VersionError: what runs here, or on the workers, is not what absflow needs.
            StateError: a DataFrame cannot be a stage's state, or a position a source's; or the
                storage root is not new, or has an unfinished restore.
            NotFoundError: there is no such stage with state, source, or checkpoint.
            StorageError: the job is running, or something could not be read or written.
            SettingsError: a setting is unknown or malformed.
            GraphError: the graph cannot run.
        """
        return write_savepoint(self._spark, self._checked(), states, base, positions)

    def _called(self, stage: str, inputs: _Inputs, *asked: Any) -> Functions:
        """Its functions; ``asked`` are the fields of :class:`FunctionsAsked`."""
        time_zone = str(self._spark.conf.get("spark.sql.session.timeZone"))
        given, functions = _names(inputs), FunctionsAsked(*asked)
        return declared_functions(stage, given, functions, self._columns, time_zone)

    def _with(self, stage: StageNode, functions: Functions, initial: DataFrame | None) -> Node:
        self._stages.append(stage)
        if initial is not None:
            self._initial[stage.name] = declared_initial(stage.name, functions, initial)
        return Node(stage.name)

    def _columns(self, given: str) -> list[str]:
        """The columns of a source or a stage that was declared before."""
        sources = {source.name: source.schema for source in self._sources}
        stages = {node.name: node.output for node in self._stages}
        names: list[str] = {**sources, **stages}.get(given, pa.schema([])).names
        return names

    def _write_plan(self, file: Path) -> int:
        """Write the document of the plan; the program's exit code."""
        document: dict[str, Any] = {"restores": False, "problems": []}
        try:
            planned = self.plan_restore()
        except AbsflowError as error:
            document["problems"] = [str(error)]
        else:
            document = planned.document() if planned else document
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return 1 if document["problems"] else 0

    def _settings(self) -> Settings:
        conf = self._spark.conf.getAll
        return Settings.from_conf({k: v for k, v in conf.items() if k.startswith(PREFIX)})

    def _checked(self) -> JobSpec:
        check_versions(self._spark)  # first: what is missing makes the errors of all else
        settings = self._settings()
        graph = check(
            self._name,
            self._sources,
            self._stages,
            self._sinks,
            settings.key_groups,
            settings.edges,
            at_least_once=settings.checkpoint_mode == "at-least-once",
        )
        for node in self._stages:
            check_called(node, timed=graph.stages[node.name].timed)
        check_initial(graph, self._initial)
        spec = JobSpec(graph, settings, self._frames, self._checked_sinks(graph), self._initial)
        self._check_places(settings)
        return spec

    def _checked_sinks(self, graph: Graph) -> dict[str, Sink]:
        """The sinks, as the job uses them."""
        found: dict[str, Sink] = {}
        for name, node in graph.sinks.items():
            sink, spec = self._targets[name], graph.stages[node.stage]
            rows = spec.output
            if node.of_state:
                rows = state_schema(spec)
                assert isinstance(sink, TransactionalSink)
                sink = sink.of_state(name, spec.keys.names, DELETED)
            if isinstance(sink, ChecksColumns):
                sink.check(name, rows)
            found[name] = sink
        return found

    def _check_places(self, settings: Settings) -> None:
        root = StorageRoot.open(self._spark, settings.storage_path)
        read = {name: root.files.qualified(p) for name, p in paths_read(self._frames).items()}
        written = {name: sink.position(self._spark)[0] for name, sink in self._targets.items()}
        check_places(root.layout.root, read, {n: path for n, path in written.items() if path})
