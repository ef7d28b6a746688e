"""Directories that are mounted on every machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from absflow.storage.stores.contract import aside_of, refused

__all__ = ["MountedStore", "executor_folder", "local"]


def local(path: str) -> str:
    """A path as the operating system knows it."""
    without = path.removeprefix("file:")
    return without if without is path else "/" + without.lstrip("/")


def executor_folder() -> str:
    """A directory of the executor that this worker belongs to, which goes with it."""
    # Spark sets it for each Python worker, to the executor's own directories.
    return os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]


@dataclass(frozen=True, slots=True)
class MountedStore:
    """Files by the operating system, which puts one in place whole by a rename."""

    def read(self, path: str) -> bytes | None:
        """Of :class:`~absflow.storage.stores.contract.Store`, as all of these."""
        try:
            with open(local(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refused("read", path, error) from error

    def read_part(self, path: str, begin: int, size: int) -> bytes | None:
        """By a seek."""
        try:
            with open(local(path), "rb") as file:
                file.seek(begin)
                return file.read(size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refused("read", path, error) from error

    def write(self, path: str, data: Any) -> None:
        """Written aside, then renamed."""
        try:
            aside = _written_aside(path, data)
            try:
                _forget_checksum(path)
                os.replace(aside, local(path))
            except BaseException:
                os.unlink(aside)
                raise
        except OSError as error:
            raise refused("write", path, error) from error

    def add(self, path: str, data: Any) -> None:
        """Written where it belongs."""
        try:
            os.makedirs(os.path.dirname(local(path)), exist_ok=True)
            with open(local(path), "xb") as file:
                file.write(data)
        except OSError as error:
            raise refused("write", path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Written aside, then given its name as a second one, which must be free."""
        try:
            aside = _written_aside(path, data)
            try:
                os.link(aside, local(path))
            except FileExistsError:
                return self.read(path) == data
            finally:
                os.unlink(aside)
        except OSError as error:
            raise refused("create", path, error) from error
        return True

    def exists(self, path: str) -> bool:
        """A directory exists if it is empty, too."""
        return os.path.exists(local(path))

    def names(self, folder: str) -> list[str]:
        """All of them."""
        try:
            return sorted(os.listdir(local(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refused("list", folder, error) from error

    def delete(self, paths: Sequence[str]) -> None:
        """One by one."""
        for path in paths:
            try:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(local(path))
                    _forget_checksum(path)
            except OSError as error:
                raise refused("delete", path, error) from error

    def delete_folder(self, folder: str) -> None:
        """All of it; what somebody else deletes meanwhile is gone as well."""
        try:
            while os.path.isdir(local(folder)):
                with suppress(FileNotFoundError):
                    shutil.rmtree(local(folder))
        except OSError as error:
            raise refused("delete", folder, error) from error

    def delete_empty_folder(self, folder: str) -> None:
        """Nothing happens if there is none."""
        try:
            with suppress(FileNotFoundError):
                os.rmdir(local(folder))
        except OSError as error:
            raise refused("delete", folder, error) from error


def _forget_checksum(path: str) -> None:
    """Delete the file that Hadoop, if it wrote this one, has put beside it.

    It would not be that of what comes in its place, and Hadoop then reads neither.
    """
    folder, name = os.path.split(local(path))
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}/.{name}.crc")


def _written_aside(path: str, data: Any) -> str:
    """The file that :func:`aside_of` names, in the operating system's words."""
    aside = aside_of(local(path))
    os.makedirs(os.path.dirname(aside), exist_ok=True)
    try:
        with open(aside, "wb") as file:
            file.write(data)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    return aside
