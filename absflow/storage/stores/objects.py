"""S3, and what speaks it, by obstore: one request for each call, and no directories.

The driver takes endpoint, region and keys from the conf that Hadoop's own client has
(``spark.hadoop.fs.s3a.*``, for one bucket ``spark.hadoop.fs.s3a.bucket.NAME.*``), and hands them to
the workers. Without keys there, each process asks where it runs: environment, web identity,
container, instance.

obstore is an extra; who imports this has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from absflow.errors import StorageError
from absflow.storage.stores.bucket_conf import bucket_conf
from absflow.storage.stores.contract import refused

__all__ = ["ObjectStore", "object_store"]

T = TypeVar("T")

# A listing brings so many names at a time; as many are deleted by one request.
_AT_ONCE = 1000
# Larger files go up in parts of this size, several at a time.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
# How often a request is made; what took longer than this has been repeated by obstore.
_TRIES, _SOON_S = 3, 10.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket.

    Attributes:
        bucket: its URI, with the scheme that the paths have.
        options: of obstore, in order; there may be a secret among them.
    """

    bucket: str
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def read(self, path: str) -> bytes | None:
        """Of :class:`~absflow.storage.stores.contract.Store`, as all of these."""
        try:
            return _asked(lambda: obstore.get(_client(self), self._key(path)).bytes().to_bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _refused("read", path, error) from error

    def read_part(self, path: str, begin: int, size: int) -> bytes | None:
        """A GET of a range."""
        key = self._key(path)
        try:
            return _asked(
                lambda: obstore.get_range(_client(self), key, start=begin, length=size).to_bytes()
            )
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise _refused("read", path, error) from error

    def write(self, path: str, data: Any) -> None:
        """A PUT; of a large file one for each part, and it is there once all of them are."""
        self._put("write", path, data, "overwrite")

    def add(self, path: str, data: Any) -> None:
        """As :meth:`write`, so never a part of it."""
        self._put("write", path, data, "overwrite")

    def create(self, path: str, data: bytes) -> bool:
        """A PUT on the condition that there is none."""
        try:
            self._put("create", path, data, "create")
        except StorageError as error:
            if isinstance(error.__cause__, AlreadyExistsError):
                return self.read(path) == data
            raise
        return True

    def exists(self, path: str) -> bool:
        """A HEAD, and for a directory a listing of one name."""
        try:
            _asked(lambda: obstore.head(_client(self), self._key(path)))
        except FileNotFoundError:
            return bool(self.names(path))
        except (BaseError, OSError) as error:
            raise _refused("look for", path, error) from error
        return True

    def names(self, folder: str) -> list[str]:
        """One listing for each thousand names."""
        key = self._key(folder)
        try:
            found = _asked(lambda: obstore.list_with_delimiter(_client(self), key))
        except (BaseError, OSError) as error:
            raise _refused("list", folder, error) from error
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # Hadoop marks an empty directory by an object that is named as itself.
        return sorted({path.rpartition("/")[2] for path in paths if path != key})

    def delete(self, paths: Sequence[str]) -> None:
        """One request for each thousand."""
        # MinIO answers a key that is named twice with one that has no name, which obstore refuses.
        each = list(dict.fromkeys(paths))
        for start in range(0, len(each), _AT_ONCE):
            self._delete([self._key(path) for path in each[start : start + _AT_ONCE]], each[start])

    def _delete(self, keys: Sequence[str], path: str) -> None:
        try:
            if keys:
                _asked(lambda: obstore.delete(_client(self), keys))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _refused("delete", path, error) from error

    def _put(self, verb: str, path: str, data: Any, mode: Any) -> None:
        view = memoryview(data).cast("B")  # Arrow's buffers are of signed bytes
        try:
            _asked(
                lambda: obstore.put(
                    _client(self),
                    self._key(path),
                    view,
                    mode=mode,
                    use_multipart=len(view) > 2 * _PART_BYTES,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            )
        except (BaseError, OSError) as error:
            raise _refused(verb, path, error) from error

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.bucket}/")


def object_store(bucket: str, option: Callable[[str], str | None]) -> ObjectStore | None:
    """The store of a bucket, by what :func:`bucket_conf` takes; None where that is None."""
    found = bucket_conf(bucket, option)
    return ObjectStore(bucket, tuple(found.options().items())) if found else None


def _asked(call: Callable[[], T]) -> T:
    """What a request gives; any of them may be made twice, for a condition is looked at again.

    obstore repeats what was refused or had no answer, for minutes. It does not where an answer
    breaks off in the middle.
    """
    for _ in range(_TRIES - 1):
        begun = time.monotonic()
        try:
            return call()
        except GenericError:
            if time.monotonic() - begun > _SOON_S:
                raise
    return call()


def _refused(verb: str, path: str, error: Exception) -> StorageError:
    # What follows the first line is for those who work on the client.
    return refused(verb, path, str(error).partition("\n")[0])


@lru_cache(maxsize=64)
def _client(store: ObjectStore) -> Any:
    """One for each process, for connections and threads are behind it."""
    options: Any = dict(store.options)
    plain = options.get("endpoint", "").startswith("http://")
    # TLS sees to it that the bytes arrive as they were sent. Without it they are signed, or a bit
    # that flips on the way would be found by who reads them; that is most of a PUT's time here.
    options["unsigned_payload"] = str(not plain).lower()
    name = store.bucket.partition("://")[2]
    return S3Store(name, config=options, client_options={"allow_http": plain})
