"""Any storage that Spark can write to, by Hadoop's FileSystem; on the driver only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.storage.stores.contract import refused

__all__ = ["HadoopStore"]


class HadoopStore:
    """Files by Hadoop, in the JVM of the driver."""

    def __init__(self, spark: SparkSession) -> None:
        """Use the Hadoop configuration of ``spark``."""
        jvm: Any = spark.sparkContext._jvm
        # Each step from package to package asks the JVM for a class of that name, in every jar.
        self._java_path = jvm.org.apache.hadoop.fs.Path
        self._rename = jvm.org.apache.hadoop.fs.Options.Rename
        self._context = jvm.org.apache.hadoop.fs.FileContext
        self._io = jvm.org.apache.commons.io.IOUtils
        self._status = jvm.org.apache.hadoop.fs.FileStatus
        self._users = jvm.org.apache.hadoop.security.UserGroupInformation
        self._arraycopy = jvm.java.lang.System.arraycopy
        self._paths_of = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths
        self._text_of = jvm.org.apache.commons.lang3.ArrayUtils.toString
        self._gateway: Any = spark.sparkContext._gateway
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def read(self, path: str) -> bytes | None:
        """Of :class:`~absflow.storage.stores.contract.Store`, as all of these."""
        # Most looks are for a file that is not there yet, and an exception of the JVM costs 9 ms.
        if not self.exists(path):
            return None
        try:
            stream = self._fs(path).open(self._path(path))
        except Py4JJavaError as error:
            if _class_of(error).endswith("FileNotFoundException"):
                return None
            raise _refused("read", path, error) from error
        try:
            return bytes(self._io.toByteArray(stream))
        except Py4JError as error:
            raise _refused("read", path, error) from error
        finally:
            stream.close()

    def write(self, path: str, data: Any) -> None:
        """Written aside, then renamed."""
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.tmp"  # hidden, for a kill may leave it there
        try:
            self._put(aside, data, overwrite=True)
            self._replace(aside, path)
        except Py4JError as error:
            raise _refused("write", path, error) from error

    def add(self, path: str, data: Any) -> None:
        """Written where it belongs."""
        try:
            self._put(path, data, overwrite=False)
        except Py4JError as error:
            raise _refused("write", path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """As the file system has it: HDFS gives a lease to one, Hadoop's local files do not."""
        try:
            self._put(path, data, overwrite=False)
        except Py4JJavaError as error:
            if _class_of(error).endswith("FileAlreadyExistsException"):
                return self.read(path) == data
            raise _refused("create", path, error) from error
        return True

    def exists(self, path: str) -> bool:
        """A directory exists if it is empty, too."""
        try:
            return bool(self._fs(path).exists(self._path(path)))
        except Py4JError as error:
            raise _refused("look for", path, error) from error

    def names(self, folder: str) -> list[str]:
        """As one text from the JVM."""
        # As for a file: a new job looks for tables that are not there.
        if not self.exists(folder):
            return []
        try:
            there = self._fs(folder).listStatus(self._path(folder))
            if not len(there):
                return []
            # All as one text, "{a,b}": to look at each in the JVM would be three calls for each.
            text = str(self._text_of(self._paths_of(self._plain(there))))
            parent = f"{there[0].getPath().getParent().toString()}/"
            return sorted(text[1:-1].removeprefix(parent).split(f",{parent}"))
        except Py4JJavaError as error:
            if _class_of(error).endswith("FileNotFoundException"):
                return []
            raise _refused("list", folder, error) from error

    def delete(self, paths: Sequence[str]) -> None:
        """One by one."""
        for path in paths:
            self.delete_folder(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a directory with all in it; nothing happens if there is none."""
        try:
            self._fs(folder).delete(self._path(folder), True)
        except Py4JError as error:
            raise _refused("delete", folder, error) from error

    def make_directory(self, path: str) -> None:
        """Create a directory and all above it; nothing happens if it is there."""
        try:
            self._fs(path).mkdirs(self._path(path))
        except Py4JError as error:
            raise _refused("create", path, error) from error

    def qualified(self, path: str) -> str:
        """``path`` with its scheme and from the root on."""
        return str(self._fs(path).makeQualified(self._path(path)).toString())

    def option(self, name: str) -> str | None:
        """A value of Hadoop's configuration, a secret from where the user keeps it, too."""
        found = self._conf.getPassword(name)
        return None if found is None else "".join(found)

    def user(self) -> str:
        """Who this process is to Hadoop, by a short name."""
        return str(self._users.getCurrentUser().getShortUserName())

    def _put(self, path: str, data: Any, *, overwrite: bool) -> None:
        stream = self._fs(path).create(self._path(path), overwrite)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def _replace(self, aside: str, path: str) -> None:
        source, target = self._path(aside), self._path(path)
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
        try:
            return self._path(path).getFileSystem(self._conf)
        except Py4JError as error:
            raise _refused("reach", path, error) from error


def _class_of(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def _refused(verb: str, path: str, error: Py4JError) -> StorageError:
    java = getattr(error, "java_exception", None)
    return refused(verb, path, java.toString() if java is not None else error)
