"""How a process without a JVM reaches a storage root, by the conf that Spark has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import (
    FileSystem,
    LocalFileSystem,
    PyFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
    resolve_s3_region,
)

from absflow.storage.stores.bucket_conf import bucket_conf

__all__ = ["CHECKED", "Client", "client"]

_HADOOP = "spark.hadoop."
# Which name nodes there are, and which of them a path without one means.
_OF_HDFS = tuple(f"{_HADOOP}{name}" for name in ("dfs.", "fs.defaultFS", "fs.viewfs."))
# Without, Arrow reads a flipped bit as another value.
CHECKED = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)


@dataclass(frozen=True, slots=True)
class Client:
    """Of one storage root.

    Attributes:
        files: a file system of what is below the root.
        options: of deltalake's client; there may be a secret among them.
        in_python: ``files`` is written in Python. Arrow's threads must not come to it: one that
            still asks it for something when Python ends aborts the process.
    """

    files: FileSystem
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    in_python: bool = False

    def fetched(self, fragment: ds.ParquetFileFragment) -> ds.ParquetFileFragment:
        """A file of a table, as Arrow's threads may read it.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        if not self.in_python:
            return fragment
        with fragment.filesystem.open_input_file(fragment.path) as file:
            data = pa.BufferReader(file.read_buffer())
        return fragment.format.make_fragment(
            data, partition_expression=fragment.partition_expression
        )


def client(root: str, conf: Mapping[str, str]) -> Client:
    """Of a root, a local path or a URL.

    Args:
        root: the path, from the file system's root on, or the URL.
        conf: Spark's, with who asks and where a server is. What it lacks is looked for in the
            environment: of a bucket ``AWS_*``, of HDFS ``HADOOP_CONF_DIR``.

    Raises:
        OSError: nothing answers there.
    """
    scheme, sign, inside = root.partition("://")
    if not sign:
        return Client(SubTreeFileSystem(root, LocalFileSystem()))
    if scheme == "s3":
        files, options = _bucket(inside.partition("/")[0], conf)
        return Client(SubTreeFileSystem(inside, files), options)
    options = {}
    if scheme in ("hdfs", "viewfs"):
        names = (name for name in conf if name.startswith(_OF_HDFS))
        options = {name.removeprefix(_HADOOP): conf[name] for name in names}
    return Client(PyFileSystem(DeltaStorageHandler(root, options)), options, in_python=True)


def _bucket(name: str, conf: Mapping[str, str]) -> tuple[FileSystem, dict[str, str]]:
    """Arrow's client of a bucket, and the options of deltalake's."""
    found = bucket_conf(f"s3://{name}", lambda option: conf.get(_HADOOP + option))
    options = found.options() if found else {}
    if found is None or not options:
        return FileSystem.from_uri(f"s3://{name}")[0], {}
    arguments: dict[str, Any] = found.arguments()
    if not (found.region or found.endpoint):
        arguments["region"] = options["region"] = resolve_s3_region(name)
    if found.endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return S3FileSystem(**arguments), options
