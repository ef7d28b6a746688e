"""A job's history in Spark: its checkpoints, and the state of every stage at each of them.

Everything here is a SELECT over the job's tables, so the DataFrames and the SQL views are one and
the same text. State at a checkpoint is one filter on ``set_id``, by which the state history is
partitioned, and one window: for each key the last change along the checkpoint's lineage.

pyspark is imported by whoever has a session; here it is not, so that ``import absflow`` stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absflow.errors import NotFoundError, StorageError
from absflow.protocol.checkpoints import Fact, FactKind, FailureReason
from absflow.protocol.lookup import (
    StageColumns,
    check_key,
    find_stage,
    no_checkpoint,
    no_stage_in_checkpoint,
    stages_of,
)
from absflow.storage import select
from absflow.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["History", "history"]

_ENDS = "('COMPLETED', 'ABORTED')"


def history(spark: SparkSession, root: str) -> History:
    """The history of the job under a storage root; the job may be running.

    Args:
        spark: a session with Delta.
        root: the job's ``spark.absflow.storage.path``.

    Raises:
        NotFoundError: no job has ever started there.
    """
    from pyspark.errors import AnalysisException

    from absflow.storage.files import Files

    root = Files(spark).qualified(str(root))  # in SQL a relative path would be a table's name
    layout = Layout(root)
    tables = (layout.attempts, layout.barriers, layout.checkpoints)
    try:
        started, _, _ = (spark.read.format("delta").load(path) for path in tables)
    except AnalysisException as error:
        if error.getCondition() in {"PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND"}:
            raise NotFoundError(
                f"{root!r} is not the storage root of a job (a table is missing: "
                f"{error.getMessage()}); give the job's spark.absflow.storage.path"
            ) from error
        raise StorageError(f"could not read the tables under {root!r}: {error}") from error
    # What an attempt says of a stage goes before what a savepoint written by hand does.
    described = started.where("kind IN ('STARTED', 'WRITTEN')")
    rows = described.collect()
    rows.sort(key=lambda row: (row.kind == "STARTED", row.attempt, row.incarnation))
    return History(spark, layout, stages_of(row.details for row in rows))


class History:
    """The history of one job; made by :func:`history`.

    Every DataFrame and view shows the tables as they are when it is run. The stages are those of
    the attempts that had been started when the history was made.
    """

    def __init__(
        self, spark: SparkSession, layout: Layout, stages: Mapping[str, StageColumns]
    ) -> None:
        """Use :func:`history` instead."""
        self._spark = spark
        self._layout = layout
        self._stages = stages
        self._facts = select.table(layout.checkpoints)
        self._barriers = select.table(layout.barriers)

    def checkpoints(self) -> DataFrame:
        """One row per triggered checkpoint, pending ones included.

        ``status`` is COMPLETED, ABORTED or PENDING; ``sentence`` says ``reason`` in words;
        ``stages`` is the manifest, null unless the checkpoint is completed.
        """
        return self._spark.sql(self._checkpoints_sql()).orderBy("checkpoint_id")

    def stages(self, checkpoint: int | None = None) -> DataFrame:
        """One row per completed checkpoint and stage: what the stage reported.

        ``snapshot_id`` is the checkpoint that the report is of: an older one for a stage that had
        ended by then.

        Args:
            checkpoint: only this one.

        Raises:
            NotFoundError: ``checkpoint`` is not completed.
        """
        frame = self._spark.sql(self._checkpoint_stages_sql())
        if checkpoint is not None:
            self._manifest("", checkpoint)
            frame = frame.where(f"checkpoint_id = {int(checkpoint)}")
        return frame.orderBy("checkpoint_id", "stage")

    def state(self, stage: str, checkpoint: int | None = None) -> DataFrame:
        """The state of a stage at a checkpoint: one row per key, key columns first.

        Args:
            stage: its name.
            checkpoint: a completed checkpoint; None for the newest.

        Raises:
            NotFoundError: there is no such stage or completed checkpoint.
        """
        return self._spark.sql(self._state_sql(find_stage(self._stages, stage), checkpoint))

    def changes(self, stage: str, key: Mapping[str, Any] | None = None) -> DataFrame:
        """How the keys of a stage changed from completed checkpoint to completed checkpoint.

        ``op`` is 'upsert', with the new state, or 'delete', at ``checkpoint_id``; a key that is
        the same at two checkpoints has no row for the second.

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

            check_key(columns, key, whole=True)
            for name, value in key.items():
                frame = frame.where(frame[select.quoted(name)].eqNullSafe(lit(value)))
        return frame.orderBy("checkpoint_id", *map(select.quoted, columns.key))

    def difference(self, stage: str, a: int, b: int) -> DataFrame:
        """The keys whose state differs between two checkpoints.

        One row per key: ``op`` ('added', 'removed' or 'changed' on the way from ``a`` to ``b``),
        the key columns, and the state columns as structs ``before`` and ``after``.

        Raises:
            NotFoundError: there is no such stage or completed checkpoint.
        """
        columns = find_stage(self._stages, stage)
        before, after = (self._state_sql(columns, n) for n in (a, b))
        same_key = " AND ".join(f"a.{k} <=> b.{k}" for k in map(select.quoted, columns.key))
        keys = ", ".join(f"coalesce(a.{k}, b.{k}) AS {k}" for k in map(select.quoted, columns.key))
        was, now = (
            select.struct((n, f"{side}.{select.quoted(n)}") for n in columns.state) for side in "ab"
        )
        schema = self._spark.read.format("delta").load(self._layout.state(stage)).schema
        states = (select.comparable_state(columns, schema, side) for side in ("a.", "b."))
        equal = " AND ".join(f"{x} <=> {y}" for x, y in zip(*states, strict=True))
        return self._spark.sql(
            f"""
            SELECT CASE WHEN a._absflow_there IS NULL THEN 'added'
                        WHEN b._absflow_there IS NULL THEN 'removed'
                        ELSE 'changed' END AS op, {keys},
                   IF(a._absflow_there, {was}, NULL) AS before,
                   IF(b._absflow_there, {now}, NULL) AS after
            FROM (SELECT *, true AS _absflow_there FROM ({before})) AS a
            FULL OUTER JOIN (SELECT *, true AS _absflow_there FROM ({after})) AS b ON {same_key}
            WHERE a._absflow_there IS NULL OR b._absflow_there IS NULL OR NOT ({equal or "true"})
            """
        )

    def create_views(self, prefix: str = "") -> list[str]:
        """Create (or replace) temporary views of everything, for SQL.

        ``checkpoints``; ``checkpoint_stages``; and for each stage with state ``<stage>_state``,
        whose rows are those of :meth:`state` at every completed checkpoint ``at_checkpoint``, and
        ``<stage>_changes``. A filter on ``at_checkpoint`` reads only that checkpoint's lineage::

            SELECT * FROM aircraft_state WHERE at_checkpoint = 12

        Args:
            prefix: stands before each name.

        Returns:
            The names. A stage's ``-`` becomes ``_``, unless another stage has that name.
        """
        views = {
            "checkpoints": self._checkpoints_sql(),
            "checkpoint_stages": self._checkpoint_stages_sql(),
        }
        for name, columns in self._stages.items():
            if columns.key:
                plain = name.replace("-", "_")
                plain = name if plain in self._stages else plain
                views[f"{plain}_state"] = self._states_sql(columns)
                views[f"{plain}_changes"] = self._changes_sql(columns)
        for name, text in views.items():
            view = select.quoted(f"{prefix}{name}")
            self._spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {text}")
        return [f"{prefix}{name}" for name in views]

    # -- the one reading ----------------------------------------------------------------------

    def _state_sql(self, columns: StageColumns, checkpoint: int | None) -> str:
        """State at one checkpoint; its lineage stands in the text as literals."""
        lineage = self._manifest(columns.stage, checkpoint)
        sets = ", ".join(f"{n}L" for n in lineage)
        rows = f"{self._history(columns)} AS h WHERE h.set_id IN ({sets or 'NULL'})"
        last = f"array_position(CAST(array({sets}) AS array<bigint>), h.set_id)"
        return select.newest(columns, rows, last)

    def _states_sql(self, columns: StageColumns) -> str:
        """State at every completed checkpoint."""
        rows = f"""
            (SELECT at_checkpoint, position, named_set
             FROM ({self._lineages_sql(columns)})
             LATERAL VIEW posexplode(lineage) AS position, named_set) AS l
            JOIN {self._history(columns)} AS h ON h.set_id = l.named_set"""
        return select.newest(columns, rows, "l.position", at="l.at_checkpoint")

    def _changes_sql(self, columns: StageColumns) -> str:
        """The changes of every key over the completed checkpoints."""
        schema = self._spark.read.format("delta").load(self._layout.state(columns.stage)).schema
        lineages = self._lineages_sql(columns)
        return select.changes(columns, schema, self._history(columns), lineages)

    # -- the job's own tables -----------------------------------------------------------------

    def _checkpoints_sql(self) -> str:
        cases = " ".join(
            f"WHEN {select.literal(r.code)} THEN {select.literal(r.sentence)}"
            for r in FailureReason
        )
        facts = f"(SELECT * FROM {self._facts} WHERE kind IN {_ENDS})"
        return f"""
            SELECT checkpoint_id, kind AS status, reason, CASE reason {cases} END AS sentence,
                   cause, attempt, base_id, triggered_at, ended_at, duration_ms, stages,
                   fingerprint, versions
            FROM {facts}
            UNION ALL
            SELECT b.checkpoint_id, 'PENDING', NULL, NULL, NULL, b.attempt, b.base_id,
                   b.triggered_at, NULL, NULL, NULL, NULL, NULL
            FROM {self._barriers} AS b
            LEFT ANTI JOIN {facts} AS f ON f.checkpoint_id = b.checkpoint_id
            WHERE b.kind <> 'END'"""

    def _checkpoint_stages_sql(self) -> str:
        return f"""
            SELECT checkpoint_id, triggered_at, s.checkpoint_id AS snapshot_id,
                   s.* EXCEPT (checkpoint_id)
            FROM {self._facts} LATERAL VIEW explode(stages) AS s
            WHERE kind = 'COMPLETED'"""

    def _lineages_sql(self, columns: StageColumns) -> str:
        """One row per completed checkpoint that has the stage.

        ``full``: the stage's snapshot was a full one, so its lineage does not go on from another.
        """
        return f"""
            SELECT checkpoint_id AS at_checkpoint, s.lineage,
                   base_id = 0 AND s.checkpoint_id = checkpoint_id AS full
            FROM (SELECT checkpoint_id, base_id, {select.stage(columns.stage)} AS s
                  FROM {self._facts} WHERE kind = 'COMPLETED')
            WHERE s IS NOT NULL"""

    def _manifest(self, stage: str, checkpoint: int | None) -> list[int]:
        """The lineage of ``stage`` at a completed checkpoint (None: the newest).

        Raises:
            NotFoundError: it is not completed, or does not have the stage ('': none is wanted).
        """
        only = "" if checkpoint is None else f"AND checkpoint_id = {int(checkpoint)}"
        rows = self._spark.sql(
            f"""
            SELECT checkpoint_id, {select.stage(stage)}.lineage AS lineage, stages.stage AS names
            FROM {self._facts} WHERE kind = 'COMPLETED' {only}
            ORDER BY checkpoint_id DESC LIMIT 1"""
        ).collect()
        if not rows:
            raise self._not_completed(checkpoint)
        if stage and rows[0].lineage is None:
            raise no_stage_in_checkpoint(stage, rows[0].checkpoint_id, rows[0].names)
        return list(rows[0].lineage or [])

    def _not_completed(self, checkpoint: int | None) -> NotFoundError:
        rows = self._spark.sql(
            f"SELECT checkpoint_id, kind, reason FROM {self._facts} WHERE kind IN {_ENDS}"
        ).collect()
        by_code = {reason.code: reason for reason in FailureReason}
        facts = [Fact(r.checkpoint_id, FactKind(r.kind), by_code.get(r.reason)) for r in rows]
        barriers = self._spark.sql(
            f"SELECT checkpoint_id FROM {self._barriers} WHERE kind <> 'END'"
        ).collect()
        return no_checkpoint(checkpoint, facts, {b.checkpoint_id for b in barriers})

    def _history(self, columns: StageColumns) -> str:
        return select.table(self._layout.state(columns.stage))
