"""A driver learns of a newer one, from the table of claims and from the lock."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from absflow.errors import FencedError, JobFailedError
from absflow.facts.fence import Fence
from absflow.facts.lock import RootLock

NO_LOCK = RootLock("", None)


class Log:
    """The log of ``attempts``."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.reads = 0

    def claim(self, note: Any) -> None:
        """A commit, as Delta writes it; some at 2026-01-02 03:04:05 UTC."""
        name = f"t/_delta_log/{len(self.files):020d}.json"
        info = {"timestamp": 1767323045000, "userMetadata": json.dumps(note)}
        self.files[name] = json.dumps({"commitInfo": info})

    def read(self, path: str) -> str | None:
        self.reads += 1
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.files]


def test_a_newer_claim_fences_for_good() -> None:
    """The error says who took over and when; own and older claims are none."""
    log = Log()
    fence = Fence(log.read, log.names, "t", 4, NO_LOCK)
    fence.check()
    for incarnation in (3, 4, 4):
        log.claim({"incarnation": incarnation})
    fence.check()
    log.claim({"incarnation": 5})
    log.claim({"incarnation": 4})
    for _ in range(2):
        with pytest.raises(FencedError, match=r"incarnation 5 .* at 2026-01-02 03:04:05 UTC"):
            fence.check()
    assert issubclass(FencedError, JobFailedError)


def test_commits_of_others_are_no_claims() -> None:
    """Somebody may compact the table, or note what he likes."""
    log = Log()
    fence = Fence(log.read, log.names, "t", 4, NO_LOCK)
    for note in ({}, {"incarnation": "nine"}, "words", {"other": 9}):
        log.claim(note)
    fence.check()


def test_a_look_reads_nothing_that_grows() -> None:
    """It asks for one file that is not there."""
    log = Log()
    for _ in range(50):
        log.claim({"incarnation": 1})
    fence = Fence(log.read, log.names, "t", 1, NO_LOCK)
    fence.check()
    before = log.reads
    fence.check()
    assert log.reads == before + 1


def test_where_a_look_is_paid_for_writes_at_once_have_one(monkeypatch) -> None:
    """It stands for half a second, by a clock that goes on while a driver is paused."""
    log, now = Log(), 0
    monkeypatch.setattr("absflow.facts.fence.clock.steady_ms", lambda: now)
    fence = Fence(log.read, log.names, "t", 4, NO_LOCK, paid=True)
    fence.check()
    log.claim({"incarnation": 5})
    before = log.reads
    now = 499
    fence.check()
    assert log.reads == before
    now = 500
    for _ in range(2):
        with pytest.raises(FencedError, match="driver incarnation 5"):
            fence.check()


def test_a_note_beside_the_lock_fences(tmp_path) -> None:
    """Before the newer can claim at all; and for good, though the note goes."""
    log, note = Log(), tmp_path / "note"
    with (tmp_path / "lock").open("w") as held:
        fence = Fence(log.read, log.names, "t", 4, RootLock(str(note), held.fileno()))
        fence.check()
        note.write_text("pid 7 on here")
        with pytest.raises(FencedError, match="takes the job over: pid 7 on here"):
            fence.check()
        note.unlink()
        with pytest.raises(FencedError, match="pid 7 on here"):
            fence.check()


def test_threads_look_one_after_the_other() -> None:
    """Two that read one commit at once would pass over the next."""
    log, inside, most = Log(), 0, 0

    def read(path: str) -> str | None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)  # lets another thread in, if any can come
        inside -= 1
        return log.read(path)

    fence = Fence(read, log.names, "t", 1, NO_LOCK)
    before = log.reads
    threads = [threading.Thread(target=fence.check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, log.reads - before) == (1, 8)
