"""What a restore is asked to begin with, looked up before Spark is started."""

from __future__ import annotations

from absflow.cli.reader import Reader
from absflow.errors import AbsflowError, NotFoundError
from absflow.protocol.recovery.attempts import LATEST, RestoreTarget

__all__ = ["missing"]


def missing(root: str | None, target: RestoreTarget, *, plan: bool) -> str:
    """Why a start would not find the checkpoint; "" if it would, or if only Spark can say.

    Args:
        root: the job's storage root; None if only its program knows it.
        target: what is asked for.
        plan: a plan is wanted. A start from the latest goes on without any, a plan does not.
    """
    place = target.root or root
    if place is None or (target == LATEST and not plan):
        return ""
    try:
        Reader(place).find(target.checkpoint_id)
    except NotFoundError as error:
        return str(error)
    except (AbsflowError, NotImplementedError):
        return ""  # Spark may know a file system, or have rights, that this process has not
    return ""
