"""What compaction reads is what was written; and what is said of the set that it writes."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.facts.explained import check_sets
from absflow.facts.inventory import JobInventory
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted
from absflow.spark.worker.set_digests import read_digests
from absflow.storage.delta import tables
from absflow.storage.layout import Layout

__all__ = ["check_replaced", "with_digest"]


def check_replaced(
    spark: SparkSession, layout: Layout, table: str, fact: Compacted, found: JobInventory
) -> None:
    """See that the sets which are to be one are what was written.

    Args:
        spark: a session that looks at the checksums of pages.
        layout: where things lie.
        table: the state history.
        fact: the compaction.
        found: what is there.

    Raises:
        DamagedError: one is not; what came of it would look good.
    """
    due = (found.digests.get((fact.stage, set_id)) for set_id in fact.replaces)
    known = [digest for digest in due if digest is not None]
    check_sets(spark, layout, table, known, _digests(spark, layout, table, *fact.replaces))


def with_digest(spark: SparkSession, layout: Layout, table: str, fact: Compacted) -> Compacted:
    """The fact with the digest of its set, as it is read back."""
    seen = _digests(spark, layout, table, fact.set_id)
    return replace(fact, digest=seen.get(fact.set_id, SetDigest(fact.set_id, 0, 0)))


def _digests(spark: SparkSession, layout: Layout, table: str, *sets: int) -> dict[int, SetDigest]:
    rows = tables.read(spark, layout.state(table))
    return read_digests(rows.where(F.col("set_id").isin(*sets)))
