"""Inventories for tests of retention."""

from absflow.protocol.retention.inventory import (
    Completed,
    DeleteManifest,
    DeleteSets,
    Inventory,
    RetentionPolicy,
)
from absflow.protocol.retention.plan import plan
from absflow.protocol.tiers import TierPolicy


def completed(n, *lineage, attempt=1, in_flight=()):
    """Checkpoint n, whose stage `a` is made of this lineage."""
    return Completed(n, attempt, {"a": lineage or (n,)}, in_flight)


def job(*checkpoints, sets=(), ended=None, **more):
    """What there is of a job with one stage `a`; its first attempt was restored from nothing."""
    newest = max((c.checkpoint_id for c in checkpoints), default=0)
    there = {"attempts": {1: 0}, "sets": {"a": frozenset(sets)}} | more
    return Inventory(completed=checkpoints, ended_id=ended or newest, **there)


def planned(there, retained=1, longest=10):
    return plan(there, RetentionPolicy(retained, TierPolicy(longest)))


def deleted(actions):
    """Checkpoints that the plan deletes, in its order."""
    return [a.checkpoint_id for a in actions if isinstance(a, DeleteManifest)]


def swept(actions):
    return [n for a in actions if isinstance(a, DeleteSets) for n in a.set_ids]
