"""HDFS by its REST interface (WebHDFS), which workers reach without a JVM of their own.

Each file goes through the name node, which knows the place, and one data node, which has or takes
the bytes. A file is put in place whole by a rename: HDFS shows a file while it is written, and of
renames onto one name the name node lets one in. Name node and user come from Hadoop's conf.

requests is an extra; who imports this has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import requests

from absflow.storage.stores.contract import aside_of, refused

__all__ = ["WebHdfsStore", "webhdfs_store"]

_PORT = "9870"  # of the name node's REST interface, if the conf does not say
_ABSENT = (FileNotFoundError, NotADirectoryError)
# Seconds to connect, and without a byte.
_PATIENCE = (10, 120)


@dataclass(frozen=True, slots=True)
class WebHdfsStore:
    """An HDFS.

    Attributes:
        root: its URI, as the paths begin.
        rest: the URL of its REST interface.
        user: who asks.
    """

    root: str
    rest: str
    user: str

    def read(self, path: str) -> bytes | None:
        """Of :class:`~absflow.storage.stores.contract.Store`, as all of these."""
        try:
            # An OPEN of what is not there is answered by an error that says so.
            answer = self._ask("GET", path, "OPEN")
        except _ABSENT:
            return None
        except OSError as error:
            raise refused("read", path, error) from error
        return bytes(answer.content)

    def write(self, path: str, data: Any) -> None:
        """Written aside, then renamed."""
        try:
            self._put_aside(path, data, renameoptions="OVERWRITE")
        except OSError as error:
            raise refused("write", path, error) from error

    def add(self, path: str, data: Any) -> None:
        """Written where it belongs."""
        try:
            self._send(path, data)
        except OSError as error:
            raise refused("write", path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Written aside, then renamed to a name that must be free."""
        try:
            if self._put_aside(path, data):
                return True
        except OSError as error:
            raise refused("create", path, error) from error
        return self.read(path) == data

    def exists(self, path: str) -> bool:
        """A directory exists if it is empty, too."""
        try:
            self._ask("GET", path, "GETFILESTATUS")
        except _ABSENT:
            return False
        except OSError as error:
            raise refused("look for", path, error) from error
        return True

    def names(self, folder: str) -> list[str]:
        """All of them, by one request."""
        try:
            found = self._ask("GET", folder, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        except _ABSENT:
            return []
        except OSError as error:
            raise refused("list", folder, error) from error
        return sorted(each["pathSuffix"] for each in found if each["pathSuffix"])

    def delete(self, paths: Sequence[str]) -> None:
        """One by one."""
        for path in paths:
            try:
                self._ask("DELETE", path, "DELETE", recursive="false")
            except OSError as error:
                raise refused("delete", path, error) from error

    def _put_aside(self, path: str, data: Any, **options: str) -> bool:
        """Whether the rename found its target free, or replaces it."""
        aside = aside_of(path)
        self._send(aside, data)
        try:
            answer = self._ask("PUT", aside, "RENAME", destination=self._name(path), **options)
            # With options nothing is said: it is done, or an error.
            done = bool(answer.json()["boolean"]) if answer.content else True
        except BaseException:
            with suppress(OSError):
                self._ask("DELETE", aside, "DELETE")
            raise
        if not done:
            self._ask("DELETE", aside, "DELETE")
        return done

    def _send(self, path: str, data: Any) -> None:
        """Folders above it are made; a file there is an error."""
        place = self._ask("PUT", path, "CREATE", overwrite="false", noredirect="true")
        view = memoryview(data).cast("B")  # Arrow's buffers are of signed bytes
        _checked(_session().put(place.json()["Location"], data=bytes(view), timeout=_PATIENCE))

    def _ask(self, method: str, path: str, what: str, **options: str) -> requests.Response:
        url = f"{self.rest}/webhdfs/v1{quote(self._name(path))}"
        given = {"op": what, "user.name": self.user, **options}
        return _checked(_session().request(method, url, params=given, timeout=_PATIENCE))

    def _name(self, path: str) -> str:
        return path.removeprefix(self.root)


def webhdfs_store(root: str, option: Callable[[str], str | None], user: str) -> WebHdfsStore | None:
    """The store of an HDFS.

    Args:
        root: its URI.
        option: the value of an option of Hadoop's conf, or None.
        user: who asks.

    Returns:
        None if it asks for what only Hadoop's client can do: Kerberos, or several name nodes.
    """
    authority = root.partition("://")[2]
    secure = (option("hadoop.security.authentication") or "simple").lower() != "simple"
    if secure or option(f"dfs.ha.namenodes.{authority}"):
        return None
    host, _, port = (option("dfs.namenode.http-address") or "").rpartition(":")
    if host in ("", "0.0.0.0"):
        host = authority.rpartition(":")[0] or authority
    return WebHdfsStore(root, f"http://{host}:{port or _PORT}", user)


def _checked(answer: requests.Response) -> requests.Response:
    """The answer.

    Raises:
        FileNotFoundError: there is no such file or directory.
        NotADirectoryError: what is above it is a file.
        OSError: of anything else, with what HDFS says.
    """
    if answer.ok:
        return answer
    try:
        said = answer.json()["RemoteException"]
        kind, text = said["exception"], str(said["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, text = str(answer.status_code), answer.reason
    if kind == "FileNotFoundException":
        raise FileNotFoundError(text)
    if kind == "ParentNotDirectoryException" or text.endswith("(is not a directory)"):
        raise NotADirectoryError(text)
    raise OSError(f"{kind}: {text}")


@lru_cache(maxsize=1)
def _session() -> requests.Session:
    """One for each process, for connections are behind it."""
    session = requests.Session()
    session.trust_env = False  # a proxy for the world outside is none for the nodes of a cluster
    return session
