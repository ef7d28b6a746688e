"""TODO."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["_digest"]


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Count and sum of row hashes: equal for equal bags of rows, in whatever files they lie."""
    columns = [F.col(name) for name in rows.columns if name != "_barrier"]
    # The sum of hashes would overflow a long under ANSI rules.
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    row = rows.agg(F.count("*").alias("rows"), hashed.alias("digest")).collect()[0]
    return int(row["rows"]), int(row["digest"] or 0)
