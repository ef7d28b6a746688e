"""What is wrong with a sink, in words: rows lost, duplicated, changed, invented or out of order.

Pure: golden rows, the rows of the sink's commits and the lives of the driver come in, findings go
out. A *lane* is a set of columns within which rows must stay in order: rows of one key that take
one way through the job pass each channel and each key group first in, first out. They come into
the sink in the order of its commits, and within a commit in the order of the rows in its files.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pandas as pd

__all__ = [
    "Anomaly",
    "Commit",
    "Kind",
    "Life",
    "Named",
    "check_facts",
    "check_rows",
    "explain_commit",
]

# Why a checkpoint may be aborted: its driver died, was asked to stop, or a later one was done.
_HARMLESS = ("DRIVER_RESTART", "JOB_STOPPED", "SUBSUMED")
_NOTED = ("batch", "epoch", "published", "attempt")


class Kind(Enum):
    """What can be wrong."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    CHANGED = "changed"
    INVENTED = "invented"
    OUT_OF_ORDER = "out of order"
    STATE = "wrong state"
    CHECKPOINT = "wrong checkpoint"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding; ``text`` is a sentence."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


@dataclass(frozen=True, slots=True)
class Named:
    """What the columns of a sink's rows are to the checker.

    Attributes:
        id: differs for every row.
        lane: within it rows stay in order.
        order: rises within a lane.
    """

    id: Sequence[str]
    lane: Sequence[str]
    order: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit to the sink.

    Attributes:
        version: the table's version.
        at_ms: when, in ms since 1970.
        note: its ``userMetadata``.
        rows: in the order in which they lie in its files.
    """

    version: int
    at_ms: int
    note: Mapping[str, Any]
    rows: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the driver.

    Attributes:
        number: 1, 2, ...
        began_ms: when it was started, in ms since 1970.
        end: how it ended.
    """

    number: int
    began_ms: int
    end: str


def explain_commit(commit: Commit, lives: Sequence[Life]) -> str:
    """Which commit this is, and between which kills it was made."""
    noted = [f"{name} {commit.note[name]}" for name in _NOTED if name in commit.note]
    text = f"version {commit.version} ({', '.join(noted) or 'no note'})"
    at = sum(life.began_ms <= commit.at_ms for life in lives)
    if not at:
        return text
    began = f"after life {at - 1} ended {lives[at - 2].end}" if at > 1 else "the first one"
    return f"{text} in life {at} ({began}; this one ended {lives[at - 1].end})"


def check_rows(
    golden: pd.DataFrame, commits: Sequence[Commit], named: Named, lives: Sequence[Life] = ()
) -> list[Anomaly]:
    """Compare a sink with what must be in it.

    Args:
        golden: every row that is due, once.
        commits: in the order of their versions.
        named: its columns.
        lives: in order, for the explanations.
    """
    columns = list(golden.columns)
    found = _Rows(golden, commits, named, lives)
    parts = [
        commit.rows[columns].assign(_commit=place)
        for place, commit in enumerate(commits)
        if len(commit.rows)
    ]
    seen = pd.concat(parts, ignore_index=True) if parts else golden.head(0).assign(_commit=[])
    ids = list(named.id)
    first = seen[~seen.duplicated(ids)]
    both = first.merge(golden, on=ids, how="outer", suffixes=("", "_due"), indicator="_where")
    return [
        *found.lost(both[both["_where"] == "right_only"]),
        *found.duplicated(seen),
        *found.changed(both[both["_where"] == "both"]),
        *found.invented(both[both["_where"] == "left_only"]),
        *found.out_of_order(first),
    ]


