"""What the commands ask of a storage root, as records; without a JVM."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from absflow.cli.records import DeletionRecord, RetentionRecord, StateRecord
from absflow.cli.storage import FileReader
from absflow.errors import NotFoundError
from absflow.facts.absent import no_checkpoint
from absflow.facts.attempts import driver_of, published_sinks, stages_under
from absflow.facts.inventory import JobInventory, gather
from absflow.facts.listing import CheckpointRecord, HistoryRecord, checkpoints, newest
from absflow.facts.reading import Answer, FactReader
from absflow.facts.stages import (
    Stages,
    check_key,
    find_stage,
    no_stage_in_checkpoint,
    whose_completed,
)
from absflow.protocol.checkpoints import StageColumns, Status
from absflow.protocol.lineage import lineage_of
from absflow.protocol.retention.deletion import Deletion, freed, judge
from absflow.protocol.retention.failures import parse
from absflow.protocol.retention.inventory import Action, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import explain, plan
from absflow.storage.layout import Layout, check_place

__all__ = ["Reader"]

_ROW = "_absflow_row"


class Reader:
    """The tables under one storage root, as they are when first asked for."""

    def __init__(self, root: str) -> None:
        """Read below ``root``, a path or URL as Spark takes it.

        Raises:
            StorageError: it has a path that no job can have.
        """
        self.root = root
        url = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/+", "/", root))
        url = url if "://" in url else os.path.abspath(url)
        check_place(url)
        self._layout = Layout(url.rstrip("/"))
        self._storage = FileReader(root)

    @cached_property
    def stages(self) -> dict[str, StageColumns]:
        """The stages of the job, by name in topological order.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        return self._stages.newest

    @cached_property
    def _stages(self) -> Stages:
        return stages_under(self._storage, self._layout)

    @cached_property
    def _facts(self) -> FactReader:
        return FactReader(self._storage, self._layout)

    def history(self, limit: int | None = None) -> HistoryRecord:
        """The newest checkpoints that were triggered; None for all."""
        return newest(self._facts, limit)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord:
        """One checkpoint, whatever its status.

        Raises:
            NotFoundError: it was never triggered, or was deleted.
        """
        return checkpoints(self._facts, [checkpoint_id])[0]

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
        history = self._storage.open(self._layout.state(columns.table))
        wanted = ds.field("set_id").isin(pa.array(lineage, pa.int64()))
        for name, text in (key or {}).items():
            wanted &= _is(name, _parse(name, text, history.schema.field(name).type))
        names = [*columns.key, *columns.state]
        with self._storage.reading(self._layout.state(columns.table)):
            # Set ids are the names of directories: other sets' files are not even opened.
            changes = history.to_table(columns=["set_id", "op", *names], filter=wanted)
        rows = _newest(changes, columns.key, lineage).select(names)
        return StateRecord(number, columns, rows)

    def retention(self, policy: RetentionPolicy) -> RetentionRecord:
        """What retention would do now, and why the rest stays."""
        there = self.inventory().inventory
        failing = parse(self._storage.read(self._layout.retention_failures))
        return RetentionRecord(plan(there, policy), explain(there, policy), tuple(failing.values()))

    def deletion(self, checkpoint_ids: Collection[int]) -> DeletionRecord:
        """What a deletion of these checkpoints would do now.

        Raises:
            NotFoundError: one of them is not completed, or was deleted.
        """
        ids = sorted({*checkpoint_ids})
        records = tuple(checkpoints(self._facts, ids))
        for record in records:
            if record.status is not Status.COMPLETED:
                raise no_checkpoint(self._facts, record.checkpoint_id)
        found = self.inventory(ids)
        refused = judge(found.inventory, Deletion("", tuple(ids))).refused
        frees = () if refused else freed(found.inventory, ids)
        return DeletionRecord(records, refused, frees, self._size(found, frees))

    def inventory(self, asked: Collection[int] = ()) -> JobInventory:
        """What is there, as retention sees it; ``asked`` as for :func:`gather`."""
        sinks = published_sinks(self._storage, self._layout)
        return gather(self._storage, self._layout, sinks, asked)

    def _size(self, found: JobInventory, actions: Sequence[Action]) -> int:
        """The bytes of all files of the sets that would be deleted."""
        return sum(
            file["size_bytes"]
            for action in actions
            if isinstance(action, DeleteSets)
            for table, there in found.sets[action.stage].items()
            if not there.keys().isdisjoint(action.set_ids)
            for file in self._storage.files(self._layout.state(table))
            if file["partition.set_id"] in action.set_ids
        )

    @property
    def requests(self) -> str:
        """Where the ``requests`` table is, as deltalake takes it."""
        return self._layout.requests

    def driver(self) -> tuple[int, str]:
        """The newest driver's incarnation, and how it has ended; "" if it has not said so.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        return driver_of(self._storage, self._layout)

    def answer(self, request: str) -> Answer | None:
        """What answers a request; None while nothing does."""
        return self._facts.answer(request)

    def _lineage(
        self, stage: str, checkpoint_id: int | None
    ) -> tuple[int, tuple[int, ...], StageColumns]:
        """The checkpoint, what to read of it, and the stage as it was then."""
        asked = [] if checkpoint_id is None else [checkpoint_id]
        known = self._facts.known(named=asked, triggers=False)
        number = next(iter(asked or known.there[-1:]), 0)
        if number not in known.there:
            raise no_checkpoint(self._facts, checkpoint_id)
        lineages = self._facts.lineages([number])[number]
        if stage not in lineages:
            raise no_stage_in_checkpoint(stage, number, lineages)
        compacted = self._facts.compacted(lineages.items())
        lineage = lineage_of(stage, lineages[stage], compacted)
        columns = self._stages.at(self.stages[stage], whose_completed(known.completions[number]))
        return number, lineage, columns


def _newest(changes: pa.Table, key: Sequence[str], lineage: Sequence[int]) -> pa.Table:
    """The last change of each key, unless it is a deletion; sorted by key."""
    place = pc.index_in(changes["set_id"], value_set=pa.array(lineage, pa.int64()))
    changes = changes.take(pc.sort_indices(place))
    # By place: Arrow takes a name that begins with a dot for a path.
    places = [f"key{place}" for place in range(len(key))]
    numbered = changes.select(key).rename_columns(places)
    numbered = numbered.append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    # In this thread: one of Arrow's may let go of NumPy's memory when Python has ended, and abort.
    last = numbered.group_by(places, use_threads=False).aggregate([(_ROW, "max")])
    last = last.filter(pc.equal(changes["op"].take(last[f"{_ROW}_max"]), "upsert"))
    last = last.sort_by([(place, "ascending") for place in places])
    return changes.take(last[f"{_ROW}_max"])


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
