"""Timers: for a key to be called again when time has come to a point.

They are a part of the key's state, in columns of its own: a list of times and names for event time,
and one for processing time, each in order. So snapshots, restores, rescaling, compaction and the
history take them along as they do any other column, and a key without state has no timers. A timer
is one of its key, its domain, its time and its name; to set it twice is to set it once (Flink's
``InternalTimerService``).

Which timers are due is a look at the first of each list, a column of integers; and not even that
while the least of a key group's is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.pages import TIME_TYPE

__all__ = [
    "NEVER",
    "TIMEOUT_FIELDS",
    "TIMER_COLUMNS",
    "Domain",
    "Piece",
    "Timers",
    "first_times",
    "in_pieces",
    "last_time",
    "next_times",
    "piece_of",
    "timer_fields",
]

# Behind every time.
NEVER = int(np.iinfo(np.int64).max)

_Ints = npt.NDArray[np.int64]
_TIMER = pa.struct([pa.field("time", TIME_TYPE), pa.field("name", pa.string())])


class Domain(Enum):
    """What time a timer waits for (Flink's ``TimeDomain``)."""

    EVENT = "event"
    PROCESSING = "processing"

    @property
    def column(self) -> str:
        """The column of the state that has such timers."""
        return f"_{self.value}_timers"


class Piece(Enum):
    """How many timers fire in a range of key groups and micro-batch, by the form of their function.

    It gets through them in a second or less, behind which barriers and rows wait.
    """

    COLUMNAR = 500_000
    PER_ROW = 100_000
    PER_KEY = 10_000


# What a function for timers has that says so; one without is columnar.
_PIECE = "absflow_piece"
_Made = TypeVar("_Made")


def in_pieces(function: _Made, piece: Piece) -> _Made:
    """The function for timers, which fire in such pieces."""
    setattr(function, _PIECE, piece)
    return function


def piece_of(function: object) -> Piece:
    """In which pieces a function fires."""
    piece: Piece = getattr(function, _PIECE, Piece.COLUMNAR)
    return piece


TIMER_COLUMNS = tuple(domain.column for domain in Domain)
# What a state has beside its own columns if keys may time out: whether there is any, for a key
# without one may have a timeout; and when it times out, ms since 1970 (UTC).
TIMEOUT_FIELDS = (pa.field("_exists", pa.bool_()), pa.field("_timeout_ms", pa.int64()))


def timer_fields() -> list[pa.Field]:
    """The columns of a state with timers, behind its own."""
    return [pa.field(name, pa.list_(_TIMER)) for name in TIMER_COLUMNS]


def first_times(column: pa.ChunkedArray) -> _Ints:
    """Of each row of a timer column the first time; :data:`NEVER` if it has no timer."""
    parts = [_first(chunk) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def last_time(column: pa.ChunkedArray) -> int:
    """The greatest time in a timer column; -:data:`NEVER` if there is none."""
    return max(
        (int(_times(c.flatten()).max(initial=-NEVER)) for c in column.chunks), default=-NEVER
    )


def next_times(table: pa.Table) -> tuple[int, ...]:
    """Of each domain the least time in a table of state; :data:`NEVER` if there is none."""
    firsts = (first_times(table[name]) for name in TIMER_COLUMNS)
    return tuple(int(times.min(initial=NEVER)) for times in firsts)


def _first(chunk: pa.ListArray) -> _Ints:
    lengths = _lengths(chunk)
    times = _times(chunk.flatten())
    found = np.full(len(chunk), NEVER, dtype=np.int64)
    found[lengths > 0] = times[(np.cumsum(lengths) - lengths)[lengths > 0]]
    return found


def _lengths(chunk: pa.ListArray) -> _Ints:
    lengths: _Ints = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy().astype(np.int64)
    return lengths


def _times(timers: pa.StructArray) -> _Ints:
    times: _Ints = pc.struct_field(timers, "time").cast(pa.int64()).to_numpy()
    return times


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers of some keys in one domain; n of them, in the order of key, time and name.

    Attributes:
        key: n numbers of keys.
        time: n times, microseconds since 1970 (UTC).
        name: n names.
    """

    key: _Ints
    time: _Ints
    name: npt.NDArray[np.object_]

    @classmethod
    def of(cls, key: _Ints, time: _Ints, name: Sequence[str] | npt.NDArray[np.object_]) -> Timers:
        """Timers in any order; of equal ones one stays."""
        names = np.asarray(name, dtype=object)
        if not len(key):
            return cls(key, time, names)
        _, codes = np.unique(names.astype(str), return_inverse=True)
        order = np.lexsort((codes, time, key))
        key, time, names, codes = key[order], time[order], names[order], codes[order]
        fresh = np.ones(len(key), dtype=bool)
        fresh[1:] = (np.diff(key) != 0) | (np.diff(time) != 0) | (np.diff(codes) != 0)
        return cls(key[fresh], time[fresh], names[fresh])

    @classmethod
    def read(cls, column: pa.ChunkedArray) -> Timers:
        """Those of a timer column, whose rows are the keys."""
        chunk = pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()
        flat = chunk.flatten()
        key = np.repeat(np.arange(len(chunk), dtype=np.int64), _lengths(chunk))
        names = pc.struct_field(flat, "name").to_numpy(zero_copy_only=False)
        return cls(key, _times(flat), names)

    def column(self, keys: int) -> pa.Array:
        """The timer column of so many keys; null where there is none."""
        lengths = np.bincount(self.key, minlength=keys)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        times = pa.array(self.time, pa.int64()).cast(TIME_TYPE)
        names = pa.array(self.name, pa.string())
        timers = pa.StructArray.from_arrays([times, names], fields=list(_TIMER))
        none = pa.array(lengths == 0)
        return pa.ListArray.from_arrays(pa.array(offsets), timers, mask=none)

    def changed(self, added: Timers, removed: Timers) -> Timers:
        """After some were set and some were deleted; deleting what is not there does nothing."""
        kept = self.without(removed)
        return Timers.of(
            np.concatenate([kept.key, added.key]),
            np.concatenate([kept.time, added.time]),
            np.concatenate([kept.name, added.name]),
        )

    def without(self, removed: Timers) -> Timers:
        """Those that are not among some others."""
        if not len(removed.key) or not len(self.key):
            return self
        _, codes = np.unique(np.r_[self.name, removed.name].astype(str), return_inverse=True)
        all_of_them = np.c_[np.r_[self.key, removed.key], np.r_[self.time, removed.time], codes]
        _, same = np.unique(all_of_them, axis=0, return_inverse=True)
        mine = len(self.key)
        return self.only(~np.isin(same[:mine], same[mine:]))

    def first(self) -> npt.NDArray[np.bool_]:
        """Of each whether it is the first of its key."""
        found = np.ones(len(self.key), dtype=bool)
        found[1:] = self.key[1:] != self.key[:-1]
        return found

    def only(self, which: npt.NDArray[np.bool_]) -> Timers:
        """Those for which a mask is true."""
        return Timers(self.key[which], self.time[which], self.name[which])
