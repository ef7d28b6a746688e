"""TODO."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from absflow.columnar.pages import (
    PageKind,
)

__all__ = ["batch_totals", "is_kind"]


def is_kind(kind: PageKind) -> Column:
    return F.col("kind") == kind.value


def batch_totals() -> list[Any]:
    """What every batch tells about its pages, at no cost of its own."""
    return [
        F.sum(F.when(is_kind(PageKind.DATA), F.col("rows")).otherwise(0)).alias("rows"),
        F.max(F.when(is_kind(PageKind.DATA), F.col("checkpoint_id"))).alias("epoch"),
        F.count(F.when(is_kind(PageKind.REPORT), 1)).alias("reports"),
    ]
