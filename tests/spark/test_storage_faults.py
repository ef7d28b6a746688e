"""Every call to the storage made to fail in turn; the next start makes it good.

A call is named by its function and its path without numbers, so that "the next file of a channel's
log" is one call, however often it is made. Which calls there are is seen in lives without a fault:
the first of a job, one that goes on, and one that restores. Then each fails once, before it did
anything, or behind it: it was done, and its caller learns that it was not.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chain import chain, check, conf
from diamond import source_files
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from reading import facts
from session import settings

import absflow
from absflow.storage.delta import tables, transactions
from absflow.storage.files import Files

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

RESTORE = {"restore.from": "latest"}
# What another life calls otherwise: in names of data files there are UUIDs.
_NUMBERS = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9]+")
# Where the path is among the arguments, what a failure raises, and whether it may come behind.
CALLS: dict[tuple[Any, str], tuple[int, type[Exception], bool]] = {
    (Files, "read"): (1, absflow.StorageError, False),
    (Files, "exists"): (1, absflow.StorageError, False),
    (Files, "names"): (1, absflow.StorageError, False),
    (Files, "make_directory"): (1, absflow.StorageError, True),
    (Files, "write"): (1, absflow.StorageError, True),
    (Files, "delete"): (1, absflow.StorageError, True),
    (Files, "delete_folder"): (1, absflow.StorageError, True),
    (tables, "create"): (1, absflow.StorageError, True),
    (tables, "restore"): (1, absflow.StorageError, True),
    (tables, "read"): (1, absflow.StorageError, False),
    (transactions, "append_once"): (1, Py4JError, True),
}


@dataclass(frozen=True, order=True, slots=True)
class Fault:
    """A call that fails once, ``before`` or ``after`` it was done."""

    call: str
    when: str

    def __str__(self) -> str:
        return f"{self.when} {self.call}"


@dataclass(slots=True)
class Storage:
    """What a job has asked of the storage in one life."""

    fault: Fault | None
    met: set[Fault] = field(default_factory=set)
    failed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self, fault: Fault) -> bool:
        """Whether the call is to fail now."""
        with self.lock:
            self.met.add(fault)
            now = fault == self.fault and not self.failed
            self.failed = self.failed or now
            return now

    def around(self, name: str, real: Callable[..., Any], root: Path) -> Callable[..., Any]:
        """``real``, watched."""
        place, error, behind = next(how for (_, n), how in CALLS.items() if n == name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            below = args[place].partition(str(root))[2]
            call = f"{name} {_NUMBERS.sub('#', below)}"
            if self.fails(Fault(call, "before")):
                raise error(f"no answer from the storage: {call}")
            result = real(*args, **kwargs)
            if behind and self.fails(Fault(call, "after")):
                raise error(f"no answer from the storage: {call}, which was done")
            return result

        return watched


@dataclass(slots=True)
class Job:
    """The chain job below ``root``, which gets a file more in each of its lives."""

    spark: SparkSession
    root: Path
    mode: str
    files: int = 0

    def __post_init__(self) -> None:
        self._feed = source_files(self.root / "a", 40, seed=7)

    _feed: Iterator[None] = field(init=False)

    def live(self, fault: Fault | None, more: Mapping[str, str]) -> Storage:
        """Run until everything is read, or to the error, which must be one of absflow's own."""
        next(self._feed)
        self.files += 1
        storage = Storage(fault)
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in CALLS:
                patch.setattr(owner, name, storage.around(name, getattr(owner, name), self.root))
            given = {**conf(self.root), "restart.attempts": "1", "restart.initial-delay": "0s"}
            with settings(self.spark, {**given, **more}):
                try:
                    run = chain(self.spark, self.root, mode=self.mode).start()
                    assert run.await_termination(timeout=600), f"hangs: {fault}"
                except absflow.AbsflowError:
                    assert storage.failed, f"failed without {fault}"
        return storage

    def check(self) -> None:
        """One more life makes everything good."""
        assert not self.live(None, {}).failed
        done = [row for row in facts(self.spark, self.root / "job") if row["kind"] == "COMPLETED"]
        check(self.spark, self.root, done[-1]["checkpoint_id"], self.files)
        assert len({row["checkpoint_id"] for row in done}) == len(done)


def shuffled(faults: set[Fault]) -> list[Fault]:
    """In an order that says nothing."""
    chosen = sorted(faults)
    random.Random(11).shuffle(chosen)
    return chosen


@pytest.mark.parametrize("mode", ["on-checkpoint", "immediate"])
def test_nothing_is_lost_whatever_call_fails(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Each fault in a life of its own, which the next life goes on from."""
    job = Job(spark, tmp_path / "long", mode)
    begin = job.live(None, {}).met
    go_on = job.live(None, {}).met
    restore = job.live(None, RESTORE).met - go_on
    # A start that goes on asks for the same, but finds what a new job has to make.
    begin = {fault for fault in begin if fault.call.startswith(("create", "append /job/attempts"))}
    # Files of a table are read one by one while it has few; this job gets many.
    young = {fault for fault in go_on if "/part-" in fault.call}
    go_on -= young
    assert len(begin) >= 10
    assert len(restore) >= 10
    missed = [str(f) for f in shuffled(go_on) if not job.live(f, {}).failed]
    job.check()
    missed += [str(f) for f in shuffled(restore) if not job.live(f, RESTORE).failed]
    job.check()
    for number, fault in enumerate(shuffled(begin | young)):
        fresh = Job(spark, tmp_path / str(number), mode)
        if fault in young:
            fresh.live(None, {})
        missed += [] if fresh.live(fault, {}).failed else [str(fault)]
        fresh.check()
    # A poll may come too late to meet a commit that a shorter life did not wait for.
    assert len(missed) <= 2, missed
