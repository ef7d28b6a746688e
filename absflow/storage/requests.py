"""The columns of the ``requests`` table, which is written without Spark and read with it."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["REQUESTS"]

REQUESTS = pa.schema(
    [
        ("request", pa.string()),
        ("incarnation", pa.int64()),
        ("stop", pa.bool_()),
        ("drain", pa.bool_()),
        ("requested_at", pa.timestamp("us", tz="UTC")),
    ]
)
