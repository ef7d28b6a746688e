"""What is fed to a stage under test, cut into micro-batches; its checkpoints and its clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from absflow.columnar.event_time import watermark_payload
from absflow.columnar.pages import Page
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.event_time import from_datetime, to_datetime
from absflow.protocol.watermarks import WatermarkStatus
from absflow.settings.values import positive_duration_ms
from absflow.testing.declaration import Made
from absflow.testing.life import Life, Ran
from absflow.testing.restoring import Taken, restore_pages
from absflow.testing.rows import is_table, table_of
from absflow.testing.signs import AdvanceWatermark, BarrierOn, Fed, Sign, Wait

__all__ = ["Emitted", "Feeding"]


@dataclass(frozen=True, slots=True)
class Emitted:
    """Rows that a micro-batch has emitted.

    Attributes:
        epoch: theirs; they are in every checkpoint with this id or a later one.
        batch: the number of the micro-batch, over restores too.
        time: of the micro-batch.
        rows: the rows.
    """

    epoch: int
    batch: int
    time: datetime
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class _Brings:
    """A barrier that waits, and what it says of event time."""

    barrier: Barrier
    payload: bytes


# An input, the epoch of a row, and the row, or a table; or a barrier.
_Entry: TypeAlias = "tuple[str, int, Any]"


class Feeding:
    """A stage under test over its restores.

    Attributes:
        made: the stage as it is now.
        life: its life since the last restore.
        now_ms: what the clock shows.
        taken: the completed checkpoints.
        completed: the newest; 0 if there is none.
        emitted: what was emitted, but for what a restore has taken back.
        late: late rows, with their epoch and input.
        late_emitted: rows that were emitted late.
        batches: so many micro-batches were run.
    """

    def __init__(self, made: Made, now_ms: int, elsewhere: Callable[[int | None], Made]) -> None:
        """Nothing was fed.

        Args:
            made: the stage.
            now_ms: what the clock shows.
            elsewhere: makes the stage of copies, with so many key groups, for a restore.
        """
        self.made, self.now_ms, self._elsewhere = made, now_ms, elsewhere
        self.life = Life(made.spec, now_ms)
        self.taken: dict[int, Taken] = {}
        self.completed = 0
        self.emitted: list[Emitted] = []
        self.late: list[tuple[int, str, pa.Table]] = []
        self.late_emitted = 0
        self.batches = 0
        self._roots = {given.name: given.root for given in made.spec.inputs}
        self._brought = dict.fromkeys(self._roots, 0)
        self._barrier = Barrier(0)
        self._completes = True
        self._said: dict[str, int] = {}
        self._waiting: list[_Entry] = []
        # What came behind the last checkpoint on its input, with its epoch.
        self._since: list[tuple[int, Fed]] = []
        self._mark = 0

    def run(self, feed: Iterable[Fed]) -> list[dict[str, Any]]:
        """As :meth:`absflow.testing.Stage.run`."""
        self._mark = len(self.emitted)
        for fed in feed:
            self._take(fed)
        self._cut()
        return [row for each in self.emitted[self._mark :] for row in each.rows.to_pylist()]

    def checkpoint(self, *, completes: bool) -> int:
        """As :meth:`absflow.testing.Stage.checkpoint`."""
        self._completes = completes
        try:
            self.run([Sign.BARRIER])
        finally:
            self._completes = True
        return self._barrier.checkpoint_id

    def begin(self, rows: pa.Table) -> None:
        """Begin with the rows of a snapshot, which is checkpoint 1."""
        self.taken[1] = Taken(0, rows, self.life.time, None, self.now_ms)
        self._live(1)

    def restore(self, number: int, key_groups: int | None) -> None:
        """Go on from a checkpoint, or from nothing if it is 0."""
        self.made = self._elsewhere(key_groups)
        self.life = Life(self.made.spec, self.now_ms)
        self.taken = {n: taken for n, taken in self.taken.items() if n <= number}
        self.emitted = [each for each in self.emitted if each.epoch <= number]
        self.late = [each for each in self.late if each[0] <= number]
        self._mark = min(self._mark, len(self.emitted))
        self._waiting, self._since, self._said = [], [], {}
        self._live(number)

    def _live(self, number: int) -> None:
        self.completed, self._barrier = number, Barrier(number)
        self._brought = dict.fromkeys(self._roots, number)
        if number:
            pages = restore_pages(self.made, self.taken, number)
            self.life.restore(pages, number, self.taken[number].time)

    def fed(self, rows: Any) -> list[Fed]:
        """Rows in whatever form, to be fed one by one."""
        several = len(self._roots) > 1
        if isinstance(rows, Mapping):
            if not several:
                raise ValueError(f"{rows!r} is one row, or none; give a list of rows")
            return [(name, row) for name, given in rows.items() for row in _one_by_one(given)]
        if several and is_table(rows):
            raise ValueError(f"say of which input the rows are, one of {list(self._roots)}: a dict")
        return _one_by_one(rows)

    # -- one by one ---------------------------------------------------------------------------

    def _take(self, fed: Fed) -> None:
        """A row, a table or a sign."""
        if not isinstance(fed, Sign | BarrierOn | Wait | AdvanceWatermark):
            name, row = self._named(fed)
            epoch = self._brought[name] + 1
            self._waiting.append((name, epoch, row))
            self._since.append((epoch, fed))
            return
        match fed:
            case Sign.BATCH:
                self._flush()
            case Sign.BARRIER:
                self._barriers(self._without_barrier())
                return
            case BarrierOn(name):
                self._barriers([name])
                return
            case Sign.RESTORE:
                self._cut()
                again = [fed for _, fed in self._since]
                self.restore(self.completed, None)
                for each in again:
                    self._take(each)
                return
            case Sign.END:
                self._barriers(self._without_barrier(), WatermarkStatus.ENDED)
                return
            case Wait(duration):
                self._cut()
                self.now_ms += positive_duration_ms(duration)
                self._batch(self.life.wake())
                return  # the clock does not go back in a restore
            case AdvanceWatermark(time, name):
                self._flush()
                self._advance(time, self._only(name))
        self._since.append((max(self._brought.values()) + 1, fed))

    def _cut(self) -> None:
        """End the micro-batch that waits, as a restore will have to do again."""
        if self._waiting:
            self._take(Sign.BATCH)

    def _next_id(self) -> int:
        """The id of the checkpoint whose barriers come now; a new one if all inputs have it."""
        last = self._barrier.checkpoint_id
        return last + 1 if all(at == last for at in self._brought.values()) else last

    def _without_barrier(self) -> list[str]:
        """The inputs on which the barrier of the next checkpoint has not come."""
        number = self._next_id()
        return [name for name, at in self._brought.items() if at < number]

    def _barriers(
        self, names: Iterable[str], status: WatermarkStatus = WatermarkStatus.ACTIVE
    ) -> None:
        """The barrier of the next checkpoint on these inputs.

        Rows of a channel may come behind it in the same micro-batch; those of a source do not.
        """
        ended = status is WatermarkStatus.ENDED
        if ended or any(isinstance(what, _Brings) for _, _, what in self._waiting):
            self._flush()
        number = self._next_id()
        if number != self._barrier.checkpoint_id:
            base = self.completed
            self._barrier = Barrier(number, base, base, self.now_ms)
        at_once = ended
        for name in names:
            if name not in self._brought:
                raise ValueError(f"there is no input {name!r}; the stage has {list(self._roots)}")
            if self._brought[name] == number:
                raise ValueError(f"input {name!r} has brought barrier {number} already")
            self._brought[name] = number
            self._waiting.append((name, number, _Brings(self._barrier, self._says(name, status))))
            at_once = at_once or self._roots[name]
        if at_once:
            self._flush()

    def _says(self, name: str, status: WatermarkStatus) -> bytes:
        """What a barrier on an input says of event time."""
        if not self.made.spec.input(name).timed:
            return b""
        if status is WatermarkStatus.ENDED or name in self._said:
            return watermark_payload(self._said.get(name), status)
        return b""

    def _advance(self, time: datetime, name: str) -> None:
        given = self.made.spec.input(name)
        if given.root or not given.timed:
            raise ValueError(
                f"input {name!r} is no stage with event time, so nobody says how far it is; "
                'declare Input(..., of="stage", timed=True), or feed rows'
            )
        us = from_datetime(time)
        self._said[name] = max(us, self._said.get(name, us))
        self._batch(self.life.watermark(name, us, self._brought[name] + 1))

    def _only(self, name: str) -> str:
        if name or len(self._roots) > 1:
            if name not in self._roots:
                raise ValueError(f"name the input, one of {list(self._roots)}, not {name!r}")
            return name
        return next(iter(self._roots))

    def _named(self, fed: Any) -> tuple[str, Any]:
        """The input of a row, and the row."""
        if len(self._roots) == 1:
            return next(iter(self._roots)), fed
        pair = isinstance(fed, tuple) and len(fed) == 2
        if not pair or not isinstance(fed[0], str) or fed[0] not in self._roots:
            raise ValueError(
                f"{fed!r} does not say of which input it is; feed (input, row), with one of "
                f"{list(self._roots)}"
            )
        return fed[0], fed[1]

    # -- micro-batches ------------------------------------------------------------------------

    def _flush(self) -> None:
        """Run the micro-batch of what waits."""
        waiting, self._waiting = self._waiting, []
        pages: list[Page] = []
        for name in self._roots:
            mine = [entry for entry in waiting if entry[0] == name]
            rows = [entry for entry in mine if not isinstance(entry[2], _Brings)]
            for epoch, of_epoch in itertools.groupby(rows, key=lambda entry: entry[1]):
                table = self._table(name, [what for _, _, what in of_epoch])
                pages += self.life.rows(name, table, epoch, self._said.get(name))
            for _, _, what in mine:
                if isinstance(what, _Brings):
                    pages += self.life.barrier(name, what.barrier, what.payload)
        if pages:
            self._batch(pages)

    def _table(self, name: str, rows: list[Any]) -> pa.Table:
        """Rows and tables of an input, put together."""
        schema, what = self.made.spec.input(name).schema, f"input {name!r}"
        tables: list[pa.Table] = []
        for whole, part in itertools.groupby(rows, key=is_table):
            given = list(part)
            tables += [table_of(each, schema, what) for each in (given if whole else [given])]
        return pa.concat_tables(tables)

    def _batch(self, pages: list[Page]) -> None:
        """One micro-batch, and those that it asks for."""
        self._took(self.life.batch(pages, self.now_ms))
        while self.life.left:
            self._took(self.life.batch(self.life.wake(), self.now_ms))

    def _took(self, ran: Ran) -> None:
        time = to_datetime(self.now_ms * 1_000)
        assert time is not None
        self.emitted += [Emitted(epoch, self.batches, time, rows) for epoch, rows in ran.output]
        self.late += ran.late
        self.late_emitted += ran.late_emitted
        self.batches += 1
        for number, snapshot in ran.snapshots.items():
            if self._completes:
                base = self._barrier.base_id
                self.taken[number] = Taken(
                    base, snapshot.rows, snapshot.time, snapshot.expired_upto, self.now_ms
                )
                self.completed = number
                self._since = [each for each in self._since if each[0] > number]


def _one_by_one(rows: Any) -> list[Any]:
    return [rows] if is_table(rows) else list(rows)
