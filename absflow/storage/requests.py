"""The columns of the ``requests`` table, which is written without Spark and read with it.

A row with ``delete`` wants these checkpoints deleted, and is for whichever driver comes; tables
that were begun by earlier versions get that column with the first such row. Any other row wants a
savepoint of the driver that it names.
"""

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
        ("delete", pa.list_(pa.int64())),
    ]
)
