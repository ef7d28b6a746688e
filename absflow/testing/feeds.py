"""What is fed to a stage, cut and ordered in other ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from absflow.testing.compare import plain_rows
from absflow.testing.rows import is_table
from absflow.testing.signs import (
    BARRIER,
    BATCH,
    END,
    RESTORE,
    AdvanceWatermark,
    BarrierOn,
    Fed,
    Sign,
    Wait,
)

__all__ = [
    "Point",
    "expanded",
    "halved",
    "in_one",
    "is_sign",
    "one_by_one",
    "points",
    "randomly_cut",
    "reordered",
    "sizes",
]

# A restore is tried at so many points at most.
_MOST = 5
# Of so many micro-batches the sizes are said.
_SIZES = 12


@dataclass(frozen=True, slots=True)
class Point:
    """Between two micro-batches.

    Attributes:
        what: comes before it, in words.
        before: what is fed before it.
        behind: what is fed behind it.
    """

    what: str
    before: list[Fed]
    behind: list[Fed]


def is_sign(fed: Fed) -> bool:
    """Whether it is a sign and no row."""
    return isinstance(fed, Sign | BarrierOn | Wait | AdvanceWatermark)


def expanded(feed: Iterable[Fed]) -> list[Fed]:
    """With the rows of whole tables one by one."""
    made: list[Fed] = []
    for fed in feed:
        table = fed[1] if isinstance(fed, tuple) and len(fed) == 2 else fed
        if is_sign(fed) or not is_table(table):
            made.append(fed)
        elif table is fed:
            made += plain_rows(table)
        else:
            made += [(fed[0], row) for row in plain_rows(table)]
    return made


def halved(feed: list[Fed]) -> list[Fed]:
    """With two micro-batches at least, if there are two rows."""
    rows = [n for n, fed in enumerate(feed) if not is_sign(fed)]
    if len(rows) < 2 or any(is_sign(fed) for fed in feed[rows[0] : rows[-1]]):
        return feed
    middle = rows[len(rows) // 2]
    return [*feed[:middle], BATCH, *feed[middle:]]


def in_one(feed: list[Fed]) -> list[Fed]:
    """All rows between two other signs in one micro-batch."""
    return [fed for fed in feed if fed is not BATCH]


def one_by_one(feed: list[Fed]) -> list[Fed]:
    """A micro-batch for each row."""
    made: list[Fed] = []
    for fed in in_one(feed):
        made += [fed] if is_sign(fed) else [fed, BATCH]
    return made


def randomly_cut(feed: list[Fed], dice: random.Random) -> list[Fed]:
    """Micro-batches that end anywhere."""
    made: list[Fed] = []
    for fed in in_one(feed):
        cut = not is_sign(fed) and dice.random() < 0.4
        made += [fed, BATCH] if cut else [fed]
    return made


def sizes(feed: list[Fed]) -> str:
    """How many rows are in each micro-batch, in words."""
    found = [str(len(rows)) for _, rows in _parts(feed) if rows]
    return ", ".join(found[:_SIZES]) + (", ..." if len(found) > _SIZES else "")


def reordered(feed: list[Fed], key_of: Callable[[Fed], Hashable], dice: random.Random) -> list[Fed]:
    """The rows of each micro-batch in another order, those of a key in theirs."""
    made: list[Fed] = []
    for sign, rows in _parts(feed):
        keys = [key_of(row) for row in rows]
        waiting = {key: [r for r, k in zip(rows, keys, strict=True) if k == key] for key in keys}
        dice.shuffle(keys)
        made += [waiting[key].pop(0) for key in keys]
        made += [] if sign is None else [sign]
    return made


def _parts(feed: list[Fed]) -> Iterator[tuple[Fed | None, list[Fed]]]:
    """The rows up to each sign, and the sign; None behind the last rows."""
    rows: list[Fed] = []
    for fed in feed:
        if is_sign(fed):
            yield fed, rows
            rows = []
        else:
            rows.append(fed)
    yield None, rows


def points(feed: list[Fed]) -> list[Point]:
    """Where a checkpoint can be taken and restored: behind micro-batches, some of them.

    Barriers and restores of its own are left out: they must change nothing.
    """
    plain: list[Fed] = []
    for fed in feed:
        if fed is BARRIER:
            plain.append(BATCH)
        elif fed is not RESTORE and not isinstance(fed, BarrierOn):
            plain.append(fed)
    ends = [n + 1 for n, fed in enumerate(plain) if is_sign(fed) and fed is not END]
    found = [n for n in ends if plain[n:] and any(not is_sign(fed) for fed in plain[n:])]
    if len(found) > _MOST:
        found = [found[n * len(found) // _MOST] for n in range(_MOST)]
    return [
        Point(f"{sum(not is_sign(fed) for fed in plain[:n])} rows", plain[:n], plain[n:])
        for n in found
    ]
