"""Where a sink's table lay at a checkpoint, by its own log, and what puts it back there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructField

from absflow.protocol.recovery.branch import Branch
from absflow.storage.delta.log import Commit

__all__ = ["SinkCut", "SinkRestore", "newest_before", "put_back"]


@dataclass(frozen=True, slots=True)
class SinkCut:
    """Where a sink is to be put back to.

    Attributes:
        job: the job's name.
        attempt: the attempt that took the checkpoint.
        checkpoint_id: the checkpoint.
        begun: the sink's version when that attempt began.
        job_id: of the storage root, which no other job has.
        sink: the sink's name.
        behind: the branch that ends with the checkpoint.
        left: attempt and id of the completed checkpoints that are not on it.
    """

    job: str
    attempt: int
    checkpoint_id: int
    begun: int | None
    job_id: str = ""
    sink: str = ""
    behind: Branch = field(default_factory=lambda: Branch(()))
    left: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SinkRestore:
    """What putting a sink back means.

    Attributes:
        place: where its rows lie; "" if that is not known.
        now: its version; None if it has none.
        then: the version it goes back to; None if it stays as it is.
        undone: the job's own commits since, in words.
        problems: what forbids it, in words.
        note: what else to know, in words.
        published: the newest checkpoint published to it then, as far as it is known.
        new: the job has not written to it before.
        added: columns that its table gets behind that, at its end.
        unfilled: columns of its table that are null from then on, for the output lacks them.
    """

    place: str
    now: int | None = None
    then: int | None = None
    undone: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    note: str = ""
    published: int | None = None
    new: bool = False
    added: tuple[StructField, ...] = ()
    unfilled: tuple[StructField, ...] = ()


def put_back(place: str, commits: Iterable[Commit], cut: SinkCut) -> SinkRestore:
    """What puts a table back to a cut, by its log alone: the first commit to undo, and all since.

    Args:
        place: the table's path.
        commits: from the newest back, one at least; they end where the log does. No more of them
            is taken than is needed.
        cut: the cut.
    """
    undone: list[str] = []
    foreign: list[str] = []  # newer than a commit that is to be undone
    staying: list[str] = []
    now = version = -1
    then = published = None
    for commit in commits:
        version, now = commit.version, max(now, commit.version)
        own = _own(commit, cut)
        published = own.get("published")
        if _lies_before(commit, cut):
            break
        words = f"version {version} ({commit.operation}, {commit.at:%Y-%m-%d %H:%M:%S} UTC)"
        if commit.changes_data and own:
            undone.append(words)
            foreign += staying
            staying, then = [], version - 1
        elif commit.changes_data:
            staying.append(words)
    else:
        return SinkRestore(place, now, problems=(_unknown(place, version, cut),))
    problems: tuple[str, ...] = ()
    if foreign:
        problems = (
            f"sink table {place!r} has commits that are not this job's since version {then}, and "
            f"to put it back would undo them: {'; '.join(foreign[::-1])}. Copy what they brought "
            "and give the job a new sink",
        )
    note = f"not this job's, and stays: {'; '.join(staying[::-1])}" if staying else ""
    return SinkRestore(place, now, then, tuple(undone[::-1]), problems, note, published)


def newest_before(commits: Iterable[Commit], cut: SinkCut) -> Commit | None:
    """The last commit of a table that lies before a cut; None if the log does not reach it.

    Args:
        commits: as for :func:`put_back`.
        cut: the cut.
    """
    return next((commit for commit in commits if _lies_before(commit, cut)), None)


def _own(commit: Commit, cut: SinkCut) -> Mapping[str, Any]:
    """What a commit says of itself, if it is the job's."""
    return commit.note if commit.note.get("job") == cut.job else {}


def _lies_before(commit: Commit, cut: SinkCut) -> bool:
    own = _own(commit, cut)
    epoch = own.get("epoch") if own.get("attempt") == cut.attempt else None
    # A table put back by an earlier restore holds no more than the version it was put back to,
    # which is further back in this log, and may hold less than the cut.
    holds = own.get("published") if epoch is None and "restored_from" not in own else epoch
    return commit.version == cut.begun or (holds is not None and holds <= cut.checkpoint_id)


def _unknown(place: str, version: int, cut: SinkCut) -> str:
    """Why the cut is not in a log that ends, read backwards, with ``version``."""
    if version > 0:
        return (
            f"the log of sink table {place!r} begins after the checkpoint: version {version - 1} "
            "is gone; raise delta.logRetentionDuration of the table above the age of the "
            "checkpoints you want to restore"
        )
    return (
        f"no commit of sink table {place!r} is of attempt {cut.attempt} of job {cut.job!r}: the "
        "table was replaced; use another path, or bring it back"
    )
