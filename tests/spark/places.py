"""Where a job keeps what it has: on this disk, or on a store, of which this disk has a copy.

Who judges the job reads files. The copy is made by other clients than absflow's own.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from hdfs_server import Hdfs, hdfs
from minio_server import s3
from on_store import Server, class_path
from pyarrow import fs
from reading import rows_of
from s3_server import KEY, SECRET, S3Server

__all__ = [
    "STORES",
    "Disk",
    "Place",
    "RemotePlace",
    "Stores",
    "attempts",
    "bucket_place",
    "commits",
    "hdfs_place",
]

_LOG = "/_delta_log/"
# A look at a store takes time from the job that is looked at.
_LOOK_S = 0.5


class Place(Protocol):
    """Where the storage root ``job`` and the sinks of one job lie.

    Attributes:
        root: the job's folder on this disk, where its sources are.
        uri: where the job writes.
        class_path: jars that a driver needs for it.
    """

    root: Path
    uri: str
    class_path: str

    def conf(self) -> dict[str, str]:
        """The Spark conf by which it is found."""

    def names(self, path: str) -> list[str]:
        """What a folder has now, or had half a second ago; none if it is not there."""

    def fetch(self, path: str) -> None:
        """See to it that ``root`` has what lies at a path."""


class Disk:
    """The job's root itself."""

    class_path = ""

    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, str(root)

    def conf(self) -> dict[str, str]:
        return {}

    def names(self, path: str) -> list[str]:
        folder = self.root / path
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def fetch(self, path: str) -> None:
        """It is there."""


class RemotePlace:
    """A folder of a store, which a client lists and reads."""

    class_path = ""

    def __init__(self, root: Path, uri: str, server: Server, client: _Client) -> None:
        self.root, self.uri, self.conf, self._client = root, uri, server.conf, client
        self._looks: dict[str, tuple[float, list[str]]] = {}

    def names(self, path: str) -> list[str]:
        until, found = self._looks.get(path, (0.0, []))
        if time.monotonic() >= until:
            entries = self._client.entries(path)
            found = sorted(name for name, _ in entries)
            self._looks[path] = time.monotonic() + _LOOK_S, found
        return found

    def fetch(self, path: str) -> None:
        # What a log names was there before it did; so its commits are listed first.
        commits = {file for file in self._files(path) if _LOG in file}
        files = {file for file in self._files(path) if _LOG not in file}
        shutil.rmtree(self.root / path, ignore_errors=True)
        for file in commits | files:
            copy = self.root / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            data = self._client.read(file)
            if data is not None:  # else deleted in the meantime
                copy.write_bytes(data)

    def send(self, path: str) -> None:
        """Write what ``root`` has at a path, a folder."""
        for file in (self.root / path).rglob("*"):
            if file.is_file():
                self._client.write(file.relative_to(self.root).as_posix(), file.read_bytes())

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._client.delete(path)

    def _files(self, path: str) -> Iterator[str]:
        for name, is_folder in self._client.entries(path):
            below = f"{path}/{name}"
            if is_folder:
                yield from self._files(below)
            else:
                yield below


class _Client(Protocol):
    """Of a store, for one folder in it."""

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """The names in a folder, and which of them are folders; none if there is none."""

    def read(self, path: str) -> bytes | None:
        """A file; None if there is none."""

    def write(self, path: str, data: bytes) -> None:
        """A file, and the folders above it."""

    def delete(self, path: str) -> None:
        """Delete a file that is there."""


class _BucketClient:
    def __init__(self, endpoint: str, bucket: str) -> None:
        self._bucket = bucket
        self._files = fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=endpoint, region="us-east-1"
        )

    def entries(self, path: str) -> list[tuple[str, bool]]:
        selector = fs.FileSelector(f"{self._bucket}/{path}".rstrip("/"), allow_not_found=True)
        found = self._files.get_file_info(selector)
        return [(each.base_name, each.type == fs.FileType.Directory) for each in found]

    def read(self, path: str) -> bytes | None:
        try:
            with self._files.open_input_stream(f"{self._bucket}/{path}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        with self._files.open_output_stream(f"{self._bucket}/{path}") as file:
            file.write(data)

    def delete(self, path: str) -> None:
        self._files.delete_file(f"{self._bucket}/{path}")


class _HdfsClient:
    def __init__(self, rest: str, folder: str) -> None:
        self._url = f"http://{rest}/webhdfs/v1/{folder}"

    def _ask(self, path: str, method: str = "GET", **query: str) -> bytes | None:
        asked = urlencode({**query, "user.name": "root"})
        url = f"{self._url}/{quote(path)}".rstrip("/")
        request = urllib.request.Request(f"{url}?{asked}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            if error.code == 404:
                return None
            raise

    def entries(self, path: str) -> list[tuple[str, bool]]:
        answer = self._ask(path, op="LISTSTATUS")
        found: list[dict[str, Any]] = (
            json.loads(answer)["FileStatuses"]["FileStatus"] if answer else []
        )
        return [(each["pathSuffix"], each["type"] == "DIRECTORY") for each in found]

    def read(self, path: str) -> bytes | None:
        return self._ask(path, op="OPEN")

    def write(self, path: str, data: bytes) -> None:
        answer = self._ask(path, "PUT", op="CREATE", overwrite="true", noredirect="true")
        where = json.loads(answer or b"")["Location"]
        urllib.request.urlopen(urllib.request.Request(where, data, method="PUT")).close()

    def delete(self, path: str) -> None:
        self._ask(path, "DELETE", op="DELETE")


def bucket_place(server: S3Server, name: str, root: Path, jars: str) -> RemotePlace:
    """A new bucket, for a job that has these jars (:func:`~on_store.class_path`)."""
    client = _BucketClient(server.endpoint, name)
    place = RemotePlace(root, server.bucket(name), server, client)
    place.class_path = jars
    return place


def hdfs_place(there: Hdfs, name: str, root: Path) -> RemotePlace:
    """A directory, which need not be there yet."""
    return RemotePlace(root, f"{there.root}/{name}", there, _HdfsClient(there.rest, name))


def commits(place: Place, table: str) -> int:
    """How many versions a table has."""
    return sum(name.endswith(".json") for name in place.names(f"{table}/_delta_log"))


def attempts(place: Place) -> list[tuple[int, str]]:
    """The incarnations that have written a fact of an attempt of its job, and which."""
    place.fetch("job/attempts")
    rows = rows_of(place.root / "job/attempts").to_pylist()
    return [(r["incarnation"], r["kind"]) for r in sorted(rows, key=lambda r: r["at"])]


Stores = Callable[[str, Path], Place]


@contextmanager
def _disk(_: Path) -> Iterator[Stores]:
    yield lambda _, root: Disk(root)


@contextmanager
def _s3(folder: Path) -> Iterator[Stores]:
    jars = class_path(folder)
    with s3(folder) as server:
        yield lambda name, root: bucket_place(server, name, root, jars)


@contextmanager
def _hdfs(folder: Path) -> Iterator[Stores]:
    with hdfs(folder) as there:
        yield lambda name, root: hdfs_place(there, name, root)


# What makes a place of a name for a job's root, as long as the server of the store runs.
STORES: Mapping[str, Callable[[Path], AbstractContextManager[Stores]]] = {
    "disk": _disk,
    "s3": _s3,
    "hdfs": _hdfs,
}
