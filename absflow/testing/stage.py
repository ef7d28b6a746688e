"""A stage of a job without Spark: its process function on rows, state, barriers and time."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from absflow.columnar.spec import StageSpec
from absflow.columnar.state import OWN_COLUMNS
from absflow.columnar.timers import TIMEOUT_FIELDS, Domain, Timers
from absflow.declared_functions import AnyProcess, AnyTimerFunction
from absflow.errors import GraphError, NotFoundError
from absflow.protocol.event_time import from_datetime, to_datetime
from absflow.testing.copies import Sent
from absflow.testing.declaration import Declaration, Made, named_inputs
from absflow.testing.feeding import Emitted, Feeding
from absflow.testing.restoring import given_state, initial_state
from absflow.testing.rows import Rows, in_key_order
from absflow.testing.signs import (
    BARRIER,
    BATCH,
    END,
    AdvanceWatermark,
    BarrierOn,
    Fed,
    Input,
    Wait,
)
from absflow.ttl import Ttl

__all__ = ["Stage"]

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Stage:
    """A stage that runs here as it does on workers, but for Spark.

    It takes what :meth:`absflow.Job.stage` takes, and runs the same code. Each call runs whole
    micro-batches, and gives the rows that were emitted, as dicts::

        stage = Stage(count, inputs="user string", key="user",
                      state="visits long", output="user string, visits long")
        assert stage.batch([{"user": "ada"}, {"user": "ada"}]) == [{"user": "ada", "visits": 2}]
        stage.checkpoint()
        stage.restore(key_groups=3)
        assert stage.state == [{"user": "ada", "visits": 2}]

    A row that is fed is a dict or a tuple, or a whole table; with several inputs a pair of an
    input's name and that. The clock stands still unless :meth:`wait` moves it.

    Attributes:
        declaration: what it was declared with, but for its functions.
        functions: these: for rows, and for timers.
    """

    def __init__(
        self,
        process: AnyProcess | Mapping[str, AnyProcess],
        *,
        inputs: str | StructType | pa.Schema | Input | Mapping[str, Any],
        key: str | Sequence[str],
        output: str | StructType,
        state: str | StructType | None = None,
        form: str = "arrow",
        on_timer: AnyTimerFunction | None = None,
        timeout: str = "NoTimeout",
        time_mode: str = "None",
        ttl: Ttl | None = None,
        output_time: str | None = None,
        watermark_delay: str = "0s",
        name: str = "stage",
        key_groups: int = 4,
        time_zone: str = "UTC",
        now: datetime = _START,
    ) -> None:
        """A stage that has read nothing.

        Args:
            process: as of :meth:`absflow.Job.stage`, as all that is not explained here.
            inputs: the columns of its one input, or an :class:`Input`; of several one for each, by
                name.
            key: one or several columns that every input has.
            output: the columns of the rows it emits.
            state: the state columns, without the key.
            form: of the function.
            on_timer: the function for timers.
            timeout: of form "per-key".
            time_mode: of a ``StatefulProcessor``.
            ttl: how long the state of a key lives that nothing touches.
            output_time: the output column with the event times of the rows.
            watermark_delay: how much older than the watermark these may be.
            name: of the stage, in errors.
            key_groups: over how many keys are spread.
            time_zone: as of ``spark.sql.session.timeZone``, for forms that meet local times.
            now: what its clock shows.

        Raises:
            GraphError: something here cannot be so, as a start of a job would say.
        """
        self.declaration = Declaration(
            name, named_inputs(inputs), key, state, output, form, timeout, time_mode, ttl,
            output_time, watermark_delay, time_zone,
        )  # fmt: skip
        self.functions = (process, on_timer)
        self._key_groups = key_groups
        self._begun_ms = from_datetime(now) // 1_000
        made = self.declaration.make(process, on_timer, key_groups)
        self._sent = Sent(self.functions)
        self._feeding = Feeding(made, self._begun_ms, self._elsewhere)
        self._given: pa.Table | None = None

    def fresh(self, *, key_groups: int | None = None, elsewhere: bool = False) -> Stage:
        """The same stage, that has read nothing; with the state that it was begun with.

        Args:
            key_groups: another number of them.
            elsewhere: its functions are copies, as another process would have them.
        """
        made = copy.copy(self)
        made._key_groups = key_groups or self._key_groups
        process, on_timer = self._sent.copy() if elsewhere else self.functions
        stage = self.declaration.make(process, on_timer, made._key_groups)
        made._feeding = Feeding(stage, self._begun_ms, made._elsewhere)
        if self._given is not None:
            made._feeding.begin(self._given)
        return made

    def _elsewhere(self, key_groups: int | None) -> Made:
        """The stage as a job has it that is restored, in another process."""
        self._key_groups = key_groups or self._key_groups
        process, on_timer = self._sent.copy()
        return self.declaration.make(process, on_timer, self._key_groups)

    @property
    def spec(self) -> StageSpec:
        """The stage as workers have it."""
        return self._feeding.made.spec

    # -- what comes to it ---------------------------------------------------------------------

    def run(self, feed: Iterable[Fed]) -> list[dict[str, Any]]:
        """Feed rows and signs, in order; what is emitted by all that.

        Without a sign all of it is one micro-batch. Behind :data:`RESTORE` the rows that came after
        the last checkpoint are read once more, and what they had emitted is no more.
        """
        return self._feeding.run(feed)

    def batch(self, rows: Rows | Mapping[str, Rows] = ()) -> list[dict[str, Any]]:
        """One micro-batch of these rows; what it emits.

        Args:
            rows: in any form; of several inputs by the name of each.
        """
        return self.run([*self._feeding.fed(rows), BATCH])

    def barrier(self, *inputs: str) -> list[dict[str, Any]]:
        """The barrier of the next checkpoint comes on these inputs; without, on all."""
        return self.run([BarrierOn(name) for name in inputs] or [BARRIER])

    def checkpoint(self, *, completes: bool = True) -> int:
        """Take a checkpoint: its barrier comes on all inputs that have not brought it.

        Args:
            completes: else it is aborted behind the stage's snapshot.

        Returns:
            Its id.
        """
        return self._feeding.checkpoint(completes=completes)

    def wait(self, duration: str) -> list[dict[str, Any]]:
        """The clock goes on by a duration as "10min"; what a micro-batch emits then."""
        return self.run([Wait(duration)])

    def advance_watermark(self, time: datetime, input: str = "") -> list[dict[str, Any]]:
        """A stage that is read here says how far event time is; what is emitted by that."""
        return self.run([AdvanceWatermark(time, input)])

    def end(self) -> list[dict[str, Any]]:
        """Every source ends: timers in event time that wait fire, and a last checkpoint is taken.

        Returns:
            What is emitted by that.
        """
        return self.run([END])

    def restore(self, checkpoint: int | None = None, *, key_groups: int | None = None) -> None:
        """The job dies, and goes on from a checkpoint with copies of its functions.

        What it had emitted behind that is no more; feed the rows again that came then.

        Args:
            checkpoint: its id; None for the last, or for nothing if there is none.
            key_groups: another number of them from now on.

        Raises:
            NotFoundError: there is no such checkpoint.
        """
        number = self._feeding.completed if checkpoint is None else checkpoint
        if number and number not in self._feeding.taken:
            there = sorted(self._feeding.taken)
            raise NotFoundError(f"there is no checkpoint {number}; those that are there: {there}")
        self._feeding.restore(number, key_groups)

    def begin(self, state: Rows) -> None:
        """Begin with a state: a row for each key, with the columns of key and state.

        It is checkpoint 1, as a written savepoint would be.

        Raises:
            ValueError: it has other columns, or values that do not fit.
            GraphError: something was fed already.
        """
        self._begin(given_state(self._new(), state, self._begun_ms))

    def begin_initial(self, rows: pa.Table) -> None:
        """Begin with what ``handleInitialState`` makes of rows: they have the key columns.

        Raises:
            GraphError: something was fed already, or nothing takes them.
        """
        self._begin(initial_state(self._new(), rows, self._begun_ms))

    def _new(self) -> Made:
        if self._feeding.batches or self._feeding.taken:
            raise GraphError("the stage has read something already; begin with a new Stage")
        return self._feeding.made

    def _begin(self, given: pa.Table) -> None:
        self._given = given
        self._feeding.begin(given)

    # -- what has come of it ------------------------------------------------------------------

    @property
    def output(self) -> list[dict[str, Any]]:
        """All rows that it has emitted, but for those that a restore has taken back."""
        return [row for each in self.emitted for row in each.rows.to_pylist()]

    @property
    def emitted(self) -> tuple[Emitted, ...]:
        """The same by micro-batch."""
        return tuple(self._feeding.emitted)

    @property
    def late(self) -> dict[str, list[dict[str, Any]]]:
        """By source, the late rows of those that keep them (``late="table"``)."""
        found: dict[str, list[dict[str, Any]]] = {}
        for _, name, rows in self._feeding.late:
            found.setdefault(name, []).extend(rows.to_pylist())
        return found

    @property
    def late_emitted(self) -> int:
        """How many rows it has emitted behind its own watermark; see ``output_time``."""
        return self._feeding.late_emitted

    @property
    def state(self) -> list[dict[str, Any]]:
        """A row for each key that has state, by key."""
        table = self._feeding.life.state()
        exists = TIMEOUT_FIELDS[0].name
        if exists in table.column_names:  # else the key has a timeout alone
            table = table.filter(table[exists])
        own = [name for name in table.column_names if name in OWN_COLUMNS]
        rows: list[dict[str, Any]] = in_key_order(table.drop_columns(own), self._key).to_pylist()
        return rows

    @property
    def timers(self) -> list[dict[str, Any]]:
        """A row for each timer that waits, by key, domain and time; of timeouts, too."""
        table = self._feeding.life.state()
        found = []
        for domain in Domain:
            if domain.column in table.column_names:
                timers = Timers.read(table[domain.column])
                rows = table.select(self._key).take(pa.array(timers.key))
                for key, us, name in zip(rows.to_pylist(), timers.time, timers.name, strict=True):
                    time = to_datetime(int(us))
                    found.append({**key, "domain": domain.value, "time": time, "name": name})
        names = [*self._key, "domain", "time", "name"]
        return sorted(found, key=lambda row: [(row[n] is not None, row[n]) for n in names])

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come, in UTC; None before it has."""
        time = self._feeding.life.time
        return None if time is None else to_datetime(time.stage.value)

    @property
    def now(self) -> datetime:
        """What its clock shows."""
        time = to_datetime(self._feeding.now_ms * 1_000)
        assert time is not None
        return time

    @property
    def held_rows(self) -> int:
        """How many rows are held, for their input has brought a barrier that another has not."""
        return sum(self._feeding.life.held.values())

    @property
    def checkpoints(self) -> list[int]:
        """The ids of the completed checkpoints."""
        return sorted(self._feeding.taken)

    @property
    def _key(self) -> list[str]:
        names: list[str] = self.spec.keys.names
        return names
