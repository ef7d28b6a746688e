"""The files of a stage's state on an object store, with a cache on the machine of the worker.

The store has them all; the cache is what a worker has written or read lately, so a task that moves
to another machine finds everything, and one that stays reads nothing twice. (Flink 2 keeps
disaggregated state so: ForSt with its local cache.) A file is written into the cache, and from
there to the store while the worker goes on; :meth:`StoredStateFiles.finish` waits for that.

The cache lies in a directory of Spark's for this executor, which Spark removes with it, and is kept
below a bound by dropping what was not used for longest. Files never change and their names are of
their content, so nothing in it is ever out of date.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from absflow.columnar.piece_files import file_of, part_of
from absflow.errors import StorageError
from absflow.storage.state_files import MountedStateFiles, fetched, gone, mapped
from absflow.storage.stores.contract import Store
from absflow.storage.stores.mounted import executor_folder
from absflow.storage.stores.uploads import Uploads

__all__ = ["StoredStateFiles"]

# Of each executor, for all of its workers and jobs; what is dropped is read again.
CACHE_BYTES = 8 << 30


@dataclass(slots=True)
class _Open:
    """What this process has begun of a place: a worker runs one task at a time."""

    uploads: Uploads = field(default_factory=Uploads)
    deletions: list[str] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    added: int = 0


_open: dict[StoredStateFiles, _Open] = {}


@dataclass(frozen=True, slots=True)
class StoredStateFiles:
    """A directory of a store.

    Attributes:
        store: has the files.
        directory: its path there.
        max_inline: state of up to so many bytes is not put into a file.
    """

    store: Store
    directory: str
    max_inline: int

    def read(self, name: str) -> tuple[Any, bool]:
        """Of :class:`~absflow.columnar.piece_files.StateFiles`, as all of these."""
        cache, file = self._cache.directory, file_of(name)
        with suppress(FileNotFoundError):
            found = mapped(cache, name)
            os.utime(f"{cache}/{file}")
            return found
        path = f"{self.directory}/{file}"
        data = self.store.read(path)
        if data is None:
            raise gone(path, "there is no such file")
        self._state.added += len(data)
        self._cache.write(file, [data], lambda: file)
        fetched(cache, name)
        return part_of(pa.py_buffer(data), name), True

    def write(self, place: str, parts: Iterable[Any], name: Callable[[], str]) -> str:
        """Into the cache, and on its way to the store."""
        found = self._cache.write(place, parts, name)
        # Mapped now: another worker may drop it from the cache.
        data, _ = mapped(self._cache.directory, found)
        self._state.added += len(data)
        self._state.uploads.add(self._put, f"{self.directory}/{found}", data)
        return found

    def delete(self, name: str) -> None:
        """Deleted by :meth:`finish`, with others."""
        self._cache.delete(name)
        self._state.deletions.append(f"{self.directory}/{name}")

    def names(self, folder: str) -> list[str]:
        """A listing is a request, so each process makes one of a folder; then nothing is there.

        What is looked for has been left by a worker that was killed, so not by this one.
        """
        if folder in self._state.listed:
            return []
        self._state.listed.add(folder)
        return self.store.names(f"{self.directory}/{folder}")

    def finish(self) -> None:
        """Wait for the uploads, then delete what is to go, in one request."""
        state = self._state
        state.uploads.finish()
        deletions, state.deletions = state.deletions, []
        self.store.delete(deletions)
        if state.added > CACHE_BYTES // 8:
            state.added = 0
            _drop_oldest(_cache_root())

    def _put(self, path: str, data: Any) -> None:
        try:
            self.store.add(path, data)  # without a rename, where the store has one
        except StorageError:
            # A batch that was killed may have left a file of this name, or a part of it.
            self.store.write(path, data)

    @property
    def _state(self) -> _Open:
        return _open.setdefault(self, _Open())

    @property
    def _cache(self) -> MountedStateFiles:
        own = hashlib.sha256(self.directory.encode()).hexdigest()[:16]
        return MountedStateFiles(f"{_cache_root()}/{own}", 0)


def _cache_root() -> str:
    return f"{executor_folder()}/absflow-state"


def _drop_oldest(root: str) -> None:
    """Drop what was not used for longest, until the cache is well below its bound."""
    found = []
    for path in Path(root).rglob("*"):
        with suppress(FileNotFoundError):  # others delete, too
            if path.is_file():
                at = path.stat()
                found.append((at.st_mtime_ns, at.st_size, path))
    size = sum(size for _, size, _ in found)
    for _, freed, path in sorted(found):
        if size <= CACHE_BYTES // 2:
            break
        path.unlink(missing_ok=True)
        size -= freed
