"""The driver's files, on whatever storage they are."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from os import makedirs

from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.storage.java import S3_SCHEMES, use_s3_classes
from absflow.storage.stores.contract import Store, refused
from absflow.storage.stores.hadoop import HadoopStore
from absflow.storage.stores.mounted import MountedStore, local

__all__ = ["Files"]

# So many files of one directory are asked for one by one; of more the directory is listed.
_FEW = 16
# Directories that are looked into at a time.
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
        self._stores: dict[str, Store] = {}

    @cached_property
    def _hadoop(self) -> HadoopStore:
        return HadoopStore(self._spark)

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(errors="replace")

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

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [path for found in pool.map(gone, wanted) for path in found]

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

    def qualified(self, path: str) -> str:
        """``path`` with its scheme and from the root on; Delta takes no relative ones."""
        return self._hadoop.qualified(path)

    def is_local(self, path: str) -> bool:
        """Whether a path is on a file system that is mounted."""
        return self._at(path)[0] is _MOUNTED

    def for_workers(self, path: str) -> tuple[Store, str] | None:
        """What workers reach a path by, and its name there; None if only the driver's JVM does."""
        found = self._at(path)
        return None if isinstance(found[0], HadoopStore) else found

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
        if scheme not in (*S3_SCHEMES, "hdfs"):
            return self._hadoop, path
        root = f"{scheme}://{rest.lstrip('/').partition('/')[0]}"
        if root not in self._stores:
            self._stores[root] = self._bucket(root) if scheme in S3_SCHEMES else self._hdfs(root)
        return self._stores[root], path

    def _bucket(self, bucket: str) -> Store:
        try:
            from absflow.storage.stores.objects import object_store
        except ImportError as error:
            raise _lacking(f"{bucket!r} is S3", "obstore", "s3") from error
        use_s3_classes(self._spark)
        own = f"fs.s3a.bucket.{bucket.partition('://')[2]}"
        option = self._hadoop.option
        found = object_store(
            bucket, lambda name: option(f"{own}.{name}") or option(f"fs.s3a.{name}")
        )
        return found or self._hadoop

    def _hdfs(self, root: str) -> Store:
        try:
            from absflow.storage.stores.webhdfs import webhdfs_store
        except ImportError as error:
            raise _lacking(f"{root!r} is HDFS", "requests", "hdfs") from error
        return webhdfs_store(root, self._hadoop.option, self._hadoop.user()) or self._hadoop


def _lacking(what: str, library: str, extra: str) -> StorageError:
    return StorageError(
        f"{what}, which absflow reaches by {library}, and that is not installed; "
        f"pip install 'absflow[{extra}]' on the driver and on every executor"
    )
