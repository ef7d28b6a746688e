"""Where a driver can be made to die, and the program that runs a job in which it does.

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
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outside import LANE_POINTS

from absflow.spark.control import retention
from absflow.storage.delta import transactions

__all__ = [
    "ALL_POINTS",
    "MAX_SETS",
    "OUTSIDE_POINTS",
    "OVERTAKE_POINTS",
    "POINTS",
    "PUBLICATION_POINTS",
    "RESTORE_POINTS",
    "RETAINED",
    "RETENTION_POINTS",
    "STARTED",
    "Point",
    "owner_of",
]

STARTED = "started"


def _always(*_: Any) -> bool:
    return True


def _on(part: str) -> Callable[..., bool]:
    return lambda _, path, *rest, **named: part in path


def _channel(remainder: int) -> Callable[..., bool]:
    """Commits of rows (0) or of barriers (1) to a channel."""
    return lambda _, path, app, version, *rest, **named: (
        "/channels/" in path and version % 2 == remainder
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A place before or after the call of a function.

    Attributes:
        function: ``module:name`` or ``module:class.name``, where its callers look it up.
        when: ``before`` or ``after`` the call.
        is_meant: which calls, known by their arguments.
        often: how many times a life surely comes by, if the one before left it the occasion.
        completed: how many checkpoints must have completed before such a life.
    """

    function: str
    when: str
    is_meant: Callable[..., bool] = _always
    often: int = 3
    completed: int = 0


def _around(name: str, function: str, *more: Any, **named: Any) -> dict[str, Point]:
    return {f"{when} {name}": Point(function, when, *more, **named) for when in ("before", "after")}


_APPEND = "absflow.storage.delta.transactions:append_once"
_WRITE = "absflow.storage.files:Files.write"
_DELETE = "absflow.storage.files:Files.delete"
# Of `checkpoint.retained` and `lineage.max-sets`: few, so that retention has something to do.
RETAINED, MAX_SETS = 5, 3

POINTS: dict[str, Point] = {
    **_around("channel commit", _APPEND, _channel(0)),
    **_around("barrier commit", _APPEND, _channel(1)),
    **_around("sink commit", _APPEND, _on("/sink")),
    **_around("state append", _APPEND, _on("/state/")),
    **_around("trigger commit", _APPEND, _on("/barriers")),
    **_around("keeping of a position", "absflow.spark.sources.positions:SourceLogs.keep"),
    **_around("checkpoints commit", "absflow.facts.writer:FactWriter.write_completion"),
    **_around("commit of an abort", "absflow.facts.writer:FactWriter.write_abort", often=1),
    **_around("staging of a snapshot", "absflow.spark.batch.stage:ChainStage._stage_pages"),
    **_around("saving of the alignment", "absflow.spark.batch.alignment_log:AlignmentLog.save"),
    **_around("claim of the storage root", _APPEND, _on("/attempts"), often=1),
    "before Spark's commit": Point(
        "absflow.spark.batch.micro_batch:ChainBatches.__call__", "after"
    ),
    "after Spark's commit": Point(
        "absflow.spark.batch.listener:QueryListener.progressed", "before"
    ),
}
# Met only by a job with an on-checkpoint sink.
PUBLICATION_POINTS: dict[str, Point] = {
    **_around("publication", "absflow.spark.control.publisher:Publisher._write"),
    **_around("note of a publication", _WRITE, lambda self, path, text: "/_published/" in path),
}

_DRIVER, _RETENTION = (
    "absflow.facts.writer:FactWriter",
    "absflow.spark.control.retention:Retention",
)
# There is something to delete and to compact, once; the next life finds it done.
_SURPLUS = {"often": 1, "completed": RETAINED + 1}
RETENTION_POINTS: dict[str, Point] = {
    **_around("deletion of manifests", f"{_DRIVER}.write_deleted", **_SURPLUS),
    **_around("compaction", f"{_RETENTION}._compact", **_SURPLUS),
    **_around("commit of a compaction", f"{_DRIVER}.write_compacted", **_SURPLUS),
    **_around("deletion of sets or epochs", f"{_RETENTION}._delete", **_SURPLUS),
}

# Met only where every checkpoint overtakes.
OVERTAKE_POINTS: dict[str, Point] = {
    **_around("overtake commit", f"{_DRIVER}.write_overtake", often=1),
    **_around("resolution of channel state", f"{_DRIVER}.with_channel_state", often=1),
}

# Met only in a life that restores.
RESTORE_POINTS: dict[str, Point] = {
    **_around("seeding of a stage", "absflow.spark.start.restore_run:_seed", completed=1),
    **_around("putting back of a sink", "absflow.sinks:DeltaSink.restore", often=1, completed=1),
    **_around("deletion of a directory", _DELETE, _on("attempt="), often=1, completed=1),
}

# Met only by a job with a sink outside; those of a lane in the executors' Python, by that sink
# itself (:mod:`outside`).
OUTSIDE_POINTS: dict[str, Point] = {
    **{name: Point("", when=name.split(" ", 1)[0], often=6) for name in LANE_POINTS},
    **_around("note of what went outside", _WRITE, _on("/_published/outside")),
}

ALL_POINTS = POINTS | PUBLICATION_POINTS | RETENTION_POINTS | OVERTAKE_POINTS | RESTORE_POINTS
ALL_POINTS |= OUTSIDE_POINTS


def owner_of(function: str) -> tuple[Any, str]:
    """The module or class that holds a function, and the function's name in it."""
    module, _, path = function.partition(":")
    *classes, name = path.split(".")
    return functools.reduce(getattr, classes, importlib.import_module(module)), name


class _Watch:
    """Notes the points as the program comes to them, and dies at one."""

    def __init__(self, progress: Path, order: str) -> None:
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


_WAYS = ("by workers", "staging")


def _take_a_way(way: str) -> None:
    """How snapshots come into the state history in this life; the next may have another."""
    if way != "by workers":  # as if they might not: this asks for the state histories only
        transactions.plain_table = lambda *_: None


def main(program: str, arguments: list[str]) -> None:
    """Run ``program`` in this process as if it had been started by itself."""
    if Path("/proc").exists():
        loop = int(os.environ["CHAOS_LOOP"])
        threading.Thread(target=_die_with, args=(loop,), daemon=True).start()
    order = os.environ.get("CHAOS_DIE", "")
    watch = _Watch(Path(os.environ["CHAOS_PROGRESS"]), order)
    watch.comes_to(STARTED)
    retention.EVERY = retention.WHERE_PAID = 2.0
    retention.REST = 1.0
    _take_a_way("staging" if "staging" in order else _WAYS[zlib.crc32(order.encode()) % len(_WAYS)])
    for name, point in ALL_POINTS.items():
        if point.function:
            watch.install(name, point)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
