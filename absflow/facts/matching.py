"""Which rows of the facts are asked for: by ids, kinds and values of other columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow.compute as pc

__all__ = ["Match", "expression", "may_match", "names_in"]


@dataclass(frozen=True, slots=True)
class Match:
    """Rows that are asked for: those for which all of this holds.

    Attributes:
        first: their checkpoint's id is not lower.
        last: nor higher.
        kinds: they are of one of these kinds; empty for any.
        equal: their values in other columns.
    """

    first: int | None = None
    last: int | None = None
    kinds: tuple[str, ...] = ()
    equal: tuple[tuple[str, Any], ...] = ()


def expression(matches: Sequence[Match]) -> pc.Expression:
    """Rows that match one of these."""
    return reduce(or_, map(_one, matches))


def may_match(matches: Sequence[Match], statistics: Mapping[str, Any]) -> bool:
    """Whether a file may have rows that match one of these, by what the log says of it.

    >>> ids = {"minValues": {"checkpoint_id": 3}, "maxValues": {"checkpoint_id": 5}}
    >>> [may_match([Match(first)], ids) for first in (5, 6)]
    [True, False]
    """
    least, most = (statistics.get(k, {}).get("checkpoint_id") for k in ("minValues", "maxValues"))
    if least is None or most is None or not matches:
        return True
    return any(
        (match.first is None or match.first <= most) and (match.last is None or least <= match.last)
        for match in matches
    )


def names_in(match: Match) -> set[str]:
    """The columns by which rows match."""
    ids = match.first is not None or match.last is not None
    names = {name for name, _ in match.equal} | ({"kind"} if match.kinds else set())
    return names | ({"checkpoint_id"} if ids else set())


def _one(match: Match) -> pc.Expression:
    parts = [pc.field(name) == value for name, value in match.equal]
    parts += [pc.field("kind").isin(match.kinds)] if match.kinds else []
    checkpoint_id = pc.field("checkpoint_id")
    parts += [] if match.first is None else [checkpoint_id >= match.first]
    parts += [] if match.last is None else [checkpoint_id <= match.last]
    return reduce(and_, parts)
