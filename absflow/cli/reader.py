"""What the commands ask of a storage root, as records; without a JVM."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cached_property, reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from absflow.cli.records import DeletionRecord, RetentionRecord, StateRecord, StatusRecord
from absflow.cli.state_rows import is_value, state_at
from absflow.cli.storage import FileReader
from absflow.errors import NotFoundError
from absflow.facts.absent import no_checkpoint, no_root
from absflow.facts.attempts import (
    JobNow,
    driver_of,
    job_now,
    noted_by,
    plain_root,
    published_sinks,
    read_attempts,
)
from absflow.facts.inventory import JobInventory, gather
from absflow.facts.listing import (
    HistoryRecord,
    by_time,
    checkpoints,
    latest_id,
    newest,
    sought,
)
from absflow.facts.reading import Answer, FactReader
from absflow.facts.records import (
    AttemptRecord,
    CheckpointRecord,
    Ready,
    details_of,
    ready_of,
)
from absflow.facts.stages import (
    Stages,
    check_columns,
    find_stage,
    no_stage_in_checkpoint,
    stages_of,
    whose_completed,
)
from absflow.protocol.checkpoints import (
    AttemptFact,
    Manifest,
    StageColumns,
    StageManifest,
    Status,
)
from absflow.protocol.known import Completion, Known
from absflow.protocol.lineage import shortened
from absflow.protocol.recovery.attempts import Attempt, current
from absflow.protocol.retention.deletion import Deletion, freed, judge
from absflow.protocol.retention.failures import Failure, parse
from absflow.protocol.retention.inventory import Action, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import explain, plan
from absflow.storage.layout import Layout, check_place

__all__ = ["Reader"]


# Of the newest checkpoints, so many are looked at for what has become of them.
_NEWEST = 100


class Reader:
    """The tables under one storage root, as they are when first asked for."""

    def __init__(self, root: str, conf: Mapping[str, str] | None = None) -> None:
        """Read below ``root``, a path or URL as Spark takes it.

        Args:
            root: the storage root.
            conf: Spark's, as far as it says how a root is reached.

        Raises:
            StorageError: it has a path that no job can have.
        """
        self.root = root
        self._conf = conf or {}
        url = plain_root(root)
        url = url if "://" in url else os.path.abspath(url)
        check_place(url)
        self.layout = Layout(url.rstrip("/"))
        self.storage = FileReader(root, self.layout, self._conf)

    def again(self) -> Reader:
        """Of the same root, as it is now."""
        return Reader(self.root, self._conf)

    @cached_property
    def stages(self) -> dict[str, StageColumns]:
        """The stages of the job, by name in topological order.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        return self._stages.newest

    @cached_property
    def _stages(self) -> Stages:
        return stages_of(self._attempts)

    @cached_property
    def _attempts(self) -> tuple[AttemptRecord, ...]:
        return read_attempts(self.storage, self.layout)

    @cached_property
    def _job(self) -> JobNow:
        """Known before the facts are read: what a lost driver has written by then is all."""
        return job_now(self.layout.root, self._attempts)

    @cached_property
    def _facts(self) -> FactReader:
        return FactReader(self.storage, self.layout)

    def history(self, limit: int | None = None) -> HistoryRecord:
        """The newest checkpoints that were triggered; None for all."""
        return newest(self._facts, limit, self._job)

    def status(self) -> StatusRecord:
        """How the job is.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        incarnation, end = self.driver()
        attempt = current(self._job.attempts)
        shown = self.history(_NEWEST).shown
        try:
            last = self.checkpoint(self.number("latest"))
        except NotFoundError:
            last = None
        since = last.checkpoint_id if last else 0
        return StatusRecord(
            self.layout.root,
            incarnation,
            end,
            attempt.attempt if attempt else 0,
            attempt.origin if attempt else None,
            last,
            tuple(r for r in shown if r.status is Status.PENDING),
            tuple(r for r in shown if r.status is Status.ABORTED and r.checkpoint_id > since),
            self._failing(),
            self._published(attempt.attempt if attempt else 0),
        )

    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts of the job, by number."""
        return self._job.attempts

    def started(self) -> dict[int, datetime]:
        """When each attempt was started."""
        rows = self.storage.table(self.layout.attempts, ["attempt", "kind", "at"]).to_pylist()
        started = AttemptFact.STARTED.value
        return {row["attempt"]: row["at"] for row in rows if row["kind"] == started}

    def inputs(self) -> dict[str, list[str]]:
        """What each stage of the newest attempt reads from, in topological order."""
        attempt = current(self._job.attempts)
        if attempt is None:
            return {}
        graph = details_of(self._attempts, attempt.attempt, AttemptFact.STARTED) or {}
        return {
            stage: [name for name, *_ in described.get("inputs", ())]
            for stage, described in graph.items()
        }

    def _published(self, attempt: int) -> dict[str, int]:
        sinks = published_sinks(self._attempts)
        ready = ready_of(self._attempts, attempt) or Ready()
        return noted_by(self.storage, self.layout, attempt, sinks, ready)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord:
        """One checkpoint, whatever its status.

        Raises:
            NotFoundError: it was never triggered, or was deleted.
        """
        return checkpoints(self._facts, [checkpoint_id], self._job)[0]

    def number(self, given: int | str | datetime) -> int:
        """The id of a checkpoint that is given by it, as ``latest``, or by a time.

        A time means the newest completed one that was triggered by then: what it holds was read
        before.

        Raises:
            NotFoundError: there is none.
        """
        if isinstance(given, datetime):
            return by_time(self.history().shown, given, self.root)
        return given if isinstance(given, int) else latest_id(self._facts, self._job)

    def find(self, checkpoint_id: int | None) -> None:
        """Look for a checkpoint as a restore from it does; None for the latest.

        Raises:
            NotFoundError: the driver would not find it; in its words.
        """
        for path in (self.layout.attempts, self.layout.checkpoints):
            if not self.storage.names(f"{path}/_delta_log"):
                raise no_root(self.root, path)
        job = self._job
        known = self.known({*job.origins, *filter(None, [checkpoint_id])})
        found = sought(self._facts, known, job, checkpoint_id)
        if found.root != job.root:
            Reader(found.root, self._conf).find(found.checkpoint_id)

    def state(
        self, stage: str, checkpoint_id: int | None, key: Mapping[str, str | None] | None = None
    ) -> StateRecord:
        """State of a stage: for each key the last change along the checkpoint's lineage.

        Args:
            stage: its name.
            checkpoint_id: a completed checkpoint; None for the newest.
            key: texts (None for null) that the rows must have in some columns of key or state.

        Raises:
            NotFoundError: there is no such stage, checkpoint or column.
        """
        find_stage(self.stages, stage)
        number, found, columns = self._stage(stage, checkpoint_id)
        check_columns(columns, key or {})
        changes, others = self._changes(columns, found.lineage, key or {})
        rows = state_at(changes, columns, found)
        # Not before: an older change of a key may have the value, and the newest another.
        rows = rows.filter(reduce(and_, others)) if others else rows
        return StateRecord(number, columns, rows)

    def _changes(
        self, columns: StageColumns, sets: Collection[int], key: Mapping[str, str | None]
    ) -> tuple[pa.Table, list[ds.Expression]]:
        """Rows of a history: of these sets and, of what is asked, with what is in the key.

        And the rest of what is asked.
        """
        table = self.layout.state(columns.table)
        schema = self.storage.open(table).schema
        # Set ids are the names of directories: other sets' files are not even opened.
        wanted = ds.field("set_id").isin(pa.array(sorted(sets), pa.int64()))
        asked = {n: is_value(n, text, schema.field(n).type) for n, text in key.items()}
        for name in asked.keys() & {*columns.key}:
            wanted &= asked.pop(name)
        names = ["set_id", "op", *columns.key, *columns.state]
        return self.storage.rows(table, names, wanted), [*asked.values()]

    def past(
        self,
        stage: str,
        key: Mapping[str, str | None],
        most: int,
        upto: int | None = None,
    ) -> list[tuple[int, dict[str, Any] | None]]:
        """One key at the newest completed checkpoints of the job, the newest first.

        Args:
            stage: its name.
            key: texts (None for null) of all key columns.
            most: how many checkpoints.
            upto: no later one than this; None for all.

        Returns:
            Each checkpoint, and the key's row there; None if it had no state.
        """
        ids = [
            record.checkpoint_id
            for record in self.history().shown
            if record.status is Status.COMPLETED
            and not record.abandoned
            and (upto is None or record.checkpoint_id <= upto)
            and any(each.report.stage == stage for each in record.stages)
        ]
        at = {
            number: (found, self.columns(stage, taken))
            for number, (manifest, taken) in self._manifests(ids[-most:]).items()
            if (found := manifest.stage(stage)) is not None
        }
        sets: dict[str, set[int]] = {}
        for found, columns in at.values():
            sets.setdefault(columns.table, set()).update(found.lineage)
        # Of each table once, however many checkpoints read it.
        by_table = {columns.table: columns for _, columns in at.values()}
        changes = {name: self._changes(of, sets[name], key)[0] for name, of in by_table.items()}
        past: list[tuple[int, dict[str, Any] | None]] = []
        for number, (found, columns) in sorted(at.items(), reverse=True):
            there = ds.field("set_id").isin(pa.array(found.lineage, pa.int64()))
            rows = state_at(changes[columns.table].filter(there), columns, found).to_pylist()
            past.append((number, rows[0] if rows else None))
        return past

    def retention(self, policy: RetentionPolicy) -> RetentionRecord:
        """What retention would do now, and why the rest stays."""
        there = self.inventory().inventory
        return RetentionRecord(plan(there, policy), explain(there, policy), self._failing())

    def _failing(self) -> tuple[Failure, ...]:
        """What of retention failed last."""
        return tuple(parse(self.storage.read(self.layout.retention_failures)).values())

    def deletion(self, checkpoint_ids: Collection[int]) -> DeletionRecord:
        """What a deletion of these checkpoints would do now.

        Raises:
            NotFoundError: one of them is not completed, or was deleted.
        """
        ids = sorted({*checkpoint_ids})
        records = tuple(checkpoints(self._facts, ids, self._job))
        for record in records:
            if record.status is not Status.COMPLETED:
                raise no_checkpoint(self._facts, record.checkpoint_id, self._job.lost)
        found = self.inventory(ids)
        refused = judge(found.inventory, Deletion("", tuple(ids))).refused
        frees = () if refused else freed(found.inventory, ids)
        return DeletionRecord(records, refused, frees, self._size(found, frees))

    def inventory(self, asked: Collection[int] = ()) -> JobInventory:
        """What is there, as retention sees it; ``asked`` as for :func:`gather`."""
        sinks = published_sinks(self._attempts)
        return gather(self.storage, self.layout, sinks, asked)

    def _size(self, found: JobInventory, actions: Sequence[Action]) -> int:
        """The bytes of all files of the sets that would be deleted."""
        return sum(
            file["size_bytes"]
            for action in actions
            if isinstance(action, DeleteSets)
            for table, there in found.sets[action.stage].items()
            if not there.keys().isdisjoint(action.set_ids)
            for file in self.storage.files(self.layout.state(table))
            if file["partition.set_id"] in action.set_ids
        )

    @property
    def requests(self) -> str:
        """Where the ``requests`` table is, as deltalake takes it."""
        return self.layout.requests

    def driver(self) -> tuple[int, str]:
        """The newest driver's incarnation, and how it has ended; "" if it runs, or may.

        Raises:
            NotFoundError: no job has ever started under the root.
        """
        return driver_of(self.layout.root, self._attempts)

    def answer(self, request: str) -> Answer | None:
        """What answers a request; None while nothing does."""
        return self._facts.answer(request)

    def _stage(
        self, stage: str, checkpoint_id: int | None
    ) -> tuple[int, StageManifest, StageColumns]:
        """The checkpoint, the stage in it, and its columns then."""
        manifest, taken = self.manifest(checkpoint_id)
        number, found = manifest.checkpoint_id, manifest.stage(stage)
        if found is None:
            names = [each.report.stage for each in manifest.stages]
            raise no_stage_in_checkpoint(stage, number, names)
        return number, found, self.columns(stage, taken)

    def manifest(self, checkpoint_id: int | None) -> tuple[Manifest, Completion]:
        """A completed checkpoint with the lineages that are to be read; None for the newest.

        Raises:
            NotFoundError: there is no such completed checkpoint.
        """
        known = self.known([] if checkpoint_id is None else [checkpoint_id])
        number = next(iter(known.there[-1:]), 0) if checkpoint_id is None else checkpoint_id
        if number not in known.there:
            raise no_checkpoint(self._facts, checkpoint_id, self._job.lost)
        return self._manifests([number])[number]

    def _manifests(self, ids: Collection[int]) -> dict[int, tuple[Manifest, Completion]]:
        """As :meth:`manifest`, of completed checkpoints."""
        known = self.known(ids)
        found = self._facts.manifests(ids)
        stages = [stage for manifest in found.values() for stage in manifest.stages]
        compacted = self._facts.compacted((s.report.stage, s.lineage) for s in stages)
        return {n: (shortened(m, compacted), known.completions[n]) for n, m in found.items()}

    def known(self, named: Collection[int]) -> Known:
        """What matters of the job's checkpoints, and these."""
        return self._facts.known(named=named, triggers=False)

    def columns(self, stage: str, taken: Completion) -> StageColumns:
        """A stage as it was at a checkpoint."""
        return self._stages.at(self.stages[stage], whose_completed(taken))
