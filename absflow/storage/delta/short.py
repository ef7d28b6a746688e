"""A table with few commits, read without Spark.

Spark puts a table's state together before it reads: five jobs and most of a second of CPU time for
a table of two rows. A job's facts are such tables at most of its starts, and of those a start reads
several.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from absflow.storage.delta.log import actions_of, file_of, log_file
from absflow.storage.files import Files

__all__ = ["FEW", "short_table"]

# So many commits are read one by one, each with a file or none; a longer table is left to Spark.
FEW = 32
# They come through Py4J, which is no way for many.
MOST_BYTES = 1 << 20
_AT_ONCE = 8


def short_table(files: Files, path: str) -> pa.Table | None:
    """All rows of a table that is not partitioned; None if Spark is to read it.

    So it is if the table has many commits or large files, or asks more of a reader than to read
    files; or if a file is not what is expected: Spark then reads it, or says what is wrong.

    Raises:
        StorageError: the file system refuses.
    """
    if files.exists(log_file(path, FEW)) or files.exists(f"{path}/_delta_log/_last_checkpoint"):
        return None
    there: dict[str, dict[str, Any]] = {}
    metadata, protocol = None, None
    version = 0
    while (text := files.read(log_file(path, version))) is not None:
        for action in actions_of(text):
            metadata = action.get("metaData", metadata)
            protocol = action.get("protocol", protocol)
            if "add" in action:
                there[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                there.pop(action["remove"]["path"], None)
        version += 1
    if metadata is None or protocol is None or protocol["minReaderVersion"] > 1:
        return None
    if metadata["partitionColumns"] or sum(add["size"] for add in there.values()) > MOST_BYTES:
        return None
    columns = StructType.fromJson(json.loads(metadata["schemaString"]))
    schema = to_arrow_schema(columns, timezone="UTC")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(files.read_bytes, (file_of(path, name) for name in there)))
    try:
        return pa.concat_tables([schema.empty_table(), *(_rows(data, schema) for data in found)])
    except (OSError, ValueError, TypeError):
        return None


def _rows(data: bytes | None, schema: pa.Schema) -> pa.Table:
    """The rows of a file, with a null for a column that it does not have."""
    if data is None:
        raise FileNotFoundError
    rows = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
