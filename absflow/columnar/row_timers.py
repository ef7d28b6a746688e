"""The timers of a function that is called for one row, or for one timer, at a time.

Such a function asks for them one by one; what all calls of a key group have set and deleted is put
together into the tables of a columnar :class:`~absflow.columnar.process.Result`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from absflow.columnar.pages import TIME_TYPE
from absflow.columnar.timers import Domain, Timers
from absflow.errors import ResultError
from absflow.protocol.event_time import from_datetime, to_datetime

__all__ = ["KeyTimers", "Timer", "TimersOfCall", "timer_at"]

_DOMAINS = {domain.value: domain for domain in Domain}
# Of a key: the domain, the time (microseconds since 1970, UTC) and the name.
_Of = tuple[Domain, int, str]
_Ofs = set[_Of]  # by another name, for the classes below have a method "set"


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer, as functions of form "per-row" meet it.

    Attributes:
        key: the values of the key columns.
        time: what it waits for, a datetime in UTC.
        name: its name; "" if it has none.
        domain: "event" or "processing": which time it waits for.
    """

    key: tuple[Any, ...]
    time: datetime
    name: str = ""
    domain: str = "event"


class KeyTimers:
    """The timers of one key: ``context.timers`` of a function of form "per-row".

    It is of the key of the row, or of the timer, that the function is called for. A timer is one of
    its domain, time and name (Flink's ``TimerService``).
    """

    def __init__(self, of_call: TimersOfCall) -> None:
        """A view of those of a call; the call says whose turn it is."""
        self._of_call = of_call

    def set(self, time: datetime, name: str = "", domain: str = "event") -> None:
        """Set a timer; to set one that waits already changes nothing.

        Args:
            time: when it fires, a datetime with a time zone. In event time it is later than
                ``context.watermark``, and never before the timer that fires, if one does.
            name: what it is known by among others of the same time.
            domain: "event", or "processing": it waits for ``context.time_ms``.

        Raises:
            ResultError: there can be no such timer.
        """
        self._of_call.set(time, name, domain)

    def delete(self, time: datetime, name: str = "", domain: str = "event") -> None:
        """Delete a timer; of one that is not there nothing comes.

        Args:
            time: of the timer.
            name: of the timer.
            domain: of the timer.

        Raises:
            ResultError: these can be of no timer.
        """
        self._of_call.delete(time, name, domain)

    def waiting(self) -> list[Timer]:
        """Those that wait, in the order of domain, time and name; not the one that fires."""
        return self._of_call.waiting()


