"""The storage roots that tests of the commands share."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from storage_roots import Checkpoint, Root, Row, Stage, write_root

CHECKPOINT_HISTORY = (
    Checkpoint(1),
    Checkpoint(2, 1, "ABORTED", "EXPIRED"),
    Checkpoint(3, 1),
    Checkpoint(4, 1),  # in flight with 3, so it repeats 3's changes
    Checkpoint(5, 4),
    Checkpoint(6, 0),  # full
    Checkpoint(7, 6, "ABORTED", "SNAPSHOT_FAILED", "stage aircraft: [Errno 28] disk full"),
    Checkpoint(8, 6),
    Checkpoint(9, 8, None),
)

_AIRCRAFT = {
    1: {"N1": (1, 0.5), "N2": (2, None), None: (7, -1.0)},
    2: {"N1": (666, 0.0), "N2": (2, None), None: (7, -1.0), "N666": (666, 0.0)},
    3: {"N1": (3, 1.5), "N2": (2, None), None: (7, -1.0), "N4": (4, 0.0)},
    4: {"N1": (1, 0.5), "N2": (2, None), "N4": (4, 0.0), "N5": (None, None)},
    5: {"N1": (1, 0.5), "N2": (2, None), "N4": (4, 0.0), "N5": (None, None)},
    6: {"N1": (9, 0.5), "N4": (4, 0.0), "N5": (None, None)},
    7: {"N1": (9, 0.5), "N4": (777, 0.0)},
    8: {"N4": (5, 0.0), None: (8, float("inf"))},
    9: {"N4": (999, 0.0)},
}
_TAIL = pa.schema([("tailnum", pa.string())])


def aircraft() -> Stage:
    """One key column with a null key; what must not be seen has 666, 777 or 999 in it."""
    states = {
        n: [{"tailnum": k, "legs": legs, "delay": d} for k, (legs, d) in rows.items()]
        for n, rows in _AIRCRAFT.items()
    }
    columns = pa.schema([("legs", pa.int64()), ("delay", pa.float64())])
    overtaken = {"input": "legs", "attempt": 1, "position": "-", "epoch": 8, "from_seq": 0}
    in_flight = {8: [{**overtaken, "files": [], "rows": 629, "bytes": 52_000}]}
    return Stage("aircraft", _TAIL, columns, states, unwritten=frozenset({7}), in_flight=in_flight)


def pairs() -> Stage:
    """Two key columns with nulls, a map in the state, a name with ``-``; ends after 5."""
    keys = pa.schema([("origin", pa.string()), ("day", pa.date32())])
    columns = pa.schema([("seen", pa.map_(pa.string(), pa.int64())), ("op-n", pa.int32())])
    one, two = date(2026, 1, 1), date(2026, 1, 2)

    def rows(*given: tuple[Any, Any, Any, Any]) -> list[Row]:
        return [dict(zip(("origin", "day", "seen", "op-n"), row, strict=True)) for row in given]

    states = {
        1: rows(("EWR", one, [("a", 1)], 1), ("EWR", None, None, 2), (None, None, [], 3)),
        3: rows(("EWR", one, [("a", 1), ("b", None)], 1), (None, None, [], 3)),
        5: rows(("EWR", one, [("a", 1), ("b", None)], 1), (None, two, [("c", 5)], 4)),
    }
    return Stage("route-pairs", keys, columns, states, ended=5)


def legs() -> Stage:
    """A forwarding stage."""
    positions = {"legs": '{"logOffset":3}'}
    return Stage("legs", pa.schema([]), pa.schema([]), positions=positions)


_MOMENT = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=timezone.utc)
KEY_VALUES = {
    "tiny": (pa.int8(), -8),
    "small": (pa.int16(), -1600),
    "plain": (pa.int32(), 32),
    "large": (pa.int64(), 2**53 + 1),
    "flag": (pa.bool_(), True),
    "day": (pa.date32(), date(2026, 1, 2)),
    "moment": (pa.timestamp("us", tz="UTC"), _MOMENT),
    "local": (pa.timestamp("us"), _MOMENT.replace(tzinfo=None)),
    "amount": (pa.decimal128(12, 2), Decimal("-1234.50")),
    "text": (pa.string(), "it's `é` [red]"),
    "bytes": (pa.binary(), b"\x00\xff=key"),
}


def keyed_by(name: str) -> Stage:
    """A stage whose key column has one type: a key, the null key, and a key that goes."""
    type_, value = KEY_VALUES[name]
    gone = {"text": "", "bytes": b"", "flag": False}.get(name)
    gone = {"day": date(1969, 12, 31), "amount": Decimal("0.01")}.get(name, gone)
    if gone is None:
        gone = value - timedelta(days=1) if isinstance(value, datetime) else value + 1
    states = {
        1: [{"k": value, "n": 1}, {"k": None, "n": 2}, {"k": gone, "n": 3}],
        3: [{"k": value, "n": 4}, {"k": None, "n": 2}],
    }
    return Stage(f"by-{name}", pa.schema([("k", type_)]), pa.schema([("n", pa.int64())]), states)


def values() -> Stage:
    """Every kind of state column."""
    point = pa.struct([("x", pa.int32()), ("tags", pa.map_(pa.string(), pa.string()))])
    columns = {
        "amount": (pa.decimal128(38, 9), Decimal("0.000000001")),
        "raw": (pa.binary(), b"\x01\x02"),
        "moment": (pa.timestamp("us", tz="UTC"), _MOMENT),
        "day": (pa.date32(), date(2026, 1, 2)),
        "ratio": (pa.float32(), 0.25),
        "flag": (pa.bool_(), False),
        "list": (pa.list_(pa.int64()), [1, None, 3]),
        "point": (point, {"x": 1, "tags": [("a", "b")]}),
        "points": (pa.list_(point), [{"x": None, "tags": None}, None]),
        "text": (pa.string(), "[bold]a\tb"),
    }
    state = pa.schema([(name, type_) for name, (type_, _) in columns.items()])
    row = {name: value for name, (_, value) in columns.items()}
    moved = {**row, "points": [{"x": None, "tags": [("c", "d")]}, None]}
    states = {1: [{"k": 1, **row}, {"k": 2}], 3: [{"k": 1, **moved}, {"k": 2}]}
    return Stage("values", pa.schema([("k", pa.int64())]), state, states)


def write_rich_root(path: Path) -> Root:
    """Everything that can be in a history: see ``CHECKPOINT_HISTORY`` and the stages."""
    stages = [legs(), aircraft(), pairs(), values(), *map(keyed_by, KEY_VALUES)]
    return write_root(path, stages, CHECKPOINT_HISTORY)


def write_small_root(path: Path) -> Root:
    """Three stages only, for what people see."""
    return write_root(path, [legs(), aircraft(), pairs()], CHECKPOINT_HISTORY)
