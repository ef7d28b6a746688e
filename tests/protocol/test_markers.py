"""What the markers of a destination mean for a job that was restored, here and there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.branch import Branch, branch_of
from absflow.protocol.recovery.marker import Marker, Withdrawn, held, withdrawn
from absflow.protocol.recovery.publication import unpublished

ROOT = "file:/data/job"


def branch(*parts: tuple[int, int | None]) -> Branch:
    return Branch(parts)


@pytest.mark.parametrize(
    ("published", "now", "expected"),
    [
        ({}, branch((1, None)), 0),
        ({1: 3}, branch((1, None)), 3),
        ({1: 3}, branch((2, None), (1, 5)), 3),  # owed from before the restore
        ({1: 8}, branch((2, None), (1, 5)), 5),  # (5, 8] is withdrawn
        ({1: 8, 2: 12}, branch((3, None), (1, 6)), 6),  # beside the branch of attempt 2
        ({1: 3, 2: 12}, branch((3, None), (1, 6)), 3),  # (3, 6] was never published
        ({1: 8, 2: 12}, branch((3, None), (2, 10), (1, 6)), 10),
        ({1: 2, 3: 1}, branch((3, None), (1, 2)), 2),  # begun with 1, and then published 2
    ],
)
def test_what_a_lane_holds(published: dict[int, int], now: Branch, expected: int) -> None:
    assert held([Marker(published=published)], now) == expected
    ahead = Marker(published={**published, 9: 99})
    assert held([ahead, Marker(published=published)], now) == expected


def test_without_markers_nothing_is_known() -> None:
    assert held([], branch((1, None))) is None
    assert withdrawn([], branch((1, None))) == []


def test_what_is_withdrawn() -> None:
    """Of all lanes the most; of a publication that is not ended, too."""
    now = branch((3, None), (1, 6))
    some = Marker(published={1: 8, 2: 12})
    assert withdrawn([some], now) == [Withdrawn(1, 6, 8), Withdrawn(2, 0, 12)]
    begun = Marker(published={1: 8}).behind_some(1, 9, 100)
    assert withdrawn([some, begun], now)[0] == Withdrawn(1, 6, 9, partly=True)
    assert withdrawn([begun, Marker(published={1: 9})], now) == [Withdrawn(1, 6, 9)]
    assert withdrawn([Marker(published={1: 6})], now) == []


@dataclass
class World:
    """A job whose checkpoints are published or not, restored at will; what was seen to go out.

    Attributes:
        attempts: all of them.
        completed: the attempt of each checkpoint.
        marker: of the only lane.
        out: (attempt, checkpoint) of each publication, in order.
    """

    attempts: list[Attempt] = field(default_factory=lambda: [Attempt(1, ready=True)])
    completed: dict[int, int] = field(default_factory=dict)
    marker: Marker = field(default_factory=Marker)
    out: list[tuple[int, int]] = field(default_factory=list)

    def complete(self) -> None:
        self.completed[len(self.completed) + 1] = self.attempts[-1].attempt

    def restore(self, checkpoint_id: int) -> None:
        number = len(self.attempts) + 1
        self.attempts.append(Attempt(number, Origin(ROOT, checkpoint_id), ready=True))

    def branch(self) -> Branch:
        return branch_of(ROOT, self.attempts, self.completed, {})

    def publish(self, most: int) -> None:
        """What a start owes, in order, so many at most; it claims the lane first."""
        attempt = self.attempts[-1].attempt
        if attempt not in self.marker.published:
            newest = held([self.marker], self.branch()) or 0
            self.marker = replace(self.marker, published={**self.marker.published, attempt: newest})
        last = held([self.marker], self.branch()) or 0
        for owed in unpublished(ROOT, self.attempts, self.completed, {}, last)[:most]:
            assert self.marker.rows_of(owed.attempt, owed.checkpoint_id) == 0
            self.marker = self.marker.behind_all(owed.attempt, owed.checkpoint_id)
            self.out.append((owed.attempt, owed.checkpoint_id))


_MOVES = st.one_of(
    st.just(("complete", 0)),
    st.just(("complete", 0)),
    st.tuples(st.just("restore"), st.integers(0, 9)),
    st.tuples(st.just("publish"), st.integers(0, 3)),
)


@given(st.lists(_MOVES, max_size=40))
def test_every_checkpoint_of_the_branch_goes_out_once(moves: list[tuple[str, int]]) -> None:
    """Whatever was restored and when; and nothing goes out twice, of any attempt."""
    world = World()
    for what, number in moves:
        if what == "complete":
            world.complete()
        elif what == "publish":
            world.publish(number)
        elif world.completed:
            ids = sorted(world.completed)
            before = world.branch()
            world.restore(ids[number % len(ids)])
            left = withdrawn([world.marker], world.branch())
            there = {
                (attempt, n) for attempt, n in world.out if not world.branch().holds(attempt, n)
            }
            named = {
                (part.attempt, n)
                for part in left
                for n, attempt in world.completed.items()
                if attempt == part.attempt and part.after < n <= part.upto
            }
            assert named == there, before
    world.publish(1000)
    assert len(world.out) == len({*world.out})
    on_branch = {
        (attempt, n) for n, attempt in world.completed.items() if world.branch().holds(attempt, n)
    }
    assert on_branch <= {*world.out}
