"""Columns that select pages of a batch, and what every batch counts of them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind

__all__ = ["Totals", "is_kind", "totals_columns"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What a batch counts of its pages, at no cost of its own.

    Attributes:
        rows: rows of DATA pages; None if there is no page.
        epoch: the newest epoch of a DATA page; None if there is none.
        reports: REPORT pages.
    """

    rows: int | None
    epoch: int | None
    reports: int


def is_kind(*kinds: PageKind) -> Column:
    """Whether a page is of one of these kinds."""
    return F.col("kind").isin([kind.value for kind in kinds])


def totals_columns() -> list[Column]:
    """The aggregates of :class:`Totals`, under its names."""
    return [
        F.sum(F.when(is_kind(PageKind.DATA), F.col("rows")).otherwise(0)).alias("rows"),
        F.max(F.when(is_kind(PageKind.DATA), F.col("checkpoint_id"))).alias("epoch"),
        F.count(F.when(is_kind(PageKind.REPORT), 1)).alias("reports"),
    ]
