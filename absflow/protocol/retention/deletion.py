"""Deletions that people ask for: which are obeyed, what is refused, and what they free.

Rules of this file: plain functions over an inventory.

Whoever asks writes a request; the driver answers it by one commit to ``checkpoints``: a DELETED
fact for each checkpoint, or one REFUSED row with the reason, both with the request. So a kill on
either side of that commit leaves a request without an answer, or one with it. A request is for no
driver in particular: one that finds none stands until the next start, and what it will delete
cannot be restored meanwhile. What a deleted checkpoint alone needed has no reason to stay any more,
and goes with the next plan of :mod:`absflow.protocol.retention.plan`.

It is all or nothing: a request is refused as a whole, with every reason at once. A person may
delete what only a number or a request keeps (the newest so many, savepoints), but nothing that the
job itself goes on from (:func:`absflow.protocol.retention.plan.needed`). That only becomes less:
what a trigger is based on that is written meanwhile is newer than anything that is deleted here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from absflow.protocol.retention.inventory import (
    Action,
    DeleteManifest,
    DeleteSets,
    Inventory,
    RetentionPolicy,
)
from absflow.protocol.retention.plan import needed, plan
from absflow.protocol.tiers import TierPolicy

__all__ = ["Deletion", "Verdict", "freed", "judge", "obey"]

_KEEPS_ALL = RetentionPolicy(sys.maxsize, TierPolicy(sys.maxsize, max_dead=math.inf))


@dataclass(frozen=True, slots=True)
class Deletion:
    """These checkpoints are to be deleted; ``request`` is never used twice."""

    request: str
    checkpoint_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a request.

    Attributes:
        request: the request.
        delete: checkpoints whose DELETED facts are to be written; empty if it is refused.
        refused: why; empty if it is obeyed.
    """

    request: str
    delete: tuple[int, ...] = ()
    refused: str = ""


def judge(there: Inventory, asked: Deletion) -> Verdict:
    """Obey or refuse one request.

    What is deleted already is as it was wished; if nothing else was asked for, that is said.

    Raises:
        ProtocolViolation: as :func:`absflow.protocol.retention.plan.plan`.
    """
    completed = {c.checkpoint_id for c in there.completed}
    reasons = needed(there)
    ids = sorted({*asked.checkpoint_ids})
    going = tuple(n for n in ids if n not in there.deleted)
    against = [
        f"checkpoint {n} is needed: {', '.join(reasons[n])}; ask again when a newer one has "
        "completed"
        if n in completed
        else f"checkpoint {n} is not completed"
        for n in going
        if n not in completed or n in reasons
    ]
    if against:
        return Verdict(asked.request, refused="; ".join(against))
    if not going:
        return Verdict(asked.request, refused=f"deleted already: {', '.join(map(str, ids))}")
    return Verdict(asked.request, going)


def obey(there: Inventory, asked: Iterable[Deletion]) -> tuple[Verdict, ...]:
    """The answers, in the order of the requests; each is one commit.

    Args:
        there: what there is.
        asked: requests without an answer, in the order in which they were made.

    Raises:
        ProtocolViolation: as :func:`judge`.
    """
    verdicts: list[Verdict] = []
    for deletion in asked:
        verdict = judge(there, deletion)
        there = replace(there, deleted=there.deleted.union(verdict.delete))
        verdicts.append(verdict)
    return tuple(verdicts)


def freed(there: Inventory, checkpoint_ids: Collection[int]) -> tuple[Action, ...]:
    """What is needed by these checkpoints alone, as actions of retention.

    Raises:
        ProtocolViolation: as :func:`judge`.
    """
    before = plan(there, _KEEPS_ALL)
    after = plan(replace(there, deleted=there.deleted.union(checkpoint_ids)), _KEEPS_ALL)
    orphans = {(a.stage, n) for a in before if isinstance(a, DeleteSets) for n in a.set_ids}
    actions: list[Action] = []
    for action in after:
        match action:
            case DeleteSets(stage, ids):
                if own := tuple(n for n in ids if (stage, n) not in orphans):
                    actions.append(DeleteSets(stage, own))
            case DeleteManifest():
                pass
            case _ if action not in before:
                actions.append(action)
    return tuple(actions)
