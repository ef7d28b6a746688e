"""Files on their way to a store, while the worker that made them goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

__all__ = ["Uploads"]

# Of a worker process, whatever it uploads.
_AT_ONCE = 8


class Uploads:
    """Those that one place has begun and not yet waited for."""

    def __init__(self, most: int | None = None) -> None:
        """None is under way.

        Args:
            most: so many are under way at most; None for any number.
        """
        self._most = most
        self._under_way: deque[Future[None]] = deque()

    def add(self, put: Callable[[str, Any], None], path: str, data: Any) -> None:
        """Have ``put`` called with the path and the bytes; if there are too many, wait first.

        Raises:
            Exception: of one that was waited for.
        """
        while self._most is not None and len(self._under_way) >= self._most:
            self._under_way.popleft().result()
        self._under_way.append(_pool().submit(put, path, data))

    def finish(self) -> None:
        """Wait for all of them.

        Raises:
            Exception: of the first that has failed.
        """
        begun, self._under_way = self._under_way, deque()
        failed = [error for upload in begun if (error := upload.exception()) is not None]
        if failed:
            raise failed[0]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="absflow-upload")
