"""What of retention fails again and again, for people who look.

Rules of this file: records and plain functions. Nothing is decided by them: what failed is in the
next plan again because it is still there, not because it stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from absflow.protocol.retention.inventory import (
    Action,
    Compact,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
)

__all__ = ["PLAN", "Failure", "Failures", "after_plan", "document", "parse", "subject"]

# What failed if no plan came about, or its facts could not be written.
PLAN = "the plan"
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that retention tried in vain when it last tried.

    Attributes:
        what: names it over all plans (:func:`subject`).
        error: of the last try.
        at_ms: when that was.
        since_ms: when the first try in the row was.
        in_a_row: how many plans failed at it, one after the other.
    """

    what: str
    error: str
    at_ms: int
    since_ms: int
    in_a_row: int = 1


Failures = Mapping[str, Failure]  # by what failed


def subject(action: Action) -> str:
    """What an action is about, whichever checkpoints and sets it names this time."""
    match action:
        case DeleteManifest():
            return PLAN
        case Compact(fact):
            return f"compaction of stage {fact.stage}"
        case DeleteSets(stage):
            return f"deletion of sets of stage {stage}"
        case DeleteEpochs(stage, attempt):
            return f"deletion of epochs of channel {stage}, attempt {attempt}"
        case DropChannels(attempt):
            return f"deletion of the channels of attempt {attempt}"
        case DropWorkingDirectory(attempt):
            return f"deletion of the working directory of attempt {attempt}"
        case DropPositions(attempt):
            return f"deletion of the positions of attempt {attempt}"


def after_plan(before: Failures, failed: Mapping[str, str], now_ms: int) -> dict[str, Failure]:
    """What still fails behind a plan.

    Args:
        before: what failed before it.
        failed: what failed in it, with the error. If that is :data:`PLAN`, the rest was not tried.
        now_ms: the clock.
    """
    # A whole plan has tried all that is due; so what did not fail is done, or not wanted any more.
    after = dict(before) if PLAN in failed else {}
    for what, error in failed.items():
        old = before.get(what)
        first_line = next(iter(error.splitlines()), "")[:_LONGEST]
        after[what] = Failure(
            what,
            first_line,
            now_ms,
            old.since_ms if old else now_ms,
            old.in_a_row + 1 if old else 1,
        )
    return after


def document(failures: Failures) -> str:
    """The failures as the text of a file."""
    return json.dumps([asdict(failures[what]) for what in sorted(failures)], indent=1)


def parse(text: str | None) -> dict[str, Failure]:
    """The inverse of :func:`document`; nothing of what is no such text."""
    try:
        found = [Failure(**one) for one in json.loads(text or "[]")]
    except (TypeError, ValueError):
        return {}
    return {failure.what: failure for failure in found}
