"""A directory that every process takes for its own, as one that is not mounted; for test_probe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from absflow.storage.stores.mounted import MountedStore


@dataclass(frozen=True)
class Unshared:
    """What this process has written it sees; of the others what ``seen`` says.

    Attributes:
        driver: the process of the driver.
        seen: who sees the files of the other side, "driver", "workers" or "".
    """

    driver: int
    seen: str

    def _own(self) -> str:
        return "driver" if os.getpid() == self.driver else "workers"

    def read(self, path: str) -> bytes | None:
        """What is there, if this side sees who has written it."""
        found = MountedStore().read(path)
        side = self._own()
        return found if self.seen == side or (found or b"").startswith(side.encode()) else None

    def write(self, path: str, data: Any) -> None:
        """Written with the name of the side."""
        MountedStore().write(path, self._own().encode() + bytes(data))

    add = write

    def delete(self, paths: list[str]) -> None:
        """Of all."""
        MountedStore().delete(paths)
