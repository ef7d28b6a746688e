"""Where a driver can be told to die, and the program that runs a job in which it does.

``spark-submit ... points.py PROGRAM ARGUMENT...`` runs a program. It writes a line into the file
``CHAOS_PROGRESS`` whenever it comes to one of :data:`POINTS`, and where it comes to the point
that ``CHAOS_DIE`` names for the given time (``2 after sink commit``) it kills its own process
group, Python driver and JVM at once, with SIGKILL. The command is the same for every life of a job.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["POINTS", "RESTORE_POINTS", "STARTED", "Point", "owner_of"]

STARTED = "started"


def _always(*_: Any) -> bool:
    return True


def _appends_to(part: str) -> Callable[..., bool]:
    return lambda frame, path, *_: part in path


def _channel(remainder: int) -> Callable[..., bool]:
    """Commits of rows (0) or of barriers (1) to a channel."""
    return lambda frame, path, app, version, *_: "/channels/" in path and version % 2 == remainder


@dataclass(frozen=True, slots=True)
class Point:
    """A place before or after the call of a function.

    Attributes:
        function: ``module:name`` or ``module:class.name``, where its callers look it up.
        when: ``before`` or ``after`` the call.
        is_meant: which calls, told from their arguments.
        often: how many times a life surely comes by, if the one before left it the occasion.
    """

    function: str
    when: str
    is_meant: Callable[..., bool] = _always
    often: int = 3


def _around(
    name: str, function: str, is_meant: Callable[..., bool] = _always, often: int = 3
) -> dict[str, Point]:
    return {
        f"{when} {name}": Point(function, when, is_meant, often) for when in ("before", "after")
    }


_APPEND = "absflow.storage.tables:append"

POINTS: dict[str, Point] = {
    **_around("channel commit", _APPEND, _channel(0)),
    **_around("barrier commit", _APPEND, _channel(1)),
    **_around("sink commit", _APPEND, _appends_to("/sink")),
    **_around("state append", _APPEND, _appends_to("/state/")),
    **_around("trigger commit", _APPEND, _appends_to("/barriers")),
    **_around("keeping of a position", "absflow.spark.positions:SourceLogs.keep"),
    **_around("checkpoints commit", "absflow.spark.driver:Tables.write_completion"),
    **_around("commit of an abort", "absflow.spark.driver:Tables.write_abort", often=1),
    **_around("staging of a snapshot", "absflow.spark.batch:StageBatches._stage_snapshot"),
    **_around("saving of the alignment", "absflow.spark.alignment_log:AlignmentLog.save"),
    **_around("claim of the storage root", _APPEND, _appends_to("/attempts"), often=1),
    "before Spark's commit": Point("absflow.spark.batch:StageBatches.__call__", "after"),
    "after Spark's commit": Point("absflow.spark.listener:QueryListener.onQueryProgress", "before"),
}


# Met only in a life that restores.
RESTORE_POINTS: dict[str, Point] = {
    **_around("seeding of a stage", "absflow.spark.restore:_seed"),
    **_around("putting back of a sink", "absflow.sinks:DeltaSink.restore", often=1),
}


def owner_of(function: str) -> tuple[Any, str]:
    """The module or class that holds a function, and the function's name in it."""
    module, _, path = function.partition(":")
    *classes, name = path.split(".")
    return functools.reduce(getattr, classes, importlib.import_module(module)), name


class _Watch:
    """Notes the points as the program comes to them, and dies at one."""

    def __init__(self, progress: Path, order: str | None) -> None:
        number, _, self._name = (order or "0 ").partition(" ")
        self._left = int(number)
        self._file = os.open(progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()  # batches of several stages come by at the same time

    def comes_to(self, name: str) -> None:
        with self._lock:
            os.write(self._file, f"{time.time_ns() // 1_000_000} {name}\n".encode())
            if name == self._name:
                self._left -= 1
                if self._left == 0:
                    os.killpg(os.getpgrp(), signal.SIGKILL)

    def install(self, name: str, point: Point) -> None:
        owner, attribute = owner_of(point.function)
        function = getattr(owner, attribute)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            is_meant = point.is_meant(*args, **kwargs)
            if is_meant and point.when == "before":
                self.comes_to(name)
            result = function(*args, **kwargs)
            if is_meant and point.when == "after":
                self.comes_to(name)
            return result

        setattr(owner, attribute, watched)


def _die_with(loop: int) -> None:
    """End this group when the process of the kill loop is gone: nobody else would."""
    while Path(f"/proc/{loop}").exists():
        time.sleep(1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(program: str, arguments: list[str]) -> None:
    """Run ``program`` in this process as if it had been started by itself."""
    if Path("/proc").exists():
        loop = int(os.environ["CHAOS_LOOP"])
        threading.Thread(target=_die_with, args=(loop,), daemon=True).start()
    watch = _Watch(Path(os.environ["CHAOS_PROGRESS"]), os.environ.get("CHAOS_DIE"))
    watch.comes_to(STARTED)
    for name, point in (POINTS | RESTORE_POINTS).items():
        watch.install(name, point)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
