"""What a destination outside says it has of a sink: the marker in each of its transactions.

Rules of this file: plain functions over facts.

The rows of a completed checkpoint go to the destination in transactions, and each transaction
leaves a marker there, which replaces the one before. So what is published is what the destination
says, never a note of ours: a commit whose answer was lost is in the marker, one that was aborted is
not. The rows may go by several *lanes*, each with transactions and a marker of its own.

A marker keeps, for each attempt of the job, its newest checkpoint whose rows are all there. It
needs no change in a restore: attempts that the job has left keep their entries, and what of them is
behind the branch was published for good (:func:`withdrawn`). The marker also names the driver for
which it was committed. A driver commits one without rows to each lane before it publishes anything,
and nobody commits behind the marker of a newer driver (Flink: a ``TwoPhaseCommitSinkFunction`` has
its transactions in its state instead, and must be able to resume them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from absflow.protocol.recovery.branch import Branch

__all__ = ["Begun", "Marker", "Withdrawn", "held", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A publication of which some rows are there, and more are to come.

    Attributes:
        attempt: the attempt whose rows they are.
        checkpoint_id: the checkpoint.
        rows: how many are there; the first ones, in the order of the lane.
    """

    attempt: int
    checkpoint_id: int
    rows: int


@dataclass(frozen=True, slots=True)
class Marker:
    """What a destination has of one lane of a sink.

    Attributes:
        driver: the incarnation of the driver for which it was committed.
        lanes: how many lanes the sink had then.
        published: by attempt, its newest checkpoint whose rows are all there.
        begun: the publication that is not ended; None if there is none.
        last: attempt and checkpoint of the publication that was ended last; None before the first.
    """

    driver: int = 0
    lanes: int = 1
    published: Mapping[int, int] = field(default_factory=dict)
    begun: Begun | None = None
    last: tuple[int, int] | None = None

    def rows_of(self, attempt: int, checkpoint_id: int) -> int | None:
        """How many rows of a publication are there; None if all are."""
        if self.published.get(attempt, 0) >= checkpoint_id:
            return None
        begun = self.begun
        if begun is None or (begun.attempt, begun.checkpoint_id) != (attempt, checkpoint_id):
            return 0
        return begun.rows

    def behind_some(self, attempt: int, checkpoint_id: int, rows: int) -> Marker:
        """The marker of a transaction behind which more rows of the publication follow."""
        return replace(self, begun=Begun(attempt, checkpoint_id, rows))

    def behind_all(self, attempt: int, checkpoint_id: int) -> Marker:
        """The marker of the last transaction of a publication."""
        published = {**self.published, attempt: checkpoint_id}
        return replace(self, published=published, begun=None, last=(attempt, checkpoint_id))

    def to_json(self) -> str:
        """As the destination keeps it."""
        begun = self.begun
        return json.dumps(
            {
                "driver": self.driver,
                "lanes": self.lanes,
                "published": {str(a): n for a, n in sorted(self.published.items())},
                "begun": begun and [begun.attempt, begun.checkpoint_id, begun.rows],
                "last": self.last,
            }
        )

    @classmethod
    def from_json(cls, text: str | None) -> Marker | None:
        """What :meth:`to_json` gave; None for None.

        Raises:
            ValueError: the text is no marker.
        """
        if text is None:
            return None
        try:
            found = json.loads(text)
            last = found.get("last")
            return cls(
                int(found["driver"]),
                int(found["lanes"]),
                {int(a): int(n) for a, n in found["published"].items()},
                None if found["begun"] is None else Begun(*map(int, found["begun"])),
                None if last is None else (int(last[0]), int(last[1])),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{text!r} is no marker of absflow: {error}") from error


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Rows that are in the destination, though the job has left the checkpoints they came with.

    Attributes:
        attempt: the attempt whose rows they are.
        after: those behind this checkpoint.
        upto: up to this one.
        partly: of the last one only some rows.
    """

    attempt: int
    after: int
    upto: int
    partly: bool = False


def held(markers: Sequence[Marker], branch: Branch) -> int | None:
    """The newest checkpoint of the branch whose rows are in the destination, in all lanes.

    Args:
        markers: one of each lane.
        branch: of the job as it is now.

    Returns:
        Its id; 0 if no row of the branch is there; None if there is no marker.
    """
    found = [_held(marker, branch) for marker in markers]
    return min(found, default=None)


def _held(marker: Marker, branch: Branch) -> int:
    """Publications follow the branch; the one that is farthest says it.

    That may be of an older attempt: a new one begins with what is there, and what the older one
    still owed comes behind that, as its own.
    """
    found = ((marker.published.get(attempt, 0), upto) for attempt, upto in branch.parts)
    return max((n if upto is None else min(n, upto) for n, upto in found), default=0)


def withdrawn(markers: Sequence[Marker], branch: Branch) -> list[Withdrawn]:
    """What stays in the destination of checkpoints that are not on the branch, oldest first."""
    limits = dict(branch.parts)
    found: dict[int, Withdrawn] = {}
    for marker in markers:
        begun = marker.begun
        ends = [(attempt, n, False) for attempt, n in marker.published.items()]
        ends += [] if begun is None else [(begun.attempt, begun.checkpoint_id, True)]
        for attempt, upto, partly in ends:
            after = limits.get(attempt, 0)
            if after is None or upto <= after:
                continue
            known = found.get(attempt)
            if known is None or known.upto < upto or (known.upto == upto and known.partly):
                found[attempt] = Withdrawn(attempt, after, upto, partly)
    return [found[attempt] for attempt in sorted(found)]
