"""One key group's micro-batch under way: rows through the user's function, and snapshots.

Pages are yielded as they are made, so that of a large state no more is in memory than the piece
that is written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import pyarrow as pa

from absflow.columnar.batch import Snapshot
from absflow.columnar.event_time import LATE_FIELD, watermark_payload
from absflow.columnar.firing import TimerWork
from absflow.columnar.held import Limits
from absflow.columnar.pages import ORDER_FIELDS, Page, PageKind, decode
from absflow.columnar.pieces import encode_batches, reordered
from absflow.columnar.process import call
from absflow.columnar.state import snapshot_schema
from absflow.columnar.timers import NEVER, Domain
from absflow.errors import PageCorruptError
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import Discard, Reason
from absflow.protocol.alignment_state import Alignment, Barrier
from absflow.protocol.watermarks import StageTime, WatermarkStatus, held_back

__all__ = ["Work"]


@dataclass(slots=True)
class Work(TimerWork):
    """One key group's batch under way: rows, event time, timers and snapshots in their order."""

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
        if self.pending != NEVER:
            yield from self._fire_before(rows)
        yield from self._took(call(spec.process[name], self._call(name), rows, self.state, late))

    def advance(self, time: StageTime | None) -> Iterator[Page]:
        """Event time has come to here: fire what is due. None if it stands still."""
        if time is None:
            if self.pending != NEVER and self.watermark is not None:
                yield from self.fire(Domain.EVENT, self.watermark)
            return
        ends = time.status is WatermarkStatus.ENDED and not self.ended
        self.ended = time.status is WatermarkStatus.ENDED
        if time.value is not None:
            self.watermark = time.value
            yield from self.fire(Domain.EVENT, time.value, all_of_them=ends)
        if ends and self._may_fire(Domain.EVENT, NEVER - 1):
            # Time stands still for good: whatever waits goes now, before the snapshot that is the
            # last. But not what is set meanwhile, or a timer that sets itself again would do so for
            # ever; nor later, when no snapshot has it any more.
            last = self.state.last_timer(Domain.EVENT.column)
            yield from self.fire(Domain.EVENT, last, all_of_them=True)
        held = None if self.pending == NEVER else self.pending
        self.said = held_back(time, replace(time, output=self.said), held).output

    def end(self) -> Iterator[Page]:
        """Behind all cuts: timers in processing time; then it is known what waits."""
        yield from self.fire(Domain.PROCESSING, self.batch.time_ms * 1_000)
        if self.pending != NEVER:
            self.together.note_pending(self.pending)

    def forget_expired(self) -> None:
        """Drop a state that has expired as a whole; only that it may have is looked at before."""
        upto, stored = self.expired_upto, self.stored
        if self.dirty or upto is None or not stored.live_keys or stored.last_touched > upto:
            return
        self.decoded = self.state.all_expired()
        self.dirty = True

    def snapshot(self, barrier: Barrier, time: StageTime | None) -> Iterator[Page]:
        """What changed since the base, then the barrier; the state is not decoded for nothing.

        Args:
            barrier: of the checkpoint.
            time: what the stage has of event time there, if anything.
        """
        stored = self.stored
        rows_changed = bytes_changed = 0
        if self.changed_epoch > barrier.base_id:
            for count, size, page in self._changes(barrier):
                rows_changed += count
                bytes_changed += size
                if page is not None:
                    yield page
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
        if self.pending != NEVER:
            self.together.note_pending(self.pending, barrier.checkpoint_id)

    def _changes(self, barrier: Barrier) -> Iterator[tuple[int, int, Page | None]]:
        """How many rows have changed and their bytes, as they are taken; or a page of them."""
        spec, n, take = self.spec, barrier.checkpoint_id, self.batch.take_changes
        schema = snapshot_schema(spec.keys, spec.state)
        changes = self.state.changes(barrier.base_id, self.expired_upto)
        rows = (batch.select(schema.names).cast(schema) for batch in changes)
        if take is not None:
            for changed in rows:
                take(self.key_group, n, changed)
                yield changed.num_rows, changed.nbytes, None
            return
        for count, payload in encode_batches(rows, self.page_bytes):
            page = Page(self.key_group, PageKind.STATE, spec.name, n, rows=count, payload=payload)
            yield count, len(payload), page

    def report(
        self,
        align: Alignment,
        seen: Sequence[Page],
        said: Sequence[alignment.Action],
        early: Mapping[int, int],
    ) -> Page:
        """What the driver needs to know: one JSON object, the same keys in every one.

        Args:
            align: the alignment behind the batch.
            seen: the batch's control pages.
            said: what they have come to.
            early: by epoch, the rows that were processed though alignment would hold them.
        """
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
            "early": sorted(early.items()),
        }
        payload = json.dumps(report).encode()
        return Page(self.key_group, PageKind.REPORT, self.spec.name, payload=payload)


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows of a channel in the order in which they were emitted."""
    seq, group = (rows[f.name].to_numpy() for f in ORDER_FIELDS)
    if np.all(seq[1:] > seq[:-1]):
        return rows
    return reordered(rows, np.lexsort((group, seq)))
