"""The driver's files, on whatever storage they are."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, cached_property
from os import makedirs
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from absflow.errors import StorageError
from absflow.storage.java import S3_SCHEMES, behind_server, only_writer, serve_files, use_s3_classes
from absflow.storage.stores.contract import Store, refused
from absflow.storage.stores.hadoop import HadoopStore, served_at
from absflow.storage.stores.mounted import MountedStore, local

__all__ = ["Files"]

# So many files of one directory are asked for one by one; of more the directory is listed.
_FEW = 16
# Directories that are looked into, or files that are read, at a time.
_AT_ONCE = 8
_MOUNTED = MountedStore()


class Files:
    """Files on every storage that Spark can write to; the scheme of a path says which it is.

    A path without one is on Hadoop's default file system.

    Raises:
        StorageError: from every method, naming the path, if the storage refuses.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Use the Hadoop configuration of ``spark``."""
        self._spark = spark
        self._buckets: dict[str, Store] = {}

    @cached_property
    def _hadoop(self) -> HadoopStore:
        place, options = serve_files(self._spark)
        served_at(place)
        return HadoopStore(options)

    @cached_property
    def _conf(self) -> Any:
        """Hadoop's, of the session."""
        return self._spark._jsparkSession.sessionState().newHadoopConf()

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(errors="replace")

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """The text of each of these files, several read at once; None if there is none."""
        return list(_pool().map(self.read, paths))

    def read_bytes(self, path: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        store, path = self._at(path)
        return store.read(path)

    def write(self, path: str, text: str) -> None:
        """Put a file in place whole, in the place of an older one."""
        store, path = self._at(path)
        store.write(path, text.encode())

    def add(self, path: str, data: bytes) -> None:
        """Write a file that nobody has a name for yet."""
        store, path = self._at(path)
        store.add(path, data)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        store, path = self._at(path)
        return store.exists(path)

    def make_directory(self, path: str) -> None:
        """Create a directory and all above it; nothing happens if it is there.

        Spark's sources want one also where the storage has none.
        """
        store, path = self._at(path)
        if store is not _MOUNTED:
            return self._hadoop.make_directory(path)
        try:
            makedirs(local(path), exist_ok=True)
        except OSError as error:
            raise refused("create", path, error) from error

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted, but for hidden ones; empty if there is none."""
        store, path = self._at(path)
        return [name for name in store.names(path) if not name.startswith(".")]

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Those of these files that are not there, directory by directory.

        A directory of many is listed, which is a few calls for any number of files.
        """
        wanted: dict[str, list[str]] = {}
        for path in paths:
            wanted.setdefault(path.rpartition("/")[0], []).append(path)

        def gone(folder: str) -> list[str]:
            due = wanted[folder]
            if len(due) <= _FEW:
                return [path for path in due if not self.exists(path)]
            there = set(self.names(folder))
            return [path for path in due if path.rpartition("/")[2] not in there]

        return [path for found in _pool().map(gone, wanted) for path in found]

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        store, path = self._at(path)
        store.delete([path])

    def delete_folder(self, path: str) -> None:
        """Delete a directory with all in it; nothing happens if there is none.

        Of an object store Hadoop does it, which knows its own marks of empty directories.
        """
        store, path = self._at(path)
        if store is _MOUNTED:
            _MOUNTED.delete_folder(path)
        else:
            self._hadoop.delete_folder(path)

    def delete_empty_folder(self, path: str) -> None:
        """Delete a directory if nothing is in it; nothing happens if there is none.

        Not for what may be a file, which Hadoop's client would delete as well.

        Raises:
            StorageError: something is in it.
        """
        store, path = self._at(path)
        if store is _MOUNTED:
            _MOUNTED.delete_empty_folder(path)
        else:
            store.delete([path])

    def qualified(self, path: str) -> str:
        """``path`` with its scheme and from the root on; Delta takes no relative ones."""
        jvm: Any = self._spark.sparkContext._jvm
        found = jvm.org.apache.hadoop.fs.Path(path)
        try:
            return str(found.getFileSystem(self._conf).makeQualified(found).toString())
        except Py4JError as error:
            java = getattr(error, "java_exception", None)
            raise refused("reach", path, error if java is None else java.toString()) from error

    def is_local(self, path: str) -> bool:
        """Whether a path is on a file system that is mounted."""
        return self._at(path)[0] is _MOUNTED

    def is_bucket(self, path: str) -> bool:
        """Whether a path is on an object store, where each request is paid for."""
        return self.qualified(path).partition(":")[0] not in ("file", "hdfs", "viewfs")

    def for_workers(self, path: str) -> tuple[Store, str]:
        """What workers reach a path by, and its name there."""
        return self._at(path)

    def reached(self, rows: DataFrame, *paths: str) -> DataFrame:
        """``rows``, for a function of the workers that goes to these paths.

        A stage's function needs none: Spark's own state is in front of it.
        """
        served = any(isinstance(self._at(path)[0], HadoopStore) for path in paths)
        return behind_server(rows) if served else rows

    def only_writer(self, folders: Iterable[str]) -> AbstractContextManager[None]:
        """Within the block nobody but this driver writes Delta tables in these folders.

        What it knows of their logs is not asked of a bucket again.
        """
        return only_writer(self._spark, folders)

    def check_writable(self, path: str) -> None:
        """Write and delete a file below ``path``, so that a bad storage root is refused early."""
        probe = f"{path}/.absflow-write-check-{uuid.uuid4().hex}"
        self.write(probe, "")
        self.delete(probe)

    def _at(self, path: str) -> tuple[Store, str]:
        """The storage of a path, and the path with its scheme."""
        scheme, colon, rest = path.partition(":")
        if not colon or "/" in scheme:
            return self._at(self.qualified(path))
        if scheme == "file":
            return _MOUNTED, path
        if scheme not in S3_SCHEMES:
            # What renames on HDFS takes no path that leaves the name node to Hadoop's conf.
            whole = rest.startswith("//") and not rest.startswith("///")
            return self._hadoop, path if whole else self.qualified(path)
        bucket = f"{scheme}://{rest.lstrip('/').partition('/')[0]}"
        if bucket not in self._buckets:
            self._buckets[bucket] = self._bucket(bucket)
        return self._buckets[bucket], path

    def _bucket(self, bucket: str) -> Store:
        try:
            from absflow.storage.stores.objects import object_store
        except ImportError as error:
            raise StorageError(
                f"{bucket!r} is S3, which absflow reaches by obstore, and that is not installed; "
                "pip install 'absflow[s3]' on the driver and on every executor"
            ) from error
        use_s3_classes(self._spark)
        return object_store(bucket, self._option) or self._hadoop

    def _option(self, name: str) -> str | None:
        """A value of Hadoop's conf, a secret from where the user keeps it, too."""
        found = self._conf.getPassword(name)
        return None if found is None else "".join(found)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="absflow-files")
