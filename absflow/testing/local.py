"""Whole jobs on a local Spark, in a folder of their own: run to their end, and looked at."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from absflow.declared import declared_columns
from absflow.history import History, history
from absflow.job import Job
from absflow.settings.catalog import PREFIX
from absflow.settings.session_keys import SESSION_KEYS
from absflow.spark.control.run import Run
from absflow.storage.session import conf_set
from absflow.testing.rows import Rows, is_table, table_of

__all__ = ["Declares", "LocalJobs", "local_session"]

# A job, or a function that declares one.
Declares: TypeAlias = "Job | Callable[[SparkSession], Job]"

# Small, quiet, and the same everywhere.
_CONF = {
    "spark.master": "local[2]",
    "spark.app.name": "absflow-tests",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
# A job that takes as long as this hangs.
_TIMEOUT_S = 300.0


def local_session(conf: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session on this machine, with Delta and what absflow needs; that which runs, if any.

    Args:
        conf: more of its conf, or other values.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else the workers may be another Python, without absflow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder
    own = {key.name: key.value for key in SESSION_KEYS}
    # The workers find what the tests find: modules of theirs among it.
    known = [os.environ.get("PYTHONPATH", ""), *sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, known)))
    for name, value in {**own, **_CONF, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class LocalJobs:
    """Runs jobs under one storage root in a folder, and reads what they leave.

    Attributes:
        spark: the session.
        folder: for the storage root, and for whatever a test has.
    """

    def __init__(self, spark: SparkSession, folder: str | os.PathLike[str]) -> None:
        """Nothing runs yet."""
        self.spark = spark
        self.folder = Path(folder)
        self._runs: list[tuple[Run, ExitStack]] = []

    @property
    def root(self) -> str:
        """The storage root of the jobs."""
        return str(self.folder / "job")

    def run(
        self,
        job: Declares,
        conf: Mapping[str, str] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> Run:
        """Run a job to its end: its sources are bounded. Once more, it goes on where it was.

        Args:
            job: the job, or a function of the session that declares it.
            conf: settings of absflow, and whatever the job reads from the session's conf; for the
                time of the run.
            timeout_s: after so long it is stopped.

        Raises:
            TimeoutError: it did not end.
            JobFailedError: it gave up.
        """
        run = self.start(job, conf)
        try:
            if not run.await_termination(timeout_s):
                raise TimeoutError(
                    f"the job has not ended in {timeout_s:g} s; if its sources are not bounded, "
                    "use start, and stop it. It has come to: "
                    f"{run.progress()}"
                )
        finally:
            self.stop()
        return run

    def start(self, job: Declares, conf: Mapping[str, str] | None = None) -> Run:
        """Start a job, which is stopped at the end of the test if nobody does; as :meth:`run`."""
        values = {
            f"{PREFIX}storage.path": self.root,
            f"{PREFIX}key-groups": "4",
            f"{PREFIX}checkpoint.interval": "1s",
            **(conf or {}),
        }
        with ExitStack() as stack:
            stack.enter_context(conf_set(self.spark, values))
            declared = job if isinstance(job, Job) else job(self.spark)
            run = declared.start()
            # A query that starts again asks the session once more.
            self._runs.append((run, stack.pop_all()))
        return run

    def stop(self) -> None:
        """Stop what runs; errors of jobs are those of :meth:`absflow.Run.await_termination`."""
        while self._runs:
            run, stack = self._runs.pop()
            with stack:
                if run.is_active:
                    run.stop()

    def history(self) -> History:
        """The history of the job."""
        return history(self.spark, self.root)

    def state(self, stage: str, checkpoint: int | None = None) -> list[dict[str, Any]]:
        """The state of a stage at a checkpoint, the newest if none is named: a row for each key."""
        return _rows(self.history().state(stage, checkpoint).toArrow())

    def timers(self, stage: str, checkpoint: int | None = None) -> list[dict[str, Any]]:
        """The timers of a stage at a checkpoint."""
        return _rows(self.history().timers(stage, checkpoint).toArrow())

    def read(self, path: str | os.PathLike[str], format: str = "delta") -> list[dict[str, Any]]:
        """The rows of a table, as of a sink; a path that is not absolute is below the folder."""
        return _rows(self.spark.read.format(format).load(str(self.folder / path)).toArrow())

    def write(
        self,
        path: str | os.PathLike[str],
        rows: Rows,
        columns: str | StructType | pa.Schema | None = None,
    ) -> Path:
        """Write rows into a Parquet file for a source to read, below the folder.

        Args:
            path: of the file; its directories are made. It is written aside and put there whole.
            rows: rows in any form.
            columns: theirs; not needed of a table or frame.

        Returns:
            Where it is.
        """
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if columns is None:
            if not is_table(rows):
                raise ValueError("rows that are no table need columns, as DDL")
            table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows)
        else:
            known = isinstance(columns, pa.Schema)
            schema = columns if known else declared_columns(str(path), "columns", columns)
            table = table_of(rows, schema, str(path))
        aside = file.with_name(f".{file.name}.new")
        pq.write_table(table, aside)
        return aside.rename(file)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
