"""The work that the peers of ``throughput.py`` do: rows, and what is kept of them for each key.

Imports neither absflow nor Spark, as Bytewax and PyFlink have environments of their own. Each
workload is a fold over the rows of a key, here written per row, for all who take rows one by one.

*Uniform*, *Zipf*: count, sum and last value by key. *NEXMark*: the bids of the generator that Beam
and Flink share, with its constants (46 of 50 events are bids, 3 are auctions, 1 is a person; half
of the bids go to an auction out of a hundred that is hot, three of four come from a hot person,
others to one of the last 100 auctions, or from one of the last 1,000 persons); prices are 10 to the
power of a uniform number below 6, in cents. *Query 17* (count, bids below 10,000 and below
1,000,000 and above, least, greatest and total price of an auction and a day) and *query 18* (a
person's last bid on an auction) keep state for each key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[Any, ...]
Update = Callable[["Row | None", Row], Row]


@dataclass(frozen=True)
class Workload:
    """Rows, and what is kept of them.

    Attributes:
        rows: DDL of the rows' columns; the first ones are the key.
        keys: how many of them.
        state: DDL of the state columns; an output row is the key and these.
        make: the rows of a file: its number, how many rows -> a table.
        update: ``(state or None, row) -> new state``; what is emitted is the key and this.
        loads: how many files bring new keys; what they take is not counted.
    """

    rows: str
    keys: int
    state: str
    make: Callable[[int, int], pa.Table]
    update: Update
    loads: int = 2

    @property
    def key(self) -> list[str]:
        """Names of the key columns."""
        return [column.split()[0] for column in self.rows.split(", ")[: self.keys]]

    @property
    def output(self) -> str:
        """DDL of the output's columns."""
        return ", ".join([*self.rows.split(", ")[: self.keys], self.state])

    def fold(self, state: Row | None, row: Row) -> tuple[Row, list[Row]]:
        """A function per row: the new state, and what is emitted."""
        new = self.update(state, row)
        return new, [(*row[: self.keys], *new)]

    def write(self, folder: Path, files: int, rows: int) -> None:
        """The same files every time."""
        for number in range(files):
            pq.write_table(self.make(number, rows), folder / f"{number:04d}.parquet")


def _added(state: Row | None, row: Row) -> Row:
    n, total, _ = state or (0, 0, 0)
    return n + 1, total + row[1], row[1]


def _zipf(keys: int, exponent: float) -> Callable[[int, int], pa.Table]:
    """By the inverse of the distribution of the first ``keys`` ranks; ranks are scattered."""
    weights = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    key_of = np.random.default_rng(2).permutation(keys)

    def make(number: int, rows: int) -> pa.Table:
        random = np.random.default_rng([3, number])
        ranks = np.searchsorted(weights, random.random(rows) * weights[-1])
        return pa.table({"k": key_of[ranks], "v": random.integers(0, 9, rows)})

    return make


def _loaded(
    keys: int, loads: int, drawn: Callable[[np.random.Generator, int], Any]
) -> Callable[[int, int], pa.Table]:
    """``loads`` files that together have each key once; then files of keys drawn from them."""

    def make(number: int, rows: int) -> pa.Table:
        random = np.random.default_rng([1, number])
        k = np.arange(number, keys, loads) if number < loads else drawn(random, rows)
        return pa.table({"k": k, "v": random.integers(0, 9, len(k))})

    return make


def _uniform(keys: int, loads: int) -> Callable[[int, int], pa.Table]:
    return _loaded(keys, loads, lambda random, rows: random.integers(0, keys, rows))


def _touched(keys: int, loads: int, share: float) -> Callable[[int, int], pa.Table]:
    """So large a share of the keys in each file, however many rows there were to be."""
    return _loaded(
        keys, loads, lambda random, _rows: random.choice(keys, int(keys * share), replace=False)
    )


_PER_PERSON = 50  # events: 1 person, 3 auctions, 46 bids
_MS_PER_EVENT = 0.1
_DAY_MS = 86_400_000


def _bids(number: int, rows: int) -> pa.Table:
    """auction, bidder, price, at (ms), and the day of it."""
    random = np.random.default_rng([5, number])
    events = np.arange(number * rows, (number + 1) * rows) * _PER_PERSON // 46
    person = events // _PER_PERSON
    auction = person * 3 + 2
    cold = np.maximum(auction - random.integers(0, 100, rows), 0)
    auction = np.where(random.random(rows) < 0.5, auction // 100 * 100, cold)
    cold = np.maximum(person - random.integers(0, 1_000, rows), 0)
    bidder = np.where(random.random(rows) < 0.75, person // 100 * 100 + 1, cold)
    price = np.round(10 ** (random.random(rows) * 6) * 100).astype(np.int64)
    at = (events * _MS_PER_EVENT).astype(np.int64)
    return pa.table(
        {"auction": auction, "bidder": bidder, "price": price, "at": at, "day": at // _DAY_MS}
    )


def _query_17(state: Row | None, row: Row) -> Row:
    price = row[2]
    n, low, middle, high, least, most, total = state or (0, 0, 0, 0, price, price, 0)
    return (
        n + 1,
        low + (price < 10_000),
        middle + (10_000 <= price < 1_000_000),
        high + (price >= 1_000_000),
        min(least, price),
        max(most, price),
        total + price,
    )


def _query_18(state: Row | None, row: Row) -> Row:
    return row[2:] if state is None or row[3] >= state[1] else state


_SUMS = ("k long, v long", 1, "n long, total long, last long")
_FEW_KEYS = Workload(*_SUMS, _uniform(100_000, 2), _added)
_PRICES = "n long, low long, middle long, high long, least long, most long, total long"
WORKLOADS = {
    "100 k uniform keys": _FEW_KEYS,
    "1 M uniform keys": Workload(*_SUMS, _uniform(1_000_000, 4), _added, loads=4),
    "Zipf 1.1 over 1 M keys": Workload(*_SUMS, _zipf(1_000_000, 1.1), _added),
    "10 M keys, 1 % a batch": Workload(*_SUMS, _touched(10_000_000, 10, 0.01), _added, loads=10),
    "NEXMark 17, (auction, day)": Workload(
        "auction long, day long, price long",
        2,
        _PRICES,
        lambda number, rows: _bids(number, rows).select(["auction", "day", "price"]),
        _query_17,
    ),
    "NEXMark 18, (bidder, auction)": Workload(
        "bidder long, auction long, price long, at long",
        2,
        "price long, at long",
        lambda number, rows: _bids(number, rows).select(["bidder", "auction", "price", "at"]),
        _query_18,
    ),
    # For what needs minutes: a function for each key and micro-batch, and PyFlink.
    "100 k uniform keys, one by one": _FEW_KEYS,
}