@dataclass(frozen=True, slots=True)
class _Rows:
    golden: pd.DataFrame
    commits: Sequence[Commit]
    named: Named
    lives: Sequence[Life]

    def lost(self, missing: pd.DataFrame) -> Iterable[Anomaly]:
        if missing.empty:
            return
        where: dict[tuple[Any, ...], int] = {}
        for place, commit in enumerate(self.commits):
            for key in _records(commit.rows, self.named.id):
                where.setdefault(key, place)
        gone = set(_records(missing, self.named.id))
        lanes = self.golden.sort_values(self.named.order).groupby(
            list(self.named.lane), dropna=False, sort=False
        )
        for _, lane in lanes:
            keys = _records(lane, self.named.id)
            for at in (place for place, key in enumerate(keys) if key in gone):
                before = next((k for k in reversed(keys[:at]) if k in where), None)
                after = next((k for k in keys[at + 1 :] if k in where), None)
                yield Anomaly(
                    Kind.LOST,
                    f"row {self._name(lane.iloc[at])} is in no commit; before it in its lane "
                    f"{self._neighbour(before, where)}, behind it "
                    f"{self._neighbour(after, where)}",
                )

    def _neighbour(self, key: tuple[Any, ...] | None, where: Mapping[tuple[Any, ...], int]) -> str:
        if key is None:
            return "nothing came"
        named = _pairs(self.named.id, key)
        return f"came {named} by {self._commit(where[key])}"

    def duplicated(self, seen: pd.DataFrame) -> Iterable[Anomaly]:
        ids = list(self.named.id)
        again = seen[seen.duplicated(ids, keep=False)]
        for _, rows in again.groupby(ids, sort=False):
            by = " and by ".join(self._commit(int(place)) for place in rows["_commit"])
            yield Anomaly(Kind.DUPLICATED, f"row {self._name(rows.iloc[0])} came by {by}")

    def changed(self, both: pd.DataFrame) -> Iterable[Anomaly]:
        for name in self.golden.columns.drop(list(self.named.id)):
            is_, due = both[name], both[f"{name}_due"]
            same = (is_ == due) | (is_.isna() & due.isna())
            for _, row in both[~same.fillna(False).astype(bool)].iterrows():
                yield Anomaly(
                    Kind.CHANGED,
                    f"row {self._name(row)} has {name} {row[name]!r} where {row[f'{name}_due']!r} "
                    f"is due; it came by {self._commit(int(row['_commit']))}",
                )

    def invented(self, unknown: pd.DataFrame) -> Iterable[Anomaly]:
        for _, row in unknown.iterrows():
            yield Anomaly(
                Kind.INVENTED,
                f"row {self._name(row)} was never due, but came by "
                f"{self._commit(int(row['_commit']))}",
            )

    def out_of_order(self, first: pd.DataFrame) -> Iterable[Anomaly]:
        lanes = first.groupby(list(self.named.lane), dropna=False, sort=False)[self.named.order]
        highest = lanes.cummax()
        for at in first.index[first[self.named.order] < highest]:
            row = first.loc[at]
            same = first.loc[:at]
            for name in self.named.lane:
                same = same[same[name].isna() if pd.isna(row[name]) else same[name] == row[name]]
            ahead = same.loc[same[self.named.order].idxmax()]
            yield Anomaly(
                Kind.OUT_OF_ORDER,
                f"row {self._name(row)} came by {self._commit(int(row['_commit']))}, behind row "
                f"{self._name(ahead)} by {self._commit(int(ahead['_commit']))}",
            )

    def _name(self, row: pd.Series) -> str:
        """A row by id, lane and place in it."""
        names = dict.fromkeys([*self.named.id, *self.named.lane, self.named.order])
        # What a lost row has comes from the golden side of the merge.
        return _pairs(names, [row[name] for name in names])

    def _commit(self, place: int) -> str:
        return explain_commit(self.commits[place], self.lives)


def _records(rows: pd.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(rows[list(names)].itertuples(index=False, name=None))


def _pairs(names: Iterable[str], values: Iterable[Any]) -> str:
    pairs = zip(names, values, strict=True)
    return ", ".join(f"{name} {'null' if pd.isna(value) else value}" for name, value in pairs)


def check_facts(triggered: Sequence[int], facts: Sequence[Mapping[str, Any]]) -> list[Anomaly]:
    """Every trigger has one end, ids rise, only a killed driver aborts anything, and only what has
    completed is deleted, once.

    Args:
        triggered: the ids in ``barriers`` in the order of its commits.
        facts: the rows of ``checkpoints``.
    """
    said = []
    said += [f"{y} was triggered behind {x}" for x, y in itertools.pairwise(triggered) if y <= x]
    ends = Counter(f["checkpoint_id"] for f in facts if f["kind"] in ("COMPLETED", "ABORTED"))
    said += [f"{n} has no end" for n in triggered if n not in ends]
    done = {fact["checkpoint_id"] for fact in facts if fact["kind"] == "COMPLETED"}
    deleted = Counter(fact["checkpoint_id"] for fact in facts if fact["kind"] == "DELETED")
    said += [f"{n} was deleted {count} times" for n, count in sorted(deleted.items()) if count > 1]
    said += [f"{n} was deleted, but had not completed" for n in sorted(deleted.keys() - done)]
    said += [f"{n} has {count} ends" for n, count in sorted(ends.items()) if count > 1]
    said += [f"{n} has an end, but was never triggered" for n in sorted(ends.keys() - {*triggered})]
    said += [
        f"{fact['checkpoint_id']} was aborted ({fact['reason']}): {fact['cause']}"
        for fact in facts
        if fact["kind"] == "ABORTED" and fact["reason"] not in _HARMLESS
    ]
    return [Anomaly(Kind.CHECKPOINT, f"checkpoint {text}") for text in said]
