"""What a run of a stage has come to, and the first thing in which two runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from absflow.testing.compare import frozen
from absflow.testing.stage import Stage

__all__ = ["Outcome", "first_difference"]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that was emitted, and where."""

    values: Mapping[str, Any]
    value: Hashable
    batch: int
    time: datetime

    def __str__(self) -> str:
        """For people."""
        return f"{dict(self.values)}  (micro-batch {self.batch}, {self.time:%Y-%m-%d %H:%M:%S})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has come to.

    Attributes:
        key: the key columns.
        rows: what it has emitted, in order.
        state: a row for each key.
        timers: a row for each timer.
        late: late rows by source.
    """

    key: tuple[str, ...]
    rows: tuple[_Row, ...]
    state: tuple[Mapping[str, Any], ...]
    timers: tuple[Mapping[str, Any], ...]
    late: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def of(cls, stage: Stage) -> Outcome:
        """That of a stage which has run."""
        rows = tuple(
            _Row(row, frozen(row), each.batch, each.time)
            for each in stage.emitted
            for row in each.rows.to_pylist()
        )
        key = tuple(stage.spec.keys.names)
        return cls(key, rows, tuple(stage.state), tuple(stage.timers), stage.late)

    @property
    def has_keys(self) -> bool:
        """Whether its rows have the key."""
        return all(name in row.values for row in self.rows for name in self.key)

    def key_of(self, row: Mapping[str, Any]) -> Hashable:
        """The key of a row."""
        return frozen([row[name] for name in self.key])


def first_difference(first: Outcome, other: Outcome, *, exact: bool, output: str) -> str:
    """How another run differs, in lines; empty if it does not.

    Args:
        first: what it is compared with.
        other: the run.
        exact: rows must come in the same order.
        output: "all" rows count, of each key the "newest", or "none".
    """
    return (
        _late_differ(first, other)
        or _rows_differ(first, other, exact=exact, output=output)
        or _tables_differ("state", first.key, first.state, other.state)
        or _tables_differ("timers", first.key, first.timers, other.timers)
    )


def _late_differ(first: Outcome, other: Outcome) -> str:
    for name in {**first.late, **other.late}:
        found = _tables_differ(
            f"late rows of {name!r}", (), first.late.get(name, ()), other.late.get(name, ())
        )
        if found:
            return found
    return ""


def _rows_differ(first: Outcome, other: Outcome, *, exact: bool, output: str) -> str:
    if output == "none":
        return ""
    expected, found = first.rows, other.rows
    if output == "newest":
        if not first.has_keys:
            return (
                f"  the rows that it emits have not all of its key columns {list(first.key)}, so "
                'there is no last one of a key; compare output="none", or all'
            )
        expected, found = _newest(first), _newest(other)
    said = _sides(expected, found)
    if said:
        return "\n".join(["  rows emitted differ:", *said])
    if exact:
        return _order_differs(expected, found, "of the rows emitted")
    if first.has_keys:
        for key in dict.fromkeys(first.key_of(row.values) for row in expected):
            lanes = [
                [row for row in rows if first.key_of(row.values) == key]
                for rows in (expected, found)
            ]
            if wrong := _order_differs(lanes[0], lanes[1], "of the rows of a key"):
                return wrong
    return ""


def _newest(outcome: Outcome) -> tuple[_Row, ...]:
    return tuple({outcome.key_of(row.values): row for row in outcome.rows}.values())


def _sides(expected: Iterable[_Row], found: Iterable[_Row]) -> list[str]:
    """The first rows that one side has and the other has not."""
    missing, extra = _without(expected, found), _without(found, expected)
    lines = [f"    first run: {row}" for row in missing[:_SHOWN]]
    lines += [f"    this run:  {row}" for row in extra[:_SHOWN]]
    more = len(missing) + len(extra) - len(lines)
    return [*lines, f"    and {more} more"] if more else lines


def _without(rows: Iterable[_Row], others: Iterable[_Row]) -> list[_Row]:
    left, kept = Counter(row.value for row in others), []
    for row in rows:
        if left[row.value]:
            left[row.value] -= 1
        else:
            kept.append(row)
    return kept


def _order_differs(expected: Sequence[_Row], found: Sequence[_Row], what: str) -> str:
    for mine, theirs in zip(expected, found, strict=True):
        if mine.value != theirs.value:
            return (
                f"  the order {what} differs, first here:\n"
                f"    first run: {mine}\n    this run:  {theirs}"
            )
    return ""


def _tables_differ(
    what: str,
    key: tuple[str, ...],
    expected: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> str:
    """The first rows of a table, of one key if there is one, that are not in both."""
    left, right = Counter(map(frozen, expected)), Counter(map(frozen, found))
    if left == right:
        return ""
    missing = [row for row in expected if left[frozen(row)] > right[frozen(row)]]
    extra = [row for row in found if right[frozen(row)] > left[frozen(row)]]
    if key:
        of = frozen([(missing or extra)[0][name] for name in key])
        missing = [row for row in missing if frozen([row[name] for name in key]) == of]
        extra = [row for row in extra if frozen([row[name] for name in key]) == of]
    lines = [f"    first run: {dict(row)}" for row in missing[:_SHOWN]] or [
        "    first run: nothing"
    ]
    lines += [f"    this run:  {dict(row)}" for row in extra[:_SHOWN]] or ["    this run:  nothing"]
    return "\n".join([f"  {what} differ:", *lines])
