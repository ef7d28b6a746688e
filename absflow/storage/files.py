"""Plain files on whatever file system the storage root is on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from absflow.errors import StorageError

__all__ = ["Files"]

# So many files of one directory are asked for one by one; of more the directory is listed.
_FEW = 16
# Directories that are looked into at a time.
_AT_ONCE = 8


class Files:
    """Small files through Hadoop's FileSystem, so that every storage Spark can write to will do.

    Local ones have no checksum file beside them: the two cannot be replaced at once, so a kill
    between them would leave a file that nobody can read. And where Hadoop has no native library, as
    in a PySpark from pip, each costs a process that sets its mode.

    Raises:
        StorageError: from every method, naming the path, if the file system refuses.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Use the Hadoop configuration of ``spark``."""
        jvm: Any = spark.sparkContext._jvm
        # Each step from package to package asks the JVM for a class of that name, in every jar.
        self._java_path = jvm.org.apache.hadoop.fs.Path
        self._rename = jvm.org.apache.hadoop.fs.Options.Rename
        self._context = jvm.org.apache.hadoop.fs.FileContext
        self._io = jvm.org.apache.commons.io.IOUtils
        self._status = jvm.org.apache.hadoop.fs.FileStatus
        self._arraycopy = jvm.java.lang.System.arraycopy
        self._paths_of = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths
        self._text_of = jvm.org.apache.commons.lang3.ArrayUtils.toString
        self._gateway: Any = spark.sparkContext._gateway
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        # An instance of our own: the cached one is Spark's, too.
        self._local = jvm.org.apache.hadoop.fs.LocalFileSystem()
        self._local.initialize(jvm.java.net.URI("file:///"), self._conf)
        self._local.setWriteChecksum(False)
        self._local.setVerifyChecksum(False)

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        data = self._read(path, lambda stream: self._io.toString(stream, "UTF-8"))
        return None if data is None else str(data)

    def read_bytes(self, path: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        data = self._read(path, self._io.toByteArray)
        return None if data is None else bytes(data)

    def _read(self, path: str, take: Callable[[Any], Any]) -> Any:
        # Most looks are for a file that is not there yet, and an exception of the JVM costs 9 ms.
        if not self.exists(path):
            return None
        try:
            stream = self._fs(path).open(self._path(path))
        except Py4JJavaError as error:
            if _class_of(error).endswith("FileNotFoundException"):
                return None
            raise _storage_error("read", path, error) from error
        try:
            return take(stream)
        except Py4JError as error:
            raise _storage_error("read", path, error) from error
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Put a file in place whole, in the place of an older one: written aside, then renamed."""
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.tmp"  # hidden, for a kill may leave it there
        try:
            self._put(aside, text.encode(), overwrite=True)
            self._replace(aside, path)
        except Py4JError as error:
            raise _storage_error("write", path, error) from error

    def create(self, path: str, data: bytes) -> None:
        """Write a file that nobody has a name for yet."""
        try:
            self._put(path, data, overwrite=False)
        except Py4JError as error:
            raise _storage_error("write", path, error) from error

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        try:
            return bool(self._fs(path).exists(self._path(path)))
        except Py4JError as error:
            raise _storage_error("look for", path, error) from error

    def make_directory(self, path: str) -> None:
        """Create a directory and all above it; nothing happens if it is there."""
        try:
            self._fs(path).mkdirs(self._path(path))
        except Py4JError as error:
            raise _storage_error("create", path, error) from error

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted, but for hidden ones; empty if there is none."""
        # As for a file: a new job looks for tables that are not there.
        if not self.exists(path):
            return []
        try:
            there = self._fs(path).listStatus(self._path(path))
            if not len(there):
                return []
            # All as one text, "{a,b}": to look at each in the JVM would be three calls for each.
            text = str(self._text_of(self._paths_of(self._plain(there))))
            parent = f"{there[0].getPath().getParent().toString()}/"
            names = text[1:-1].removeprefix(parent).split(f",{parent}")
            return sorted(name for name in names if not name.startswith("."))
        except Py4JJavaError as error:
            if _class_of(error).endswith("FileNotFoundException"):
                return []
            raise _storage_error("list", path, error) from error

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
        """Delete a file or a directory with all in it; nothing happens if there is none."""
        try:
            self._fs(path).delete(self._path(path), True)
        except Py4JError as error:
            raise _storage_error("delete", path, error) from error

    def qualified(self, path: str) -> str:
        """``path`` with its scheme and from the root on; Delta takes no relative ones."""
        return str(self._fs(path).makeQualified(self._path(path)).toString())

    def mounted(self, path: str) -> str | None:
        """``path`` as the Python workers know it; None if it is on no file system of theirs."""
        scheme, _, local = self.qualified(path).partition(":")
        return local if scheme == "file" else None

    def check_writable(self, path: str) -> None:
        """Write and delete a file below ``path``, so that a bad storage root is refused early."""
        probe = f"{path}/.absflow-write-check-{uuid.uuid4().hex}"
        self.write(probe, "")
        self.delete(probe)

    def _put(self, path: str, data: bytes, *, overwrite: bool) -> None:
        stream = self._fs(path).create(self._path(path), overwrite)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def _replace(self, aside: str, path: str) -> None:
        source, target = self._path(aside), self._path(path)
        if self._fs(path) is self._local:
            # By the system's rename. A FileContext would start two processes for it, 50 ms.
            if not self._local.rename(source, target):
                raise StorageError(f"could not rename {aside!r} to {path!r}")
            return
        options = self._gateway.new_array(self._rename, 1)
        options[0] = self._rename.OVERWRITE
        context = self._context.getFileContext(target.toUri(), self._conf)
        context.rename(source, target, options)

    def _plain(self, there: Any) -> Any:
        """The same in an array of Hadoop's own class.

        That of S3's client is of another one, and Py4J finds no method that takes such an array.
        """
        plain = self._gateway.new_array(self._status, len(there))
        self._arraycopy(there, 0, plain, 0, len(there))
        return plain

    def _path(self, path: str) -> Any:
        return self._java_path(path)

    def _fs(self, path: str) -> Any:
        if path.startswith("file:"):
            return self._local
        try:
            return self._path(path).getFileSystem(self._conf)
        except Py4JError as error:
            raise _storage_error("reach", path, error) from error


def _class_of(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def _storage_error(verb: str, path: str, error: Py4JError) -> StorageError:
    java = getattr(error, "java_exception", None)
    seen = str(java.toString()) if java is not None else str(error)
    return StorageError(
        f"could not {verb} {path!r}: {seen}; spark.absflow.storage.path must name a place that "
        "the driver and every executor can read and write"
    )
