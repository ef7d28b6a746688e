"""The digests of sets, computed by the workers from rows of a state history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.digest import added, set_digests
from absflow.columnar.packing import gathered
from absflow.protocol.checkpoints import SetDigest
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.set_rows import SetRows
from absflow.storage.files import Files

__all__ = ["read_digest", "read_digests"]

_DIGEST = pa.schema([("set_id", pa.int64()), ("rows", pa.int64()), ("digest", pa.int64())])
_ROWS, _BYTES = 262_144, 32 << 20


def read_digests(rows: DataFrame | SetRows) -> dict[int, SetDigest]:
    """The digest of each set in rows of a state history, by a Spark job; the driver sees sums.

    Args:
        rows: with all columns of the state history but ``checkpoint_id`` and ``key_group``, which
            may be left out.
    """

    def parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered(batches, _ROWS, _BYTES):
            values = list(zip(*map(astuple, set_digests(table)), strict=True))
            yield pa.RecordBatch.from_arrays(list(map(pa.array, values)), schema=_DIGEST)

    made = from_arrow_schema(_DIGEST)
    mapped = rows.map(parts, made) if isinstance(rows, SetRows) else map_in_arrow(rows, parts, made)
    found = mapped.collect()
    return added(SetDigest(*row) for row in found)


def read_digest(spark: SparkSession, files: Files, path: str, set_id: int) -> SetDigest:
    """The digest of one set of a state history, as it stands there; of no rows if it has none."""
    seen = read_digests(SetRows(spark, files, path, [set_id]))
    return seen.get(set_id, SetDigest(set_id, 0, 0))
