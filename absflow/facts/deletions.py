"""Deletions that somebody asked for and that have no answer yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from absflow.facts.inventory import gather
from absflow.facts.reading import FactReader
from absflow.facts.requests import deletions
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.retention.deletion import Deletion, obey
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["due", "unanswered"]


def unanswered(
    spark: SparkSession, layout: Layout, asked: Iterable[Deletion]
) -> tuple[Deletion, ...]:
    """Those of these requests that have no answer, in the order in which they are given."""
    there = tuple(asked)
    if not there:
        return ()
    facts = FactReader(SparkStorageReader(spark), layout)
    answered = facts.answered([deletion.request for deletion in there])
    return tuple(deletion for deletion in there if deletion.request not in answered)


def due(spark: SparkSession, files: Files, root: str) -> Sequence[int]:
    """The checkpoints under a storage root that a driver will delete because somebody asked.

    A driver answers such requests before anything of the job runs, so one without an answer was
    made since the last driver, or nearly so.
    """
    layout = Layout(root)
    standing = unanswered(spark, layout, deletions(spark, files, layout))
    if not standing:
        return ()
    # Which sinks there are makes no difference to what the job needs, and a start aborts first
    # what is pending.
    ids = {n for deletion in standing for n in deletion.checkpoint_ids}
    there = replace(gather(SparkStorageReader(spark), layout, {}, ids).inventory, pending=())
    return [n for verdict in obey(there, standing) for n in verdict.delete]
