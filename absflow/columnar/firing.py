"""One key group's micro-batch under way: calls of the user's functions, and the timers that fire.

What fires in a micro-batch is bounded (:class:`Piece`): months of timers that are due after a long
stop would make one micro-batch of hours, behind which barriers wait. What is left is in the state
as before, hence in snapshots, and fires in the micro-batches that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from absflow.columnar.batch import Batch, RangeWork, Snapshot
from absflow.columnar.expiry import TOUCHED, touched_times
from absflow.columnar.held import HeldPages
from absflow.columnar.keys import factorize
from absflow.columnar.pages import TIME_TYPE, Page, PageKind
from absflow.columnar.piece_files import StateFiles
from absflow.columnar.pieces import encode_pieces
from absflow.columnar.process import Call, Processed, call_timers
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import KeyedState, Touched
from absflow.columnar.stored import KeyGroupState, load
from absflow.columnar.timers import NEVER, Domain, Timers, first_times
from absflow.errors import ProcessError
from absflow.protocol.alignment_state import Alignment
from absflow.protocol.watermarks import WatermarkStatus

__all__ = ["MAX_ROUNDS", "TimerWork"]

# A key has at most so many timers fire in one micro-batch: as many as hours in a year.
MAX_ROUNDS = 10_000
# Of a storm of timers, a key group looks once in so many micro-batches whether one comes to an end.
_LOOKED_AT = 16


@dataclass(slots=True)
class TimerWork:
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
        pending: the first timer in event time that is due and has not fired; ``NEVER`` if there is
            none.
        fired: timers of each domain that have fired.
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
    files: StateFiles
    page_bytes: int
    together: RangeWork = field(default_factory=RangeWork)
    watermark: int | None = None
    ended: bool = False
    said: int | None = None
    pending: int = NEVER
    fired: Counter[Domain] = field(default_factory=Counter)
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
            if self.watermark is not None and self.stored.event_timer <= self.watermark:
                self.pending = self.stored.event_timer
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

    def fire(self, domain: Domain, upto: int, *, all_of_them: bool = False) -> Iterator[Page]:
        """The timers that are due, the earliest first, but no more of them than a batch may fire.

        Args:
            domain: which timers.
            upto: those up to this time, microseconds since 1970 (UTC).
            all_of_them: however many there are.
        """
        if self.spec.on_timer is None or not self._may_fire(domain, upto):
            return
        most = None if all_of_them else self.together.most
        left = None if most is None else max(0, most - self.fired[domain])
        if left != 0:
            keys = self.state.due(domain.column, upto, left)
            more = yield from self._rounds(domain, upto, keys, left)
            if more.num_rows and (self.batch.batch_id + self.key_group) % _LOOKED_AT == 0:
                # One that sets itself for ever would do so in piece after piece, and is an error.
                yield from self._rounds(domain, upto, more.slice(0, 1), None)
        whole = most is None or self.fired[domain] < most
        event, processing = (NEVER, NEVER) if whole else self.state.next_timers()
        if domain is Domain.EVENT:
            self.pending = event if event <= upto else NEVER
        elif processing <= upto:
            self.together.left = True

    def _fire_before(self, rows: pa.Table) -> Iterator[Page]:
        """The timers that the keys of some rows had due before: a key's order is that of time."""
        assert self.watermark is not None  # up to which they are due
        _, keys = factorize(rows.select(self.spec.keys.names))
        column = self.state.touched(keys).table[Domain.EVENT.column]
        keys = keys.filter(pa.array(first_times(column) <= self.watermark))
        yield from self._rounds(Domain.EVENT, self.watermark, keys, None)

    def _rounds(
        self, domain: Domain, upto: int, keys: pa.Table, left: int | None
    ) -> Generator[Page, None, pa.Table]:
        """The timers of some keys that are due, in rounds: one of each, in the order of time.

        So the state that one leaves is what the next of its key finds. A timer that a call sets is
        in a later round if it is due.

        Args:
            domain: which timers.
            upto: those up to this time, microseconds since 1970 (UTC).
            keys: whose; each has one at least.
            left: so many at most; None for all.

        Returns:
            The keys that fired last, of which others may be due; none if nothing is.

        Raises:
            ProcessError: those of a key come to no end.
        """
        on_timer, column = self.spec.on_timer, domain.column
        assert on_timer is not None
        rounds = 0
        while keys.num_rows and left != 0:
            touched = self.state.touched(keys)
            timers = Timers.read(touched.table[column])
            due = timers.first() & (timers.time <= upto)
            mine = timers.key[due]
            if left is not None and len(mine) > left:
                mine = np.sort(mine[np.argsort(timers.time[due], kind="stable")[:left]])
            if len(mine) < keys.num_rows:  # the others have none left, or wait
                keys = keys.take(pa.array(mine))
                continue
            stale = self._expired_before(touched, domain, timers.time[due])
            if stale.any():
                self.decoded = self.state.forgotten(touched, np.flatnonzero(stale))
                self.dirty = True
                keys = keys.filter(pa.array(~stale))
                continue
            if rounds == MAX_ROUNDS:
                raise self._endless(domain, keys.slice(0, 1).to_pylist()[0])
            yield from self._round(domain, keys, touched, timers, due)
            rounds += 1
            self.fired[domain] += keys.num_rows
            left = None if left is None else left - keys.num_rows
        return keys

    def _round(
        self,
        domain: Domain,
        keys: pa.Table,
        touched: Touched,
        timers: Timers,
        due: npt.NDArray[np.bool_],
    ) -> Iterator[Page]:
        """One timer of each key."""
        assert self.spec.on_timer is not None
        fired, place = timers.only(due), touched.table.schema.get_field_index(domain.column)
        left = timers.only(~due).column(keys.num_rows)
        rows = keys.append_column("time", pa.array(fired.time).cast(TIME_TYPE))
        rows = rows.append_column("name", pa.array(fired.name, pa.string()))
        field_ = touched.table.schema.field(domain.column)
        popped = replace(touched, table=touched.table.set_column(place, field_, left))
        made = self._call("")
        result = call_timers(self.spec.on_timer, made, domain, rows, popped, self.state)
        yield from self._took(result)

    def _endless(self, domain: Domain, key: object) -> ProcessError:
        return ProcessError(
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

    def _may_fire(self, domain: Domain, upto: int) -> bool:
        """Whether a timer may be due up to a time, by what was stored of a state as it is still."""
        stored = self.stored
        first = stored.event_timer if domain is Domain.EVENT else stored.processing_timer
        return self.spec.on_timer is not None and (self.dirty or first <= upto)
