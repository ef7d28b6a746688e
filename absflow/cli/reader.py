"""A job's tables read without a JVM: Delta logs by deltalake, data files by Arrow."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSystem, SubTreeFileSystem

from absflow.errors import NotFoundError, StorageError
from absflow.protocol.checkpoints import (
    Fact,
    FactKind,
    FailureReason,
    Kind,
    StageManifest,
    StageReport,
    Status,
)
from absflow.protocol.handwriting import WRITTEN
from absflow.protocol.lookup import (
    StageColumns,
    check_key,
    find_stage,
    no_checkpoint,
    no_stage_in_checkpoint,
    stages_of,
)
from absflow.storage.layout import Layout

__all__ = ["CheckpointRecord", "Reader", "StateRecord"]

_REPORT = {f.name for f in fields(StageReport)}
_LIGHT = ["checkpoint_id", "kind", "reason"]
_ROW = "_absflow_row"
_COMPLETED = ds.field("kind") == FactKind.COMPLETED.value
_ENDED = _COMPLETED | (ds.field("kind") == FactKind.ABORTED.value)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One triggered checkpoint, with its terminal fact if it has one.

    Attributes:
        checkpoint_id: its id.
        status: derived from the facts.
        attempt: the attempt in which it was triggered.
        base_id: what its snapshots are relative to; 0 means that they are full.
        triggered_at: when.
        ended_at: when it was completed or aborted; None if pending.
        duration_ms: between the two.
        reason: code of the reason why it was aborted.
        cause: what was seen then.
        stages: the manifest; empty unless completed.
        versions: of absflow, pyspark and delta-spark.
    """

    checkpoint_id: int
    status: Status
    attempt: int
    base_id: int
    triggered_at: datetime
    ended_at: datetime | None = None
    duration_ms: int | None = None
    reason: str | None = None
    cause: str | None = None
    stages: tuple[StageManifest, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateRecord:
    """State of a stage at a checkpoint.

    Attributes:
        checkpoint_id: the checkpoint.
        columns: names of key and state columns.
        rows: one row per key, sorted by key.
    """

    checkpoint_id: int
    columns: StageColumns
    rows: pa.Table


class Reader:
    """The tables under one storage root, as they are when first asked for."""

    def __init__(self, root: str) -> None:
        """Read below ``root``, a path or URL as Spark takes it."""
        self.root = root
        url = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/+", "/", root))
        self._layout = Layout(url.rstrip("/"))

    @cached_property
    def stages(self) -> dict[str, StageColumns]:
        """The stages of the job, by name in topological order.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        rows = self._read(
            self._layout.attempts,
            ds.field("kind").isin(["STARTED", WRITTEN]),
            ["attempt", "incarnation", "kind", "details"],
        )
        # What an attempt says of a stage goes before what a savepoint written by hand does.
        rows.sort(key=lambda r: (r["kind"] == "STARTED", r["attempt"], r["incarnation"]))
        return stages_of(row["details"] for row in rows)

    def checkpoints(self) -> list[CheckpointRecord]:
        """Every triggered checkpoint, by id."""
        facts = self._read(self._layout.checkpoints, _ENDED)
        ended = {row["checkpoint_id"] for row in facts}
        pending = [row for row in self._barriers() if row["checkpoint_id"] not in ended]
        records = [*map(_ended, facts), *map(_pending, pending)]
        return sorted(records, key=lambda record: record.checkpoint_id)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord:
        """One checkpoint, whatever its status.

        Raises:
            NotFoundError: it was never triggered.
        """
        only = ds.field("checkpoint_id") == checkpoint_id
        facts = self._read(self._layout.checkpoints, only & _ENDED)
        if facts:
            return _ended(facts[0])
        for row in self._barriers():
            if row["checkpoint_id"] == checkpoint_id:
                return _pending(row)
        raise self._no_checkpoint(checkpoint_id)

    def state(
        self, stage: str, checkpoint_id: int | None, key: Mapping[str, str | None] | None = None
    ) -> StateRecord:
        """State of a stage: for each key the last change along the checkpoint's lineage.

        Args:
            stage: its name.
            checkpoint_id: a completed checkpoint; None for the newest.
            key: texts (None for null) of some key columns that the rows must have.

        Raises:
            NotFoundError: there is no such stage, checkpoint or key column.
        """
        columns = find_stage(self.stages, stage)
        check_key(columns, key or {})
        checkpoint_id, lineage = self._lineage(stage, checkpoint_id)
        history = self._open(self._layout.state(stage))
        wanted = ds.field("set_id").isin(pa.array(lineage, pa.int64()))
        for name, text in (key or {}).items():
            wanted &= _is(name, _parse(name, text, history.schema.field(name).type))
        names = [*columns.key, *columns.state]
        with self._reading(self._layout.state(stage)):
            # Set ids are the names of directories: other sets' files are not even opened.
            changes = history.to_table(columns=["set_id", "op", *names], filter=wanted)
        rows = _newest(changes, columns.key, lineage).select(names)
        return StateRecord(checkpoint_id, columns, rows)

    @property
    def requests(self) -> str:
        """Where the ``requests`` table is, as deltalake takes it."""
        return self._layout.requests

    def driver(self) -> tuple[int, str]:
        """The newest driver's incarnation, and how it has ended; "" if it has not said so.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        rows = self._read(self._layout.attempts, None, ["incarnation", "kind"])
        newest = max(row["incarnation"] for row in rows)
        ends = (r["kind"] for r in rows if r["incarnation"] == newest)
        return newest, next((kind.lower() for kind in ends if kind in {"ENDED", "FAILED"}), "")

    def answer(self, request: str) -> dict[str, Any] | None:
        """The row of ``checkpoints`` that answers a request; None while there is none."""
        wanted = ds.field("request") == request
        rows = self._read(self._layout.checkpoints, wanted, [*_LIGHT, "cause"])
        return rows[0] if rows else None

    def _lineage(self, stage: str, checkpoint_id: int | None) -> tuple[int, list[int]]:
        if checkpoint_id is None:
            ids = self._read(self._layout.checkpoints, _COMPLETED, ["checkpoint_id"])
            checkpoint_id = max((row["checkpoint_id"] for row in ids), default=None)
            if checkpoint_id is None:
                raise self._no_checkpoint(None)
        this = ds.field("checkpoint_id") == checkpoint_id
        facts = self._read(self._layout.checkpoints, _COMPLETED & this)
        if not facts:
            raise self._no_checkpoint(checkpoint_id)
        lineages = {s["stage"]: list(s["lineage"]) for s in facts[0]["stages"]}
        if stage not in lineages:
            raise no_stage_in_checkpoint(stage, checkpoint_id, lineages)
        return checkpoint_id, lineages[stage]

    def _no_checkpoint(self, checkpoint_id: int | None) -> NotFoundError:
        by_code = {reason.code: reason for reason in FailureReason}
        facts = [
            Fact(row["checkpoint_id"], FactKind(row["kind"]), by_code.get(row["reason"]))
            for row in self._read(self._layout.checkpoints, _ENDED, _LIGHT)
        ]
        return no_checkpoint(checkpoint_id, facts, {b["checkpoint_id"] for b in self._barriers()})

    def _barriers(self) -> list[dict[str, Any]]:
        return self._read(self._layout.barriers, ds.field("kind") != Kind.END.value)

    def _read(
        self, table: str, wanted: ds.Expression | None, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        dataset = self._open(table)
        with self._reading(table):
            return list(dataset.to_table(columns=columns, filter=wanted).to_pylist())

    def _open(self, table: str) -> ds.Dataset:
        """A table's newest version.

        Its files are read through Arrow's own file system. The one that deltalake would hand it is
        in Python, and its threads abort the process if they are still at work when Python ends.
        """
        with self._reading(table):
            delta = DeltaTable(table)
            store, path = FileSystem.from_uri(table if "://" in table else os.path.abspath(table))
            return delta.to_pyarrow_dataset(filesystem=SubTreeFileSystem(path, store))

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """Turns what the libraries raise into errors of absflow."""
        try:
            yield
        except TableNotFoundError as error:
            raise NotFoundError(
                f"{self.root!r} is not the storage root of a job: there is no table {table!r}; "
                "give the job's spark.absflow.storage.path"
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            seen = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            raise StorageError(f"could not read table {table!r}: {seen}") from error


def _ended(row: Mapping[str, Any]) -> CheckpointRecord:
    stages = []
    for stage in row["stages"] or []:
        known = {name: value for name, value in stage.items() if name in _REPORT}
        known["positions"] = dict(stage["positions"] or [])
        stages.append(StageManifest(StageReport(**known), tuple(stage["lineage"])))
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status(row["kind"]),
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        reason=row["reason"],
        cause=row["cause"],
        stages=tuple(stages),
        versions=dict(row["versions"] or []),
    )


def _pending(row: Mapping[str, Any]) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status.PENDING,
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
    )


def _newest(changes: pa.Table, key: Sequence[str], lineage: Sequence[int]) -> pa.Table:
    """The last change of each key, unless it is a deletion; sorted by key."""
    place = pc.index_in(changes["set_id"], value_set=pa.array(lineage, pa.int64()))
    changes = changes.take(pc.sort_indices(place))
    numbered = changes.select(key).append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    rows = changes.take(last)
    rows = rows.filter(pc.equal(rows["op"], "upsert"))
    return rows.sort_by([(name, "ascending") for name in key])


def _is(name: str, value: pa.Scalar) -> ds.Expression:
    return ds.field(name) == value if value.is_valid else ds.field(name).is_null()


def _parse(name: str, text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A key column's value from the command line, in the form in which it is printed."""
    if text is None:
        return pa.scalar(None, type_)
    try:
        if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
            return pa.scalar(base64.b64decode(text, validate=True), type_)
        return pa.scalar(text, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, binascii.Error) as error:
        raise NotFoundError(
            f"key column {name!r} has type {type_}, which {text!r} is not; give it as "
            "`absflow state --json` prints it"
        ) from error
