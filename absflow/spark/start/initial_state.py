"""State that a new job begins with: made of initial rows on executors, written as a savepoint.

The job's first start writes it, before there is an attempt, and then restores it as any written
savepoint of a new storage root. So it is made once. A kill before the savepoint has completed
leaves rows that no checkpoint names, and the next start makes it anew; one after that leaves a
savepoint, and no later start makes it again, whatever it restores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from absflow.columnar.spec import StageSpec
from absflow.errors import GraphError
from absflow.facts.find import attempts_there
from absflow.facts.lock import hold
from absflow.graph.nodes import Graph
from absflow.spark.model import InitialState, JobSpec
from absflow.spark.start.decision import is_new
from absflow.spark.start.savepoint_state import GivenState, fits
from absflow.spark.start.savepoint_writer import write_given
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.initial_rows import initial_rows
from absflow.spark.worker.installed import check_workers
from absflow.spark.worker.probe import check_root
from absflow.storage import clock
from absflow.storage.root import StorageRoot
from absflow.storage.sql import quoted

__all__ = ["check_initial", "write_initial_state"]

_LOG = logging.getLogger(__name__)


def check_initial(graph: Graph, initial: Mapping[str, InitialState]) -> None:
    """See that stages can begin with what is declared.

    Args:
        graph: the graph; it has been checked.
        initial: by stage, what it begins with.

    Raises:
        GraphError: a frame is a stream, or has not the stage's key columns.
    """
    for name, given in initial.items():
        frame, due = given.frame, from_arrow_schema(graph.stages[name].keys)
        if frame.isStreaming:
            raise GraphError(
                f"stage {name!r}: its initial_state is a streaming DataFrame, which has no end; "
                "read a table"
            )
        for key in due:
            if frame.columns.count(key.name) != 1:
                raise GraphError(
                    f"stage {name!r}: its initial_state has the columns {frame.columns}, but the "
                    f"key column {key.name!r} is expected, once"
                )
            seen = frame.schema[key.name].dataType
            if not fits(seen, key.dataType):
                raise GraphError(
                    f"stage {name!r}: the key column {key.name!r} of its initial_state is "
                    f"{seen.simpleString()}, which {key.dataType.simpleString()} does not hold all "
                    "of; cast it"
                )


def write_initial_state(root: StorageRoot, job: JobSpec) -> None:
    """Write the savepoint that a job with initial state begins with, if the job is new.

    Args:
        root: the job's storage root.
        job: the job.

    Raises:
        VersionError: the workers do not have what a stage needs.
        StorageError: the storage root cannot be used, or the savepoint could not be written.
        GraphError: a sink's table is another one.
    """
    if not job.initial or not is_new(root, job):
        return
    check_workers(root.spark)
    check_root(root.spark, root.files, job.settings.storage_path)
    lock = hold(root.layout.root, lambda: None)
    try:
        if not is_new(root, job):  # another driver has begun it meanwhile
            return
        time_ms = clock.now_ms()
        given = [
            _given(job.graph.stages[name], initial, time_ms)
            for name, initial in job.initial.items()
        ]
        facts = attempts_there(root.spark, root.files, root.layout)
        savepoint = write_given(root, job, lock, facts, None, given)
        _LOG.info("savepoint %d has the initial state of %s", savepoint, list(job.initial))
    finally:
        lock.release()


def _given(spec: StageSpec, initial: InitialState, time_ms: int) -> GivenState:
    frame, due = initial.frame, from_arrow_schema(spec.keys)
    keys = [F.col(quoted(name)) for name in due.names]
    columns = [
        F.col(quoted(name)).cast(due[name].dataType).alias(name)
        if name in due.names
        else F.col(quoted(name))
        for name in frame.columns
    ]
    # All rows of a key in one partition, and there in one place.
    together = frame.select(*columns).repartition(*keys).sortWithinPartitions(*keys)
    given = to_arrow_schema(together.schema, timezone="UTC")
    made = initial_rows(spec, initial.process, given, time_ms)
    schema = from_arrow_schema(pa.schema([*spec.keys, *spec.state]))
    return GivenState(spec.name, spec, map_in_arrow(together, made, schema), keys=None)
