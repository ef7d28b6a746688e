"""A job's tables read without a JVM: Delta logs by deltalake, data files by Arrow."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSelector, FileSystem, FileType, SubTreeFileSystem

from absflow.cli.records import (
    CheckpointRecord,
    DeletionRecord,
    RetentionRecord,
    StateRecord,
    ended_record,
    pending_record,
)
from absflow.errors import NotFoundError, StorageError
from absflow.facts.inventory import JobInventory, gather
from absflow.facts.records import compacted_of, deleted_of
from absflow.facts.stages import (
    Stages,
    check_key,
    find_stage,
    no_checkpoint,
    no_stage_in_checkpoint,
    stages_of,
    whose,
)
from absflow.protocol.checkpoints import (
    AttemptFact,
    Fact,
    FactKind,
    FailureReason,
    Kind,
    StageColumns,
    Status,
)
from absflow.protocol.lineage import lineage_of
from absflow.protocol.retention.deletion import Deletion, freed, judge
from absflow.protocol.retention.inventory import Action, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import explain, plan
from absflow.storage.layout import Layout

__all__ = ["Reader"]

_LIGHT = ["checkpoint_id", "kind", "reason"]
_COMPACTED = ["checkpoint_id", "kind", "stage", "set_id", "replaces"]
_ROW = "_absflow_row"
_COMPLETED = ds.field("kind") == FactKind.COMPLETED.value
_ENDED = _COMPLETED | (ds.field("kind") == FactKind.ABORTED.value)
_DELETED = ds.field("kind") == FactKind.DELETED.value


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
        return self._stages.newest

    @cached_property
    def _stages(self) -> Stages:
        rows = self._read(
            self._layout.attempts,
            ds.field("kind").isin([AttemptFact.STARTED.value, AttemptFact.WRITTEN.value]),
            ["attempt", "incarnation", "kind", "details"],
        )
        return stages_of(rows)

    @cached_property
    def _deleted(self) -> frozenset[int]:
        return deleted_of(self._read(self._layout.checkpoints, _DELETED, _LIGHT))

    def checkpoints(self) -> list[CheckpointRecord]:
        """Every triggered checkpoint, by id."""
        facts = self._read(self._layout.checkpoints, _ENDED)
        ended = {row["checkpoint_id"] for row in facts}
        pending = [row for row in self._barriers() if row["checkpoint_id"] not in ended]
        records = [
            *(ended_record(row, self._deleted) for row in facts),
            *map(pending_record, pending),
        ]
        return sorted(records, key=lambda record: record.checkpoint_id)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord:
        """One checkpoint, whatever its status.

        Raises:
            NotFoundError: it was never triggered, or was deleted.
        """
        if checkpoint_id in self._deleted:
            raise self._no_checkpoint(checkpoint_id)
        only = ds.field("checkpoint_id") == checkpoint_id
        facts = self._read(self._layout.checkpoints, only & _ENDED)
        if facts:
            return ended_record(facts[0], self._deleted)
        for row in self._barriers():
            if row["checkpoint_id"] == checkpoint_id:
                return pending_record(row)
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
        find_stage(self.stages, stage)
        number, lineage, columns = self._lineage(stage, checkpoint_id)
        check_key(columns, key or {})
        history = self._open(self._layout.state(columns.table))
        wanted = ds.field("set_id").isin(pa.array(lineage, pa.int64()))
        for name, text in (key or {}).items():
            wanted &= _is(name, _parse(name, text, history.schema.field(name).type))
        names = [*columns.key, *columns.state]
        with self._reading(self._layout.state(columns.table)):
            # Set ids are the names of directories: other sets' files are not even opened.
            changes = history.to_table(columns=["set_id", "op", *names], filter=wanted)
        rows = _newest(changes, columns.key, lineage).select(names)
        return StateRecord(number, columns, rows)

    def retention(self, policy: RetentionPolicy) -> RetentionRecord:
        """What retention would do now, and why the rest stays."""
        there = self._inventory().inventory
        return RetentionRecord(plan(there, policy), explain(there, policy))

    def deletion(self, checkpoint_ids: Collection[int]) -> DeletionRecord:
        """What a deletion of these checkpoints would do now.

        Raises:
            NotFoundError: one of them is not completed, or was deleted.
        """
        ids = sorted({*checkpoint_ids})
        records = tuple(self.checkpoint(n) for n in ids)
        for record in records:
            if record.status is not Status.COMPLETED:
                raise self._no_checkpoint(record.checkpoint_id)
        found = self._inventory()
        refused = judge(found.inventory, Deletion("", tuple(ids))).refused
        frees = () if refused else freed(found.inventory, ids)
        return DeletionRecord(records, refused, frees, self._size(found, frees))

    def _inventory(self) -> JobInventory:
        started = ds.field("kind") == AttemptFact.READY.value
        ready = self._read(self._layout.attempts, started, ["attempt", "details"])
        newest = max(ready, key=lambda row: int(row["attempt"]), default=None)
        sinks = json.loads(newest["details"]).get("on_checkpoint", {}) if newest else {}
        return gather(_FileReader(self), self._layout, sinks)

    def _size(self, found: JobInventory, actions: Sequence[Action]) -> int:
        """The bytes of all files of the sets that would be deleted."""
        return sum(
            file["size_bytes"]
            for action in actions
            if isinstance(action, DeleteSets)
            for table, there in found.sets[action.stage].items()
            if not there.isdisjoint(action.set_ids)
            for file in self._log_of(self._layout.state(table))
            if file["partition.set_id"] in action.set_ids
        )

    def _log_of(self, table: str) -> list[dict[str, Any]]:
        """The files of a table's newest version."""
        with self._reading(table):
            files = pa.table(DeltaTable(table).get_add_actions(flatten=True))
        return list(files.select(["partition.set_id", "size_bytes"]).to_pylist())

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
        kinds = [row["kind"] for row in rows if row["incarnation"] == newest]
        if AttemptFact.WRITTEN in kinds:  # whoever writes a savepoint runs no job
            return newest, "ended"
        ends = (kind for kind in kinds if kind in {AttemptFact.ENDED, AttemptFact.FAILED})
        return newest, next((kind.lower() for kind in ends), "")

    def answer(self, request: str) -> dict[str, Any] | None:
        """The row of ``checkpoints`` that answers a request; None while there is none."""
        wanted = ds.field("request") == request
        rows = self._read(self._layout.checkpoints, wanted, [*_LIGHT, "cause"])
        return rows[0] if rows else None

    def _lineage(
        self, stage: str, checkpoint_id: int | None
    ) -> tuple[int, tuple[int, ...], StageColumns]:
        """The checkpoint, what to read of it, and the stage as it was then."""
        if checkpoint_id is None:
            rows = self._read(self._layout.checkpoints, _COMPLETED, ["checkpoint_id"])
            ids = {row["checkpoint_id"] for row in rows}
            checkpoint_id = max(ids - self._deleted, default=None)
            if checkpoint_id is None:
                raise self._no_checkpoint(None)
        this = ds.field("checkpoint_id") == checkpoint_id
        facts = self._read(self._layout.checkpoints, _COMPLETED & this)
        if not facts or checkpoint_id in self._deleted:
            raise self._no_checkpoint(checkpoint_id)
        lineages = {s["stage"]: tuple(s["lineage"]) for s in facts[0]["stages"]}
        if stage not in lineages:
            raise no_stage_in_checkpoint(stage, checkpoint_id, lineages)
        mine = (ds.field("kind") == FactKind.COMPACTED.value) & (ds.field("stage") == stage)
        compacted = compacted_of(self._read(self._layout.checkpoints, mine, _COMPACTED))
        lineage = lineage_of(stage, lineages[stage], compacted)
        columns = self._stages.at(self.stages[stage], whose(facts[0]))
        return checkpoint_id, lineage, columns

    def _no_checkpoint(self, checkpoint_id: int | None) -> NotFoundError:
        by_code = {reason.code: reason for reason in FailureReason}
        facts = [
            Fact(row["checkpoint_id"], FactKind(row["kind"]), by_code.get(row["reason"]))
            for row in self._read(self._layout.checkpoints, _ENDED | _DELETED, _LIGHT)
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

    def _files(self, path: str) -> tuple[FileSystem, str]:
        store, inside = FileSystem.from_uri(path if "://" in path else os.path.abspath(path))
        return store, inside

    def _open(self, table: str) -> ds.Dataset:
        """A table's newest version.

        Its files are read through Arrow's own file system. The one that deltalake would hand it is
        in Python, and its threads abort the process if they are still at work when Python ends.
        """
        with self._reading(table):
            delta = DeltaTable(table)
            store, path = self._files(table)
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


class _FileReader:
    """A storage root as :func:`absflow.facts.inventory.gather` looks into it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, Collection[int]] | None = None
    ) -> list[dict[str, Any]]:
        wanted = ds.scalar(True) if only is None else ds.field(only[0]).isin(list(only[1]))
        return self._reader._read(table, wanted, list(columns))

    def values(self, table: str, column: str) -> frozenset[int]:
        with self._reader._reading(table):
            return frozenset(int(part[column]) for part in DeltaTable(table).partitions())

    def names(self, directory: str) -> list[str]:
        with self._reader._reading(directory):
            store, path = self._reader._files(directory)
            found = store.get_file_info(FileSelector(path, allow_not_found=True))
            names = (info.base_name for info in found)
            # Hidden ones are being written, or a kill left them: absflow.storage.files.
            return sorted(name for name in names if not name.startswith("."))

    def read(self, path: str) -> str | None:
        with self._reader._reading(path):
            store, inside = self._reader._files(path)
            if store.get_file_info(inside).type is not FileType.File:
                return None
            with store.open_input_file(inside) as file:
                return str(file.read().decode())


def _newest(changes: pa.Table, key: Sequence[str], lineage: Sequence[int]) -> pa.Table:
    """The last change of each key, unless it is a deletion; sorted by key."""
    place = pc.index_in(changes["set_id"], value_set=pa.array(lineage, pa.int64()))
    changes = changes.take(pc.sort_indices(place))
    numbered = changes.select(key).append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    # In this thread: one of Arrow's may let go of NumPy's memory when Python has ended, and abort.
    last = numbered.group_by(list(key), use_threads=False).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
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
