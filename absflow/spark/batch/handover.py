"""A snapshot between its micro-batch and the thread that commits it to the state history."""

from __future__ import annotations

from dataclasses import dataclass

from absflow.protocol.checkpoints import SetDigest
from absflow.storage.delta.transactions import UncommittedFiles

__all__ = ["SnapshotHandover", "StagedPages"]


@dataclass(frozen=True, slots=True)
class StagedPages:
    """STATE pages in files of a staging directory, from which the set is still to be made.

    Attributes:
        path: the directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class SnapshotHandover:
    """The snapshot of one stage for one checkpoint; what is left is one commit.

    Attributes:
        checkpoint_id: the checkpoint.
        content: files of the state history that the workers wrote, or staged pages where they may
            not write such files; None if nothing changed.
        digest: of the rows in the files; of staged pages it is not known yet.
    """

    checkpoint_id: int
    content: UncommittedFiles | StagedPages | None = None
    digest: SetDigest | None = None
