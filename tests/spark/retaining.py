"""The chain job with a short retention, as a program that dies on cue.

``python retaining.py ROOT NUMBER [POINT]`` runs it until NUMBER checkpoints have completed and a
plan of retention that found them was carried out; the newest that this plan found goes into
ROOT/planned. Or it kills its own process group with SIGKILL when retention comes to ``POINT``: the
name of an action, and before it, after it, or between the two writes of it. With ``restore`` behind
it, it begins a new attempt with the latest checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from chain import chain

from absflow.spark.control import retention, tidying
from absflow.spark.control.facts_wanted import FactWanted
from absflow.spark.control.retention import Retention

SETTINGS = {
    "checkpoint.interval": "500ms",
    "edges": "channel",
    "checkpoint.retained": "2",
    "lineage.max-sets": "3",
    "key-groups": "2",
}
POINTS = (
    "DeleteManifest before",
    "DeleteManifest after",
    "Compact before",
    "Compact between",
    "Compact after",
    "DeleteSets before",
    "DeleteSets after",
    "DeleteEpochs before",
    "DeleteEpochs after",
    "DropChannels before restore",
    "DropWorkingDirectory before restore",
    "DropWorkingDirectory after",
)


def hurry() -> None:
    """Plan after every checkpoint, and let files go at once."""
    retention.EVERY = 0.0
    retention.REST = 0.0
    tidying.RETAIN = "RETAIN 0 HOURS"
    tidying.VACUUM_EVERY = 3.0
    tidying.MANY_FILES = 10
    retention.SUM_UP_EVERY = 5


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _die_at(point: str) -> None:
    name, when, *_ = point.split()
    do, write = Retention._do, Retention._write

    def dying(self: Retention, action: Any, found: Any) -> None:
        mine = type(action).__name__ == name != "DeleteManifest"
        if mine and when == "before":
            _die()
        do(self, action, found)
        if mine and when == "after":
            _die()

    def writing(self: Retention, wanted: FactWanted) -> None:
        if (name, when) in {("DeleteManifest", "before"), ("Compact", "between")}:
            if bool(wanted.deleted) is (name == "DeleteManifest"):
                _die()
        write(self, wanted)
        if wanted.deleted and (name, when) == ("DeleteManifest", "after"):
            _die()

    Retention._do = dying  # type: ignore[method-assign]
    Retention._write = writing  # type: ignore[method-assign]


def _planned() -> list[int]:
    """What each plan that was carried out has found as the newest checkpoint; filled as it goes."""
    found: list[int] = []
    planned: list[int] = []
    gather, clean = Retention._gather, Retention._clean

    def gathering(self: Retention, *asked: Any) -> Any:
        there = gather(self, *asked)
        found.append(max(c.checkpoint_id for c in there.inventory.completed))
        return there

    def cleaning(self: Retention) -> None:
        clean(self)
        planned.append(found[-1])

    Retention._gather = gathering  # type: ignore[method-assign]
    Retention._clean = cleaning  # type: ignore[method-assign]
    return planned


def main(root: Path, number: int, point: str) -> None:
    """Run the job in this process."""
    from session import builder, with_delta

    start = builder().config("spark.absflow.storage.path", str(root / "job"))
    for name, value in SETTINGS.items():
        start = start.config(f"spark.absflow.{name}", value)
    if point.endswith("restore"):
        start = start.config("spark.absflow.restore.from", "latest")
    spark = with_delta(start).getOrCreate()
    hurry()
    if point:
        _die_at(point)
    planned = _planned()
    run = chain(spark, root, bounded=False).start()
    while run.is_active and run.progress().completed < number:
        time.sleep(0.1)
    newest = run.progress().checkpoint_id or 0
    while run.is_active and max(planned, default=0) < newest:
        time.sleep(0.1)
    run.stop()
    (root / "planned").write_text(str(planned[-1]))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
