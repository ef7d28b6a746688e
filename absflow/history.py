"""A job's history in Spark: its checkpoints, and the state of every stage at each of them.

Everything here is a SELECT over the job's tables, so the DataFrames and the SQL views are one and
the same text. State at a checkpoint is one filter on ``set_id``, by which the state history is
partitioned, and one window: for each key the last change along the checkpoint's lineage.

pyspark is imported by whoever has a session; here it is not, so that ``import absflow`` stays fast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from absflow.errors import NotFoundError
from absflow.facts.absent import no_history, no_late_rows
from absflow.facts.attempts import job_now, read_attempts
from absflow.facts.listing import checkpoints, newest
from absflow.facts.overview import checkpoint_rows, stage_rows
from absflow.facts.reading import FactReader
from absflow.facts.records import CheckpointRecord
from absflow.facts.stages import (
    Stages,
    check_key,
    find_stage,
    stages_of,
)
from absflow.history_facts import HistoryFacts
from absflow.protocol.checkpoints import Manifest, StageColumns
from absflow.protocol.recovery.branch import Branch, branch_of
from absflow.storage import facts_sql, history_sql
from absflow.storage.layout import Layout
from absflow.storage.sql import each, quoted, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from absflow.view import View

__all__ = ["History", "history"]

# A notebook's strip has so many checkpoints.
_SHOWN = 60


def history(spark: SparkSession, root: str) -> History:
    """The history of the job under a storage root; the job may be running.

    Args:
        spark: a session with Delta.
        root: the job's ``spark.absflow.storage.path``.

    Raises:
        NotFoundError: no job has ever started there.
    """
    from absflow.facts.explained import explain_errors
    from absflow.facts.spark_reader import SparkStorageReader
    from absflow.storage.delta.tables import exists
    from absflow.storage.files import Files
    from absflow.storage.session import check_pages

    check_pages(spark)
    files = Files(spark)
    root = files.qualified(str(root))  # in SQL a relative path would be a table's name
    layout = Layout(root)
    explain_errors(spark, layout)
    for path in (layout.attempts, layout.barriers, layout.checkpoints):
        if not exists(files, path):  # for Spark to load it takes seconds beside a running job
            raise no_history(root, path)
    reader = SparkStorageReader(spark, patient=True)
    records = read_attempts(reader, layout)
    job = job_now(root, records)
    facts = FactReader(reader, layout)
    known = facts.known(named=job.origins, triggers=False)
    branch = branch_of(job.root, job.attempts, known.attempts, known.written)
    return History(spark, layout, stages_of(records), branch, facts)


class History(HistoryFacts):
    """The history of one job; made by :func:`history`.

    Every DataFrame and view shows the tables as they are when it is run, all of a query at one
    moment. Only :meth:`checkpoints` and :meth:`stages`, of a job with less than about 1,000
    checkpoints, show them as they were when the method was called. The stages, and which
    checkpoints a restore has abandoned, are those of the attempts that had been started when the
    history was made.

    A stage whose columns have changed has begun a new table. :meth:`state` shows the columns of
    then; :meth:`changes` and the views read every table, and show those of now.
    """

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        stages: Stages,
        branch: Branch,
        facts: FactReader,
    ) -> None:
        """Use :func:`history` instead."""
        super().__init__(spark, layout, facts)
        self._all = stages
        self._stages = stages.newest
        self._branch = branch
        self._facts = table(layout.checkpoints)
        self._barriers = table(layout.barriers)

    def checkpoints(self) -> DataFrame:
        """One row per triggered checkpoint, pending ones included.

        ``type`` is CHECKPOINT or SAVEPOINT. ``status`` is COMPLETED, ABORTED, PENDING or, of one
        that was completed and is no longer kept, DELETED; what a driver that is no more has left
        pending is ABORTED, as the next start will say. ``abandoned`` is true of what is no part of
        the job any more, since a restore went back to an older one; ``sentence`` says ``reason`` in
        words; ``stages`` is the manifest, null unless the checkpoint is completed.
        """
        lost = bool(self._lost_driver())  # before its facts are read: what it has written is all
        if (found := self._reader.whole()) is None:
            return self._spark.sql(self._checkpoints_sql()).orderBy("checkpoint_id")
        return self._spark.createDataFrame(checkpoint_rows(*found, self._branch, lost=lost))

    def checkpoint(self, checkpoint: int | None = None) -> CheckpointRecord:
        """One checkpoint, whatever its status; a notebook shows where its time went.

        Args:
            checkpoint: its id; None for the newest completed one.

        Raises:
            NotFoundError: it was never triggered, or was deleted.
        """
        number = self._completed(None)[0] if checkpoint is None else int(checkpoint)
        return checkpoints(self._reader, [number], self._job_now())[0]

    def manifest(self, checkpoint: int | None = None) -> Manifest:
        """All that a completed checkpoint (None: the newest) consists of.

        Raises:
            NotFoundError: it is not completed.
        """
        return self._whole(checkpoint)[0]

    def _repr_html_(self) -> str:
        """As a notebook shows it: the newest checkpoints."""
        found = newest(self._reader, _SHOWN, self._job_now())
        return found.html(f"checkpoints of {self._layout.root}")

    def stages(self, checkpoint: int | None = None) -> DataFrame:
        """One row per completed checkpoint and stage: what the stage reported.

        ``snapshot_id`` is the checkpoint that the report is of: an older one for a stage that had
        ended by then.

        Args:
            checkpoint: only this one.

        Raises:
            NotFoundError: ``checkpoint`` is not completed.
        """
        found = self._reader.whole()
        if found is None:
            text = facts_sql.checkpoint_stages(self._facts)
            frame = self._spark.sql(text).orderBy("checkpoint_id", "stage")
        else:
            frame = self._spark.createDataFrame(stage_rows(found[1]))
        if checkpoint is not None:
            self._completed(checkpoint)
            frame = frame.where(f"checkpoint_id = {int(checkpoint)}")
        return frame

    def state(self, stage: str, checkpoint: int | None = None) -> DataFrame:
        """The state of a stage at a checkpoint: one row per key, key columns first.

        Args:
            stage: its name.
            checkpoint: a completed checkpoint; None for the newest.

        Raises:
            NotFoundError: there is no such stage or completed checkpoint.
        """
        return self._spark.sql(self._state_sql(find_stage(self._stages, stage), checkpoint)[0])

    def timers(self, stage: str, checkpoint: int | None = None) -> DataFrame:
        """The timers of a stage at a checkpoint: one row per timer.

        The key columns, ``domain`` ("event" or "processing"), ``time`` and ``name``. Arguments and
        errors are those of :meth:`state`.

        Raises:
            NotFoundError: the stage has no timers at all.
        """
        from absflow.columnar.timers import TIMER_COLUMNS, Domain

        text, columns = self._state_sql(find_stage(self._stages, stage), checkpoint)
        if not {*TIMER_COLUMNS} <= {*columns.state}:
            raise NotFoundError(
                f"stage {stage!r} has no timers at that checkpoint: it had no function for them"
            )
        domains = {domain.value: domain.column for domain in Domain}
        return self._spark.sql(history_sql.timers(columns, text, domains))

    def changes(self, stage: str, key: Mapping[str, Any] | None = None) -> DataFrame:
        """How the keys of a stage changed from completed checkpoint to completed checkpoint.

        The checkpoints are those of the job as it is now, without abandoned and deleted ones. At
        the first of them every key is new.

        ``op`` is 'upsert', with the new state, or 'delete', at ``checkpoint_id``; a key that is
        the same at two checkpoints has no row for the second. Of checkpoints from before the
        stage's columns changed it shows what the view ``<stage>_state`` does, and compares that.

        Args:
            stage: its name.
            key: a value for each key column, None for null; without it, the changes of all keys.

        Raises:
            NotFoundError: there is no such stage, or ``key`` does not name its key columns.
        """
        columns = find_stage(self._stages, stage)
        frame = self._spark.sql(self._changes_sql(columns))
        if key is not None:
            from pyspark.sql.functions import lit

            check_key(columns, key)
            for name, value in key.items():
                frame = frame.where(frame[quoted(name)].eqNullSafe(lit(value)))
        return frame.orderBy("checkpoint_id", *map(quoted, columns.key))

    def difference(self, stage: str, a: int, b: int) -> DataFrame:
        """The keys whose state differs between two checkpoints.

        One row per key: ``op`` ('added', 'removed' or 'changed' on the way from ``a`` to ``b``),
        the key columns, and the state columns as structs ``before`` and ``after``. If the state
        columns are not the same ones, every key differs.

        Raises:
            NotFoundError: there is no such stage or completed checkpoint, or its key columns are
                not the same at both.
        """
        found = find_stage(self._stages, stage)
        (before, old), (after, columns) = (self._state_sql(found, n) for n in (a, b))
        if old.key != columns.key:
            raise NotFoundError(
                f"the key of stage {stage!r} was {', '.join(old.key)} at checkpoint {a} and is "
                f"{', '.join(columns.key)} at {b}: keys of the one are none of the other"
            )
        schema = self._schema(columns) if old.state == columns.state else None
        return self._spark.sql(history_sql.difference(before, old, after, columns, schema))

    def late(self, source: str) -> DataFrame:
        """The late rows of a source, each once: without those of what a restore has abandoned.

        A row with ``_epoch`` e came before every checkpoint from e on. Those from before a fork are
        under the storage root that it comes from.

        Raises:
            NotFoundError: none came late, or the source's ``late`` is not "table".
        """
        path = self._layout.late(source)
        if not self._exists(path):
            raise no_late_rows(source)
        kept = facts_sql.since_begun(self._branch, "_attempt", "_epoch")
        return self._spark.sql(f"SELECT * FROM {table(path)} WHERE {kept}")

    def create_views(self, prefix: str = "") -> list[str]:
        """Create (or replace) temporary views of everything, for SQL.

        ``checkpoints``; ``checkpoint_stages``; and for each stage with state ``<stage>_state``,
        whose rows are those of :meth:`state` at every completed checkpoint ``at_checkpoint``, and
        ``<stage>_changes``. A filter on ``at_checkpoint`` reads only that checkpoint's lineage::

            SELECT * FROM aircraft_state WHERE at_checkpoint = 12

        Both have the columns of now. Of a checkpoint from before they changed a column
        is null if there was none of its name, or one of a type whose values its own cannot hold;
        checkpoints at which the key columns were others are in neither.

        Args:
            prefix: stands before each name.

        Returns:
            The names. A stage's ``-`` becomes ``_``, unless another stage has that name.
        """
        views = {"checkpoints": self._checkpoints_sql()}
        views["checkpoint_stages"] = facts_sql.checkpoint_stages(self._facts)
        for name, columns in self._stages.items():
            if columns.key:
                plain = name.replace("-", "_")
                plain = name if plain in self._stages else plain
                views[f"{plain}_state"] = self._all_states_sql(columns)
                views[f"{plain}_changes"] = self._changes_sql(columns)
        for name, text in views.items():
            view = quoted(f"{prefix}{name}")
            self._spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {text}")
        return [f"{prefix}{name}" for name in views]

    def view(self, checkpoint: int | None = None) -> View:
        """Every sink's table and every state at one checkpoint (None: the newest): one cut.

        Raises:
            NotFoundError: it is not completed.
        """
        from absflow.view import view_at

        number, _ = self._completed(checkpoint)
        there = {stage.report.stage for stage in self._reader.stages([number])[number]}
        stages = {n: c for n, c in self._stages.items() if c.key and n in there}
        sql = {name: partial(self._state_sql, each, number) for name, each in stages.items()}
        return view_at(self._spark, self._layout, number, sql)

    def _state_sql(self, columns: StageColumns, checkpoint: int | None) -> tuple[str, StageColumns]:
        """State at one checkpoint, and the stage as it was then.

        The lineage stands in the text as literals.
        """
        manifest, taken_by = self._manifest(columns.stage, checkpoint)
        columns, upto = self._all.at(columns, taken_by), manifest.report.expired_upto
        sets = ", ".join(f"{n}L" for n in manifest.lineage)
        rows = f"{self._history(columns)} AS h WHERE h.set_id IN ({sets or 'NULL'})"
        last = f"array_position(CAST(array({sets}) AS array<bigint>), h.set_id)"
        return history_sql.newest(columns, rows, last, expired_upto=upto), columns

    def _all_states_sql(self, columns: StageColumns) -> str:
        """State at every completed checkpoint, from all tables that have the same key."""
        parts = [self._states_sql(columns)]
        for then, names in self._before(columns, self._schema(columns)):
            parts.append(f"SELECT h.at_checkpoint, {names} FROM ({self._states_sql(then)}) AS h")
        return " UNION ALL ".join(parts)

    def _before(
        self, columns: StageColumns, schema: StructType
    ) -> Iterator[tuple[StageColumns, str]]:
        """The stage in its other tables with the same key; what to SELECT there of state ``h``."""
        for then in self._all.before(columns):
            if then.key == columns.key and self._exists(self._layout.state(then.table)):
                names = history_sql.as_now(columns, schema, self._schema(then))
                if names:
                    yield then, names

    def _states_sql(self, columns: StageColumns) -> str:
        """State at every completed checkpoint whose state is in this table."""
        lineages = self._lineages_sql(columns, [columns.table])
        return history_sql.states(columns, self._history(columns), lineages)

    def _changes_sql(self, columns: StageColumns) -> str:
        """The changes of every key over the completed checkpoints of the branch, as above."""
        own = facts_sql.on_branch(self._branch, "attempt", "checkpoint_id")
        parts = [f"derived_from IS NULL AND {part}" for part in own]
        parts += [f"checkpoint_id = {n}" for n in self._branch.written]
        on_line = " OR ".join(f"({part})" for part in parts) or "false"
        schema, tables = self._schema(columns), [columns.table]
        histories = {self._history(columns): each("h", (*columns.key, *columns.state))}
        for then, names in self._before(columns, schema):
            histories[self._history(then)] = names
            tables.append(then.table)
        lineages = self._lineages_sql(columns, tables, f"AND ({on_line})")
        return history_sql.changes(columns, schema, histories, lineages)

    def _exists(self, path: str) -> bool:
        """Whether the table is there: an attempt that was never ready may have made none."""
        from absflow.storage.delta import tables
        from absflow.storage.files import Files

        return tables.exists(Files(self._spark), path)

    def _schema(self, columns: StageColumns) -> StructType:
        return self._spark.read.format("delta").load(self._layout.state(columns.table)).schema

    def _checkpoints_sql(self) -> str:
        kept = facts_sql.since_begun(self._branch, "attempt", "checkpoint_id")
        # What a driver that is no more has left pending stays so until the next start.
        pending = self._reader.known().pending if self._lost_driver() else ()
        lost = [trigger.barrier.checkpoint_id for trigger in pending]
        return facts_sql.checkpoints(self._facts, self._barriers, f"NOT ({kept})", lost)

    def _lineages_sql(self, columns: StageColumns, tables: Collection[str], only: str = "") -> str:
        """One row per completed checkpoint with the stage in these tables: what to read."""
        for attempt, incarnation in self._all.elsewhere(columns, tables):
            theirs = f"derived_from IS NULL AND attempt = {attempt}"
            if incarnation:
                theirs = f"derived_from IS NOT NULL AND incarnation = {incarnation}"
            only += f" AND NOT ({theirs})"
        return history_sql.lineages(columns, self._facts, only)

    def _history(self, columns: StageColumns) -> str:
        return table(self._layout.state(columns.table))
