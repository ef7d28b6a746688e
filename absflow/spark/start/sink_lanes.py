"""The lanes of a sink with transactions: their names, and what they say that is published."""

from __future__ import annotations

from collections.abc import Sequence

from absflow.protocol.recovery.branch import Branch
from absflow.protocol.recovery.marker import Marker, Withdrawn, withdrawn
from absflow.sinks import SinkRestore
from absflow.transactional import TransactionalSink

__all__ = ["lane_names", "look_at_lanes", "plan_lanes"]


def lane_names(job_id: str, sink: str, lanes: int) -> tuple[str, ...]:
    """The names of the lanes of a sink, which no other job has.

    Args:
        job_id: of the storage root: the id of its table of attempts, which a fork has not.
        sink: the sink's name.
        lanes: how many.
    """
    return tuple(f"absflow-{job_id}-{sink}-{lane}" for lane in range(lanes))


def look_at_lanes(sink: TransactionalSink, job_id: str, name: str) -> list[Marker]:
    """The markers of a sink's lanes, as many as it had last; nobody is disturbed.

    Raises:
        ValueError: what is there is no marker.
    """
    (first,) = lane_names(job_id, name, 1)
    found = Marker.from_json(sink.marker(first))
    if found is None:
        return []
    others = lane_names(job_id, name, found.lanes)[1:]
    markers = [Marker.from_json(sink.marker(lane)) for lane in others]
    return [found, *(marker for marker in markers if marker is not None)]


def plan_lanes(sink: TransactionalSink, job_id: str, name: str, behind: Branch) -> SinkRestore:
    """What a restore means for a sink whose destination takes nothing back.

    Args:
        sink: the sink.
        job_id: of the storage root.
        name: the sink's name.
        behind: the branch up to the checkpoint that is restored.
    """
    place = sink.describe()
    try:
        markers = look_at_lanes(sink, job_id, name)
    except Exception as error:  # of any destination
        return SinkRestore(
            "",
            problems=(
                f"sink {name!r} ({place}) does not say what was published to it: {error}. Bring it "
                "back, then restore",
            ),
        )
    left = withdrawn(markers, behind)
    return SinkRestore("", note=_words(place, left) if left else "")


def _words(place: str, left: Sequence[Withdrawn]) -> str:
    parts = [
        f"checkpoints behind {part.after} up to {part.upto}"
        f"{', of that one only some' if part.partly else ''} (attempt {part.attempt})"
        for part in left
    ]
    return (
        f"published rows behind the checkpoint stay in {place}: those of {'; '.join(parts)}. What "
        "the job makes of the same input again is published beside them"
    )
