"""Whether the output of a stage fits its sink's table, as the table will be after a restore.

A table that is put back has the columns of the version that it goes back to. Others that the output
has are added behind that; where the output lacks one, new rows are null. Only in a table that is
the job's own: any other must have the very columns of the output, as at the job's first start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from absflow.errors import GraphError, StorageError
from absflow.sinks import SinkRestore
from absflow.storage.delta import tables
from absflow.storage.delta.columns import ColumnsFit, fit_columns
from absflow.storage.delta.log_back import LogBack
from absflow.storage.files import Files

__all__ = ["SinkOutput", "check_table", "fit_output"]


@dataclass(frozen=True, slots=True)
class SinkOutput:
    """What goes to a sink.

    Attributes:
        sink: its name.
        job: the job's name.
        stage: the stage whose output it is.
        columns: of the output.
        fork: the checkpoint lies under another storage root.
    """

    sink: str
    job: str
    stage: str
    columns: pa.Schema
    fork: bool


def check_table(spark: SparkSession, path: str, output: pa.Schema, *, wider: bool) -> None:
    """Refuse a sink's table with other columns than the output, where nothing is restored.

    Args:
        spark: the session.
        path: the table's.
        output: of the stage.
        wider: the table may have further columns that can be null.

    Raises:
        GraphError: naming the columns of both.
        StorageError: the table cannot be read.
    """
    there, due = tables.read(spark, path).schema, from_arrow_schema(output)
    fit = fit_columns(there, due)
    refused = [f for f in fit.unfilled if not (wider and f.nullable)]
    if fit.added or fit.other or refused:
        raise GraphError(
            f"sink table {path!r} has columns {there.simpleString()}, but the stage's output is "
            f"{due.simpleString()}; choose another path"
        )


def fit_output(
    spark: SparkSession, output: SinkOutput, planned: SinkRestore
) -> tuple[SinkRestore, list[str]]:
    """What becomes of the columns of a Delta sink's table; changes nothing.

    Args:
        spark: the session.
        output: what goes to the sink.
        planned: what else happens to it.

    Returns:
        The plan with what this means, and what of it is a difference, in words.

    Raises:
        StorageError: the table cannot be read, and no problem says so yet.
    """
    if planned.now is None or (planned.new and planned.problems):
        return planned, []  # it will be made with the output's columns, or is a problem already
    now = there = tables.read(spark, planned.place).schema
    if planned.then is not None:
        try:
            there = tables.read(spark, planned.place, planned.then).schema
        except StorageError:
            if not planned.problems:
                raise
            return planned, []  # that it cannot go back is among them
    due = from_arrow_schema(output.columns)
    fit = fit_columns(there, due)
    if planned.new and fit != ColumnsFit() and not _is_own(spark, output, planned):
        problem = _of_others(output, planned, there, fit)
        return replace(planned, problems=(*planned.problems, problem)), []
    problems = (*planned.problems, *_problems(spark, output, planned, fit))
    lost = [] if now is there else fit_columns(now, StructType([*there, *fit.added])).unfilled
    differences = [
        *(f"{_title(output, field)} is added to its table" for field in fit.added),
        *(f"{_title(output, field)} of its table is null in new rows" for field in fit.unfilled),
        *(
            f"{_title(output, field)} of its table goes: version {planned.then} has it not"
            for field in lost
        ),
    ]
    return replace(planned, problems=problems, added=fit.added, unfilled=fit.unfilled), differences


def _title(output: SinkOutput, field: StructField) -> str:
    return f"sink {output.sink!r}: column {_text(field)}"


def _text(field: StructField) -> str:
    return f"{field.name!r} ({field.dataType.simpleString()})"


def _is_own(spark: SparkSession, output: SinkOutput, planned: SinkRestore) -> bool:
    """Whether nobody but this job has brought the newest rows of a table, or nobody any.

    A fork has the name of its original, which may have written the table; so only the latter.
    """
    assert planned.now is not None
    version = planned.now + 1
    for commit in LogBack(Files(spark), planned.place, planned.now).commits():
        if commit.changes_data:
            return not output.fork and commit.note.get("job") == output.job
        version = commit.version
    return version == 0  # else its log begins later


def _of_others(output: SinkOutput, planned: SinkRestore, there: StructType, fit: ColumnsFit) -> str:
    """Why a table is refused that is not the job's own."""
    own = "choose another path"
    if fit.added and not fit.unfilled and not fit.other:
        own += f", or add {', '.join(map(_text, fit.added))} to it yourself (ALTER TABLE)"
    return (
        f"sink {output.sink!r}: table {planned.place!r}, which may hold rows of others, has "
        f"columns {there.simpleString()}, but the output of stage {output.stage!r} is "
        f"{from_arrow_schema(output.columns).simpleString()}; {own}"
    )


def _problems(
    spark: SparkSession, output: SinkOutput, planned: SinkRestore, fit: ColumnsFit
) -> Iterator[str]:
    """What forbids that the output goes to the job's own table."""
    at = "" if planned.then is None else f", at version {planned.then}, which it goes back to,"
    table = f"table {planned.place!r}{at}"
    for field, due in fit.other:
        yield (
            f"sink {output.sink!r}: column {_text(field)} of {table} is {_text(due)} in the "
            f"output of stage {output.stage!r}; emit it as it was, or under another name, or give "
            "the sink another path"
        )
    if not fit.unfilled:
        return
    parted = tables.partition_columns(spark, planned.place)
    for field in fit.unfilled:
        if field.name in parted or not field.nullable:
            why = "the table is partitioned by it" if field.name in parted else "it is NOT NULL"
            yield (
                f"sink {output.sink!r}: column {_text(field)} of {table} is not in the output of "
                f"stage {output.stage!r}, and cannot be null, for {why}; emit it, or give the sink "
                "another path"
            )
