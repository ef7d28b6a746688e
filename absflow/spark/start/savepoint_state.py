"""The state that the savepoint writer is given: checked, and brought to a stage's columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, NullType, NumericType

from absflow.columnar.spec import StageSpec
from absflow.columnar.state import OWN_COLUMNS
from absflow.columnar.timers import TIMER_COLUMNS
from absflow.errors import StateError
from absflow.facts.stages import find_stage
from absflow.protocol.checkpoints import StageColumns
from absflow.protocol.recovery.columns import widens
from absflow.spark.model import JobSpec
from absflow.storage.sql import quoted

__all__ = ["GivenState", "check_keys", "conform", "fits"]


@dataclass(frozen=True, slots=True)
class GivenState:
    """The state of one stage.

    Attributes:
        name: the stage's name in the savepoint: an earlier one if the base has it so.
        spec: the stage.
        frame: its key and state columns, in their order and of their types.
        keys: how many rows the frame has; none of them has the key of another. None if that is
            known only when it has been written.
    """

    name: str
    spec: StageSpec
    frame: DataFrame
    keys: int | None


def conform(job: JobSpec, stage: str, frame: DataFrame) -> DataFrame:
    """The key and state columns of ``stage``, in their order and of their types.

    Raises:
        StateError: a column is missing, unknown, there twice, or of a type that does not fit.
    """
    known = {
        name: StageColumns(name, tuple(spec.keys.names), tuple(spec.state.names), name)
        for name, spec in job.graph.stages.items()
    }
    find_stage(known, stage)
    spec = job.graph.stages[stage]
    due = from_arrow_schema(pa.schema([*spec.keys, *spec.state]))
    if frame.isStreaming:
        raise StateError(f"the state of stage {stage!r} is a streaming DataFrame; read a table")
    # Of absflow's own columns, the timers, the frame need know nothing.
    defaults = job.graph.upgrades[stage].defaults
    own = {name: value for name, value in defaults.items() if name in OWN_COLUMNS}
    for name in own.keys() - set(frame.columns):
        frame = frame.withColumn(name, F.lit(own[name]).cast(due[name].dataType))
    problems = [f"it lacks {n!r}" for n in due.names if n not in frame.columns]
    for name in frame.columns:
        if name not in due.names:
            problems.append(f"it has {name!r}, which is no column of the stage")
        elif frame.columns.count(name) > 1:
            problems.append(f"it has {name!r} twice")
        elif not fits(frame.schema[name].dataType, due[name].dataType):
            seen, wanted = (s[name].dataType.simpleString() for s in (frame.schema, due))
            problems.append(
                f"column {name!r} is {seen}, which {wanted} does not hold all of; cast it"
            )
    if problems:
        raise StateError(
            f"the DataFrame for stage {stage!r} cannot be its state: {'; '.join(problems)}. It "
            f"must have the columns {due.simpleString().removeprefix('struct')}"
        )
    return frame.select(*(_column(f.name).cast(f.dataType).alias(f.name) for f in due))


def _column(name: str) -> Column:
    """A column of the frame; of timers those of each key in their order, each once."""
    column = F.col(quoted(name))
    if name not in TIMER_COLUMNS:
        return column
    timers = F.transform(
        column,
        lambda t: F.struct(t["time"].alias("time"), F.coalesce(t["name"], F.lit("")).alias("name")),
    )
    return F.when(F.size(timers) > 0, F.array_sort(F.array_distinct(timers)))


def fits(seen: DataType, due: DataType) -> bool:
    """Whether a column may be cast: every value of ``seen`` is one of ``due``."""
    if isinstance(seen, NullType) or seen.simpleString() == due.simpleString():
        return True
    if not (isinstance(seen, NumericType) and isinstance(due, NumericType)):
        return False
    was, is_ = (str(to_arrow_type(type_)) for type_ in (seen, due))
    return widens(was, is_)


def check_keys(spec: StageSpec, frame: DataFrame) -> int:
    """How many keys the frame has.

    Raises:
        StateError: a key has several rows.
    """
    names = [quoted(name) for name in spec.keys.names]
    by_key = frame.groupBy(*names).agg(F.count(F.lit(1)).alias("_absflow_rows"))
    rows = F.col("_absflow_rows")
    key, most, total = by_key.select(
        F.max_by(F.struct(*names), rows), F.max(rows), F.sum(rows)
    ).collect()[0]
    if total is not None and most > 1:
        raise StateError(
            f"the DataFrame for stage {spec.name!r} has {most} rows for the key {key.asDict()}, "
            "but a key has one; nothing was written"
        )
    return int(total or 0)
