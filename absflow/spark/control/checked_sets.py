"""What compaction reads is what was written; and what is said of the set that it writes."""

from __future__ import annotations

from dataclasses import replace

from absflow.facts.explained import check_sets
from absflow.facts.inventory import JobInventory
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted
from absflow.spark.worker.set_digests import read_digests
from absflow.spark.worker.set_rows import SetRows
from absflow.storage.root import StorageRoot

__all__ = ["check_replaced", "with_digest"]


def check_replaced(root: StorageRoot, table: str, fact: Compacted, found: JobInventory) -> None:
    """See that the sets which are to be one are what was written.

    Args:
        root: where things lie; its session looks at the checksums of pages.
        table: the state history.
        fact: the compaction.
        found: what is there.

    Raises:
        DamagedError: one is not; what came of it would look good.
    """
    due = (found.digests.get((fact.stage, set_id)) for set_id in fact.replaces)
    known = [digest for digest in due if digest is not None]
    check_sets(root.spark, root.layout, table, known, _digests(root, table, *fact.replaces))


def with_digest(root: StorageRoot, table: str, fact: Compacted) -> Compacted:
    """The fact with the digest of its set, as it is read back."""
    seen = _digests(root, table, fact.set_id)
    return replace(fact, digest=seen.get(fact.set_id, SetDigest(fact.set_id, 0, 0)))


def _digests(root: StorageRoot, table: str, *sets: int) -> dict[int, SetDigest]:
    return read_digests(SetRows(root.spark, root.files, root.layout.state(table), sets))