class TimersOfCall:
    """The timers of all keys of one call, which are numbered as the rows of its state."""

    def __init__(
        self,
        keys: pa.Table,
        pending: Mapping[str, pa.ChunkedArray],
        reached: Mapping[Domain, int | Sequence[int]],
    ) -> None:
        """Nothing is set or deleted yet.

        Args:
            keys: the key columns, a row for each key.
            pending: by domain, what waits before the call; empty if the stage has no timers.
            reached: by domain, the time that a timer must be behind, microseconds; one for each
                key, or one for all. A domain that is not there has none.
        """
        self._keys = keys
        self._pending = pending
        self._reached = reached
        self._before: list[_Ofs] | None = None
        self._changes: dict[int, dict[_Of, bool]] = {}
        self._sets = False
        self._at = 0

    def turn(self, at: int) -> None:
        """The function is called for this key next."""
        self._at, self._sets = at, False

    def set(self, time: datetime, name: str, domain: str) -> None:
        """As :meth:`KeyTimers.set`."""
        asked = self._asked(time, name, domain)
        reached = self._reached.get(asked[0])
        if reached is not None:
            least = reached if isinstance(reached, int) else reached[self._at]
            if asked[1] <= least:
                raise ResultError(
                    f"sets a timer for the {domain} time {_text(asked[1])}, but its key "
                    f"has come to {_text(least)}; a timer must be set for later. Of what is late "
                    "already, emit the result at once"
                )
        self._sets = True
        self._changes.setdefault(self._at, {})[asked] = True

    def delete(self, time: datetime, name: str, domain: str) -> None:
        """As :meth:`KeyTimers.delete`."""
        self._changes.setdefault(self._at, {})[self._asked(time, name, domain)] = False

    def waiting(self) -> list[Timer]:
        """As :meth:`KeyTimers.waiting`."""
        changes = self._changes.get(self._at, {})
        there = {of for of in self._waited(self._at) if changes.get(of, True)}
        there |= {of for of, is_set in changes.items() if is_set}
        if not there:
            return []
        key = tuple(self._keys.slice(self._at, 1).to_pylist()[0].values())
        order = list(Domain)
        in_order = sorted(there, key=lambda of: (order.index(of[0]), *of[1:]))
        return [timer_at(key, us, name, domain.value) for domain, us, name in in_order]

    def forgotten(self) -> None:
        """The key whose turn it is has no state any more, so it has no timers.

        Raises:
            ResultError: the function has set one in this very turn.
        """
        if self._sets:
            raise ResultError(
                "forgets its key and sets a timer for it, but a key without state has no timers; "
                "return a state, or leave out the timer"
            )
        if self._pending:
            self._changes[self._at] = dict.fromkeys(self._waited(self._at), False)

    def tables(self, gone: Sequence[bool]) -> tuple[pa.Table | None, pa.Table | None]:
        """What was set, and what was deleted, as a result has them.

        Args:
            gone: of each key, whether it has no state now; what it had of timers goes with that.
        """
        return self._table(gone, is_set=True), self._table(gone, is_set=False)

    def _table(self, gone: Sequence[bool], *, is_set: bool) -> pa.Table | None:
        rows = [
            (at, *of)
            for at, changes in self._changes.items()
            if not gone[at]
            for of, value in changes.items()
            if value is is_set
        ]
        if not rows:
            return None
        which, domains, times, names = zip(*rows, strict=True)
        return (
            self._keys.take(pa.array(which, pa.int64()))
            .append_column("time", pa.array(times, pa.int64()).cast(TIME_TYPE))
            .append_column("name", pa.array(names, pa.string()))
            .append_column("domain", pa.array([domain.value for domain in domains], pa.string()))
        )

    def _asked(self, time: object, name: object, domain: object) -> _Of:
        if not self._pending:
            raise ResultError(
                "asks for a timer, but the stage has no function for them; declare "
                "stage(..., on_timer=...)"
            )
        if not isinstance(time, datetime) or time.utcoffset() is None:
            raise ResultError(
                f"asks for a timer at {time!r}, but a datetime with a time zone is expected; times "
                "of rows and context.watermark have one, UTC"
            )
        if not isinstance(name, str):
            raise ResultError(f"asks for a timer with the name {name!r}, but a str is expected")
        if not isinstance(domain, str) or domain not in _DOMAINS:
            raise ResultError(
                f"asks for a timer of the domain {domain!r}, must be one of {list(_DOMAINS)}"
            )
        return _DOMAINS[domain], from_datetime(time), name

    def _waited(self, at: int) -> _Ofs:
        """What waited for a key before the call."""
        if self._before is None:
            self._before = [set() for _ in range(self._keys.num_rows)]
            for value, column in self._pending.items():
                timers = Timers.read(column)
                for key, time, name in zip(
                    timers.key.tolist(), timers.time.tolist(), timers.name.tolist(), strict=True
                ):
                    self._before[key].add((_DOMAINS[value], time, name))
        return self._before[at]


def timer_at(key: tuple[Any, ...], us: int, name: str, domain: str) -> Timer:
    """A timer at a time in microseconds since 1970 (UTC)."""
    time = to_datetime(us)
    assert time is not None
    return Timer(key, time, name, domain)


def _text(us: int) -> str:
    return timer_at((), us, "", "").time.isoformat()
