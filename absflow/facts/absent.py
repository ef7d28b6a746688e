"""What is said of a checkpoint that cannot be read."""

from __future__ import annotations

from absflow.errors import NotFoundError
from absflow.facts.reading import FactReader

__all__ = ["no_checkpoint", "no_history", "no_late_rows", "no_root"]


def no_root(root: str, table: str) -> NotFoundError:
    """The error for a restore from a root without one of the tables of a job."""
    return NotFoundError(
        f"{root!r} is not the storage root of a job: there is no table {table!r}; "
        "spark.absflow.restore.from takes latest, ID, or PATH#ID"
    )


def no_history(root: str, table: str) -> NotFoundError:
    """The error for the history of a root without one of the tables of a job."""
    return NotFoundError(
        f"{root!r} is not the storage root of a job (or its job is just starting): there is no "
        f"table {table!r}; give the job's spark.absflow.storage.path"
    )


def no_late_rows(source: str) -> NotFoundError:
    """The error for the late rows of a source that has no table of them."""
    return NotFoundError(
        f"there are no late rows of source {source!r}: none came late, it says otherwise "
        "(late=...), or there is no such source"
    )


def no_checkpoint(facts: FactReader, asked: int | None, lost: str) -> NotFoundError:
    """The error for a checkpoint that is not completed.

    Args:
        facts: those of the job.
        asked: its id; None if the newest completed one was wanted, and there is none.
        lost: the driver that is no more, as :class:`absflow.facts.attempts.JobNow` has it.
    """
    known = facts.known(named=[] if asked is None else [asked])
    there = (
        f"completed are {len(known.there)} from {known.there[0]} to {known.there[-1]}"
        if known.there
        else "none of the completed ones is left"
        if known.done_count
        else "none has completed yet"
    )
    if asked is None:
        count = known.done_count + known.aborted_count + len(known.pending)
        return NotFoundError(f"there is no completed checkpoint; {count} were triggered")
    if asked in known.completions:
        return NotFoundError(
            f"checkpoint {asked} was deleted; {there} (spark.absflow.checkpoint.retained says how "
            "many are kept)"
        )
    if any(trigger.barrier.checkpoint_id == asked for trigger in known.pending):
        state = f"did not complete: {lost}" if lost else "is pending"
        return NotFoundError(f"checkpoint {asked} {state}; {there}")
    aborted = facts.aborted(asked)
    if aborted is None:
        return NotFoundError(f"checkpoint {asked} was never triggered; {there}")
    reason = aborted.reason
    why = f" ({reason.code}: {reason.sentence})" if reason else ""
    return NotFoundError(f"checkpoint {asked} was aborted{why}; {there}")
