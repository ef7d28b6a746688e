"""Why things stay, for people: what stays in great numbers for one reason is one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

__all__ = ["grouped"]

_LINE = re.compile(r"(?P<kind>checkpoint|set) (?P<id>-?\d+)(?P<of> of stage \S+)?: (?P<why>.*)")
# Of sets that follow each other each may be named by other checkpoints; all of these stay.
_NAMED = re.compile(r"named by checkpoints? .*")
# Fewer lines of one reason stand as they are: their ids say more than a number.
_MANY = 3


def grouped(reasons: Iterable[str]) -> list[str]:
    """Reasons in their order, each run of one kind and reason as one line.

    Args:
        reasons: as :func:`absflow.protocol.retention.plan.explain` gives them.

    >>> grouped(f"checkpoint {n}: one of the newest 9" for n in (2, 3, 5))
    ['3 checkpoints from 2 to 5: one of the newest 9']
    """
    lines: list[str] = []
    for group, run in groupby(reasons, _group):
        found = list(run)
        if group is None or len(found) < _MANY:
            lines += found
            continue
        kind, of, why = group
        first, last = (_LINE.fullmatch(found[place]) for place in (0, -1))
        assert first is not None and last is not None  # else they were of no group
        ids = f"from {first['id']} to {last['id']}"
        lines.append(f"{len(found)} {kind}s{of} {ids}: {why}")
    return lines


def _group(line: str) -> tuple[str, str, str] | None:
    """What lines of one group have in common; None for a line that stands by itself."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    why = _NAMED.sub("named by checkpoints that stay", found["why"])
    return found["kind"], found["of"] or "", why
