"""What changes a table of a stage's state from one completed checkpoint to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.pages import ORDER_FIELDS
from absflow.columnar.spec import StageSpec
from absflow.facts.reading import FactReader
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import StageManifest
from absflow.protocol.event_time import to_datetime
from absflow.protocol.lineage import shortened
from absflow.spark.model import DELETED, state_schema
from absflow.storage import state_history
from absflow.storage.delta import tables
from absflow.storage.root import StorageRoot
from absflow.storage.sql import quoted

__all__ = ["StateRows", "state_rows"]

_TYPES = ("long", "int")  # of ORDER_FIELDS
_OTHER = "_absflow_key{}"


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows for a lane of a sink of state.

    Attributes:
        frame: ``_seq`` and ``_key_group``, the stage's key and state columns, and whether the row
            of the key goes.
        whole: these are all rows that there are to be; else those that differ.
    """

    frame: DataFrame
    whole: bool


def state_rows(
    root: StorageRoot, spec: StageSpec, table: str, checkpoint_id: int, base: int | None
) -> StateRows | None:
    """The rows that make a table of the state at ``base`` one of the state at a checkpoint.

    A row that differs from the one at ``base`` lies in a set that is not among the sets of
    ``base``, or has expired since, or is gone with its tombstone. Rows of such sets that are as
    they were are among the rows, too: compaction makes new sets of old rows.

    Args:
        root: the storage root.
        spec: the stage.
        table: the name of its state history.
        checkpoint_id: the checkpoint.
        base: what the table has; None if it has none that is known. Of the same attempt.

    Returns:
        None if the checkpoint is deleted.
    """
    facts = FactReader(SparkStorageReader(root.spark), root.layout)
    wanted = {checkpoint_id, *filter(None, [base])}
    there = wanted.intersection(facts.known(named=wanted, triggers=False).there)
    if checkpoint_id not in there:
        return None
    parts = _parts(facts, spec.name, there)
    states = _States(root, spec, root.layout.state(table))
    part = parts[checkpoint_id]
    alive = states.newest(part, part.lineage).where(F.col("_absflow_alive"))
    if base not in there:
        return StateRows(states.made(alive, gone=False), whole=True)
    known = parts[base].lineage
    if part.lineage[: len(known)] == known and spec.expiry is None:
        changed = states.newest(part, part.lineage[len(known) :])
        return StateRows(states.made(changed, gone=~F.col("_absflow_alive")), whole=False)
    before = states.newest(parts[base], known).where(F.col("op") == "upsert")
    gone = states.made(states.lacking(before, alive), gone=True)
    changed = alive.where(~F.col("set_id").isin(*known))
    return StateRows(states.made(changed, gone=False).union(gone), whole=False)


def _parts(facts: FactReader, stage: str, ids: set[int]) -> dict[int, StageManifest]:
    """The stage in the manifests of checkpoints, with the sets that are to be read now."""
    manifests = facts.manifests(ids).values()
    lineages = [(s.report.stage, s.lineage) for each in manifests for s in each.stages]
    compacted = facts.compacted(lineages)
    found = {each.checkpoint_id: shortened(each, compacted).stage(stage) for each in manifests}
    return {n: part for n, part in found.items() if part is not None}


@dataclass(frozen=True, slots=True)
class _States:
    """The states of a stage.

    Attributes:
        root: the storage root.
        spec: the stage.
        path: of its state history.
    """

    root: StorageRoot
    spec: StageSpec
    path: str

    @property
    def _keys(self) -> Sequence[str]:
        return list(self.spec.keys.names)

    def newest(self, part: StageManifest, sets: Sequence[int]) -> DataFrame:
        """The newest row of each key in some sets of a checkpoint, and whether it is of its state.

        Args:
            part: the stage in the checkpoint.
            sets: of its lineage, in order.
        """
        rows = tables.read(self.root.spark, self.path).where(F.col("set_id").isin(*sets))
        if sets:
            rows = state_history.newest_rows(rows, self._keys, sets)
        alive = F.col("op") == "upsert"
        if part.report.expired_upto is not None:
            touched = F.col(quoted(TOUCHED.name))
            upto = F.lit(to_datetime(part.report.expired_upto))
            alive &= F.coalesce(touched > upto, F.lit(True))
        return rows.withColumn("_absflow_alive", alive)

    def lacking(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        """Rows whose key has none among the others."""
        theirs = others.select(
            *(F.col(quoted(key)).alias(_OTHER.format(at)) for at, key in enumerate(self._keys))
        )
        same = [
            F.col(quoted(key)).eqNullSafe(F.col(quoted(_OTHER.format(at))))
            for at, key in enumerate(self._keys)
        ]
        return rows.join(theirs, same, "left_anti")

    def made(self, rows: DataFrame, gone: Column | bool) -> DataFrame:
        """Rows as a lane takes them."""
        order = (F.lit(0).cast(t).alias(f.name) for f, t in zip(ORDER_FIELDS, _TYPES, strict=True))
        names = state_schema(self.spec).names[:-1]
        deleted = gone if isinstance(gone, Column) else F.lit(gone)
        columns = (F.col(quoted(name)) for name in names)
        return rows.select(*order, *columns, deleted.alias(DELETED))
