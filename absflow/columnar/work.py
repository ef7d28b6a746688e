"""One key group's micro-batch under way: rows through the user's function, and snapshots.

Pages are yielded as they are made, so that of a large state no more is in memory than the piece
that is written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from absflow.columnar.batch import Batch, RangeWork, Snapshot
from absflow.columnar.event_time import LATE_FIELD, watermark_payload
from absflow.columnar.expiry import TOUCHED, touched_times
from absflow.columnar.held import HeldPages, Limits
from absflow.columnar.pages import ORDER_FIELDS, TIME_TYPE, Page, PageKind, decode
from absflow.columnar.piece_files import StateFiles
from absflow.columnar.pieces import encode_batches, encode_pieces, reordered
from absflow.columnar.process import Call, Processed, call, call_timers
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import KeyedState, Touched, snapshot_schema
from absflow.columnar.stored import KeyGroupState, load
from absflow.columnar.timers import NEVER, Domain, Timers
from absflow.errors import PageCorruptError, ProcessError
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import Discard, Reason
from absflow.protocol.alignment_state import Alignment, Barrier
from absflow.protocol.watermarks import StageTime, WatermarkStatus

__all__ = ["MAX_ROUNDS", "Work"]

# A key has at most so many timers fire in one micro-batch: as many as hours in a year.
MAX_ROUNDS = 10_000


@dataclass(slots=True)
class Work:
    """One key group's batch under way.

    Attributes:
        spec: the stage.
        key_group: which.
        batch: the micro-batch.
        stored: what the key group kept before.
        pages: DATA pages that wait.
        align: the alignment as far as the work has come.
        files: where the files of a large state lie; None if all of it is kept inline.
        page_bytes: a page has at most so many bytes.
        together: what the key groups of the range have come to.
        watermark: the stage's as far as the work has come; None if it has none yet.
        ended: whether all that the stage reads has ended for event time.
        said: the watermark that the stage has passed on; None if it has said none.
        decoded: the keyed state, once something has asked for it.
        changed_epoch: the last epoch in which a key changed.
        dirty: whether the state was changed.
        emitted: rows that were emitted.
        calls: of the user's function.
        snapshots: that were taken.
    """

    spec: StageSpec
    key_group: int
    batch: Batch
    stored: KeyGroupState
    pages: HeldPages
    align: Alignment
    files: StateFiles | None
    page_bytes: int
    together: RangeWork = field(default_factory=RangeWork)
    watermark: int | None = None
    ended: bool = False
    said: int | None = None
    decoded: KeyedState | None = None
    changed_epoch: int = 0
    dirty: bool = False
    emitted: int = 0
    calls: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin where the batch before has ended."""
        self.changed_epoch = self.stored.changed_epoch
        if self.batch.time is not None:
            self.watermark = self.batch.time.stage.value
            self.said = self.batch.time.stage.output
            self.ended = self.batch.time.stage.status is WatermarkStatus.ENDED

    @property
    def state(self) -> KeyedState:
        """The keyed state, decoded when it is first needed."""
        if self.decoded is None:
            what = f"state of stage {self.spec.name!r}, key group {self.key_group}"
            spec = self.spec
            self.decoded = load(self.stored, spec.keys, spec.state, self.files, what)
        return self.decoded

    @property
    def expired_upto(self) -> int | None:
        """State that was touched last up to then has expired by now; None if none has."""
        expiry = self.spec.expiry
        return None if expiry is None else expiry.upto(self.watermark, self.batch.time_ms)

    def process(self, upto: Limits) -> Iterator[Page]:
        """Process the pages whose epoch the limit of their input admits; the others wait."""
        due = self.pages.take(upto)
        # Stable: held pages come first, new ones by seq, which counts within one batch only.
        due.sort(key=lambda p: (p.checkpoint_id, self.spec.order(p.input)))
        for (_, name), run in itertools.groupby(due, key=lambda p: (p.checkpoint_id, p.input)):
            yield from self._process_rows(name, list(run))

    def _process_rows(self, name: str, pages: list[Page]) -> Iterator[Page]:
        spec, given = self.spec, self.spec.input(name)
        what = f"page of stage {spec.name!r}, input {name!r}, key group {self.key_group}"
        rows = pa.Table.from_batches([decode(p.payload, given.page_schema, what) for p in pages])
        if rows.num_rows != sum(p.rows for p in pages):
            raise PageCorruptError(
                f"{what} has {rows.num_rows} rows where {sum(p.rows for p in pages)} were packed; "
                "the batch is not committed"
            )
        if not given.root:
            rows = _in_order(rows).select(given.schema.names)
        if not spec.process:
            yield from self._emitted(rows)
            return
        late = None
        if LATE_FIELD.name in rows.column_names:
            late = rows[LATE_FIELD.name].to_numpy().astype(bool)
            rows = rows.select(given.schema.names)
        yield from self._took(call(spec.process[name], self._call(name), rows, self.state, late))

    def _call(self, name: str) -> Call:
        """Where the next call of the user's function stands."""
        spec = self.spec
        self.calls += 1
        return Call(
            stage=spec.name,
            input=name,
            key_group=self.key_group,
            epoch=self.align.epoch,
            batch_id=self.batch.batch_id,
            time_ms=self.batch.time_ms,
            number=self.calls - 1,
            key=tuple(spec.keys.names),
            output=spec.output,
            watermark=self.watermark,
            timed=spec.timed,
            expiry=spec.expiry,
            event_column=spec.input(name).event_column if name else None,
            output_time=spec.output_time,
        )

    def _took(self, result: Processed) -> Iterator[Page]:
        """Go on with what a call has come to."""
        if result.state is not self.decoded:
            self.decoded = result.state
            self.changed_epoch = self.align.epoch
            self.dirty = True
        if result.output is not None:
            self._note_late(result.output)
            yield from self._emitted(result.output)

    def _note_late(self, output: pa.Table) -> None:
        """Count the rows of which the stage has said already that none comes any more."""
        column = self.spec.output_time
        if column is None or self.said is None:
            return
        late = touched_times(output[column], NEVER) <= self.said
        self.together.late_emitted += int(np.count_nonzero(late))

    def _emitted(self, output: pa.Table) -> Iterator[Page]:
        if not output.num_rows:
            return
        for count, payload in encode_pieces(output, self.page_bytes):
            yield Page(
                self.key_group,
                PageKind.DATA,
                checkpoint_id=self.align.epoch,
                seq=self.emitted,
                rows=count,
                payload=payload,
            )
            self.emitted += count

    def advance(self, time: StageTime | None) -> Iterator[Page]:
        """Event time has come to here: fire what is due. None if it stands still."""
        if time is None:
            return
        if time.value is not None:
            self.watermark = time.value
            yield from self.fire(Domain.EVENT, time.value)
        ends = time.status is WatermarkStatus.ENDED and not self.ended
        self.ended = time.status is WatermarkStatus.ENDED
        if ends and self._may_fire(Domain.EVENT, NEVER - 1):
            # Time stands still for good: whatever waits goes now, before the snapshot that is the
            # last. But not what is set meanwhile, or a timer that sets itself again would do so for
            # ever; nor later, when no snapshot has it any more.
            yield from self.fire(Domain.EVENT, self.state.last_timer(Domain.EVENT.column))
        self.said = time.output

    def fire(self, domain: Domain, upto: int) -> Iterator[Page]:
        """The timers that are due, in rounds: one of each key, in the order of their times.

        So the state that one leaves is what the next of its key finds. A timer that a call sets is
        in a later round if it is due.

        Args:
            domain: which timers.
            upto: those up to this time, microseconds since 1970 (UTC).
        """
        on_timer, column = self.spec.on_timer, domain.column
        if on_timer is None or not self._may_fire(domain, upto):
            return
        keys = self.state.due(column, upto)
        if not keys.num_rows:
            return
        for _ in range(MAX_ROUNDS):
            touched = self.state.touched(keys)
            timers = Timers.read(touched.table[column])
            due = timers.first() & (timers.time <= upto)
            if not due.any():
                return
            mine = timers.key[due]
            if len(mine) < keys.num_rows:  # the others have none left
                keys = keys.take(pa.array(mine))
                continue
            stale = self._expired_before(touched, domain, timers.time[due])
            if stale.any():
                self.decoded = self.state.forgotten(touched, np.flatnonzero(stale))
                self.dirty = True
                keys = keys.filter(pa.array(~stale))
                continue
            fired, place = timers.only(due), touched.table.schema.get_field_index(column)
            left = timers.only(~due).column(keys.num_rows)
            rows = keys.append_column("time", pa.array(fired.time).cast(TIME_TYPE))
            rows = rows.append_column("name", pa.array(fired.name, pa.string()))
            field_ = touched.table.schema.field(column)
            popped = replace(touched, table=touched.table.set_column(place, field_, left))
            made = self._call("")
            yield from self._took(call_timers(on_timer, made, domain, rows, popped, self.state))
        key = keys.slice(0, 1).to_pylist()[0]
        raise ProcessError(
            f"stage {self.spec.name!r}, on_timer (key group {self.key_group}): {MAX_ROUNDS} "
            f"{domain.value} timers of key {key} were due in one micro-batch, and one more is; its "
            "function sets a timer that is due each time that one fires. The batch is not "
            "committed; set the next one further ahead"
        )

    def _expired_before(
        self, touched: Touched, domain: Domain, due: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Of each key whether its state has expired before its timer is due, so it has none.

        Args:
            touched: the state of the keys.
            domain: of the timers.
            due: the time of each.
        """
        expiry = self.spec.expiry
        if expiry is None:
            return np.zeros(len(due), dtype=bool)
        times = touched_times(touched.table[TOUCHED.name], NEVER)
        if expiry.domain is domain:  # in the order of time, whatever a micro-batch has of it
            return times <= due - expiry.after
        upto = self.expired_upto
        return np.zeros(len(due), dtype=bool) if upto is None else times <= upto

    def forget_expired(self) -> None:
        """Drop a state that has expired as a whole; only that it may have is looked at before."""
        upto, stored = self.expired_upto, self.stored
        if self.dirty or upto is None or not stored.live_keys or stored.last_touched > upto:
            return
        self.decoded = self.state.all_expired()
        self.dirty = True

    def _may_fire(self, domain: Domain, upto: int) -> bool:
        """Whether a timer may be due up to a time, by what was stored of a state as it is still."""
        stored = self.stored
        first = stored.event_timer if domain is Domain.EVENT else stored.processing_timer
        return self.spec.on_timer is not None and (self.dirty or first <= upto)

    def snapshot(self, barrier: Barrier, time: StageTime | None) -> Iterator[Page]:
        """What changed since the base, then the barrier; the state is not decoded for nothing.

        Args:
            barrier: of the checkpoint.
            time: what the stage has of event time there, if anything.
        """
        spec, stored = self.spec, self.stored
        rows_changed = bytes_changed = 0
        if self.changed_epoch > barrier.base_id:
            schema = snapshot_schema(spec.keys, spec.state)
            changes = self.state.changes(barrier.base_id, self.expired_upto)
            rows = (batch.select(schema.names).cast(schema) for batch in changes)
            for count, payload in encode_batches(rows, self.page_bytes):
                rows_changed += count
                bytes_changed += len(payload)
                yield Page(
                    self.key_group,
                    PageKind.STATE,
                    spec.name,
                    checkpoint_id=barrier.checkpoint_id,
                    rows=count,
                    payload=payload,
                )
            self.decoded = self.state.without_tombstones(barrier.completed_id)
        decoded = self.decoded
        self.snapshots.append(
            Snapshot(
                barrier.checkpoint_id,
                rows_changed,
                bytes_changed,
                keys_total=stored.live_keys if decoded is None else decoded.live,
                bytes_total=stored.size if decoded is None else decoded.size,
                expired_upto=self.expired_upto,
            )
        )
        yield Page(
            self.key_group,
            PageKind.BARRIER,
            checkpoint_id=barrier.checkpoint_id,
            base_id=barrier.base_id,
            completed_id=barrier.completed_id,
            triggered_ms=barrier.triggered_ms,
            payload=b"" if time is None else watermark_payload(time.output, time.status),
        )
        self.align = Alignment(self.align.inputs, snapshot=barrier.checkpoint_id)

    def report(
        self, align: Alignment, seen: Sequence[Page], said: Sequence[alignment.Action]
    ) -> Page:
        """What the driver needs to know: one JSON object, the same keys in every one."""
        skipped = [a for a in said if isinstance(a, Discard) and a.reason is Reason.SKIPPED]
        barriers = [p for p in seen if p.kind in (PageKind.BARRIER, PageKind.OVERTAKE)]
        held_rows, held_bytes = self.pages.counts
        report = {
            "alignment": alignment_state.to_json(align),
            "arrived": sorted({(p.input, p.checkpoint_id, p.triggered_ms) for p in barriers}),
            "skipped": [action.checkpoint_id for action in skipped],
            "snapshots": [astuple(snapshot) for snapshot in self.snapshots],
            "held_rows": held_rows,
            "held_bytes": held_bytes,
        }
        payload = json.dumps(report).encode()
        return Page(self.key_group, PageKind.REPORT, self.spec.name, payload=payload)


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows of a channel in the order in which they were emitted."""
    seq, group = (rows[f.name].to_numpy() for f in ORDER_FIELDS)
    if np.all(seq[1:] > seq[:-1]):
        return rows
    return reordered(rows, np.lexsort((group, seq)))
