"""A worker publishes the rows of a checkpoint that go by one lane, exactly once.

What the destination must do is small (:class:`Lane`): keep one short text, the marker, for each
lane; change it in the same transaction as rows; and let nobody commit who opened a lane before the
one that did so last. Then whoever publishes reads the marker first, leaves out what is there, and
may die at any moment: a task that runs again, a twin of it, and the next driver each find what was
committed, and what was not is not to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from absflow.errors import FencedError
from absflow.protocol.recovery.marker import Marker

__all__ = ["Lane", "LanePublication", "StateLane", "claim_lane", "publish"]


class Lane(Protocol):
    """A lane of a destination, opened by one process; whoever opened it before is fenced."""

    def marker(self) -> str | None:
        """The marker of the last transaction that was committed to this lane; None before that.

        What an earlier opener has sent and nobody has answered is decided by now, for good.
        """

    def begin(self) -> None:
        """Begin a transaction."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows to it; they have the columns of the stage's output."""

    def commit(self, marker: str) -> None:
        """Make its rows and the marker visible, both or neither.

        Raises:
            FencedError: somebody has opened the lane since; nothing is visible.
        """

    def close(self) -> None:
        """Let go; a transaction that was not committed is aborted."""


@runtime_checkable
class StateLane(Lane, Protocol):
    """A lane to a table that holds the state of a stage, a row for each key."""

    def clear(self, *, first: bool) -> None:
        """In the transaction, delete all rows that are there.

        Args:
            first: nothing was published to it before.

        Raises:
            StorageError: it is the first time, and there are rows, which are somebody else's.
        """


@dataclass(frozen=True, slots=True)
class LanePublication:
    """What a lane is to publish.

    Attributes:
        lane: the lane's name, the same for ever.
        driver: the incarnation of the driver that publishes.
        lanes: how many lanes there are.
        attempt: the attempt whose rows they are.
        checkpoint_id: the checkpoint.
        limit: a transaction has no more bytes of rows than this, but for one that has one row; None
            if all go in one.
        whole: these are all rows that there are to be (:class:`StateLane`).
    """

    lane: str
    driver: int
    lanes: int
    attempt: int
    checkpoint_id: int
    limit: int | None = None
    whole: bool = False


def publish(
    made: LanePublication,
    opened: Callable[[str], Lane],
    look: Callable[[str], str | None],
    batches: Iterable[pa.RecordBatch],
) -> int:
    """Publish what is not there yet.

    Args:
        made: the publication.
        opened: opens the lane of a name.
        look: reads the marker of a lane, and fences nobody.
        batches: all rows of the publication in the order of the lane, the same each time.

    Returns:
        How many rows were written.

    Raises:
        FencedError: a newer driver publishes, or another task has taken the lane and is not done.
    """
    try:
        with closing(opened(made.lane)) as lane:
            marker = _mine(lane.marker(), made)
            there = marker.rows_of(made.attempt, made.checkpoint_id)
            return 0 if there is None else _write(made, lane, marker, there, batches)
    except FencedError:
        # Of a twin that was first and has done it all; else it is for whoever runs next.
        marker = _mine(look(made.lane), made)
        if marker.rows_of(made.attempt, made.checkpoint_id) is None:
            return 0
        raise


def claim_lane(
    name: str,
    opened: Callable[[str], Lane],
    driver: int,
    becomes: Callable[[Marker | None], Marker],
) -> Marker:
    """Let no older driver commit to a lane from here on; its marker from then on.

    Args:
        name: the lane.
        opened: opens the lane of a name.
        driver: the incarnation of this driver.
        becomes: what its marker is to be, by what it is.

    Raises:
        FencedError: there is a newer driver.
    """
    with closing(opened(name)) as lane:
        found = Marker.from_json(lane.marker())
        _check_driver(name, found, driver)
        marker = becomes(found)
        if marker != found:
            lane.begin()
            lane.commit(marker.to_json())
        return marker


def _mine(text: str | None, made: LanePublication) -> Marker:
    found = Marker.from_json(text)
    _check_driver(made.lane, found, made.driver)
    return found or Marker(made.driver, made.lanes)


def _check_driver(name: str, marker: Marker | None, driver: int) -> None:
    if marker is not None and marker.driver > driver:
        raise FencedError(
            f"lane {name!r} is published by driver incarnation {marker.driver}, this one is of "
            f"{driver}: a newer driver runs on this storage root, and this one has to stop"
        )


def _write(
    made: LanePublication,
    lane: Lane,
    marker: Marker,
    there: int,
    batches: Iterable[pa.RecordBatch],
) -> int:
    rows, size, begun = there, 0, False
    for batch in _pieces(_behind(batches, there), made.limit):
        if size and made.limit is not None and size + batch.nbytes > made.limit:
            marker = marker.behind_some(made.attempt, made.checkpoint_id, rows)
            lane.commit(marker.to_json())
            size, begun = 0, False
        if not begun:  # not before there is something: an open transaction holds readers up
            _begin(made, lane, marker)
            begun = True
        lane.write(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if not begun:
        _begin(made, lane, marker)
    lane.commit(marker.behind_all(made.attempt, made.checkpoint_id).to_json())
    return rows - there


def _begin(made: LanePublication, lane: Lane, marker: Marker) -> None:
    lane.begin()
    if made.whole:
        assert isinstance(lane, StateLane)
        lane.clear(first=marker.last is None)


def _behind(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """What follows so many rows."""
    for batch in batches:
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)


def _pieces(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The same rows; batches above the limit in pieces."""
    for batch in batches:
        parts = 1 if limit is None else -(-batch.nbytes // limit)
        step = max(1, batch.num_rows // max(1, parts))
        for begin in range(0, batch.num_rows, step):
            yield batch.slice(begin, step)
