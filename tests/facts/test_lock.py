"""The lock of a storage root, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from absflow.errors import StorageError
from absflow.facts import lock
from absflow.facts.lock import hold

# A driver: says when it has the lock, and runs until another asks for it.
DRIVER = """
import os, sys, time
from absflow.facts.lock import hold

folder, log, stubborn = sys.argv[1], sys.argv[2], len(sys.argv) > 3
held = hold(f"file:{folder}", lambda: None)
with open(log, "a", buffering=1) as out:
    out.write(f"in {os.getpid()}\\n")
    print("held", flush=True)
    while stubborn or (asked := held.asked()) is None:
        time.sleep(0.02)
    print(asked, flush=True)
    out.write(f"out {os.getpid()}\\n")
held.release()
"""

Driver = subprocess.Popen[str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drivers; what still runs at the end is killed."""
    started: list[Driver] = []

    def driver(*more: str) -> Driver:
        command = [sys.executable, "-c", DRIVER, str(tmp_path), str(tmp_path / "log"), *more]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield driver
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def said(process: Driver) -> str:
    """The next line of a driver, as soon as it is there."""
    return process.stdout.readline().strip()


def nothing() -> None:
    """Nothing stands against the start."""


def refuse() -> None:
    raise LookupError


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("driver"))


def test_a_newer_driver_gets_the_lock_when_the_holder_lets_go(tmp_path, start) -> None:
    """The holder learns who asks while it holds; the note is gone when the newer has the lock."""
    older = start()
    assert said(older) == "held"
    held = hold(f"file:{tmp_path}", nothing)
    assert said(older).startswith(f"pid {os.getpid()} on ")
    assert held.held
    assert held.asked() is None
    assert (tmp_path / "driver.lock").read_text().startswith(f"pid {os.getpid()} on ")
    assert files_of(tmp_path) == ["driver.lock"]
    held.release()
    assert not held.held


def test_a_holder_that_does_not_let_go_keeps_the_lock(tmp_path, start, monkeypatch) -> None:
    """The newer learns who holds it and what to do, and withdraws its note."""
    older = start("stubborn")
    assert said(older) == "held"
    monkeypatch.setattr(lock, "TAKEOVER_WAIT_S", 0.5)
    with pytest.raises(StorageError, match=rf"pid {older.pid} on .* Stop it, by a signal"):
        hold(f"file:{tmp_path}", nothing)
    assert files_of(tmp_path) == ["driver.lock"]
    assert older.poll() is None


def test_a_start_that_is_refused_asks_nobody_to_stop(tmp_path) -> None:
    """What stands against it is found before the holder is asked, and only if there is one."""
    held = hold(f"file:{tmp_path}", refuse)
    with pytest.raises(LookupError):
        hold(f"file:{tmp_path}", refuse)
    assert held.asked() is None
    held.release()


def test_a_killed_holder_holds_nothing(tmp_path, start, monkeypatch) -> None:
    """A restart after SIGKILL waits for nothing."""
    older = start("stubborn")
    assert said(older) == "held"
    older.send_signal(signal.SIGKILL)
    older.wait()
    monkeypatch.setattr(lock, "TAKEOVER_WAIT_S", 0.0)
    hold(f"file:{tmp_path}", nothing).release()


def test_a_child_does_not_keep_what_its_parent_let_go_of(tmp_path, monkeypatch) -> None:
    """A forked one has the lock file open too, and may live on."""
    held = hold(f"file:{tmp_path}", nothing)
    with subprocess.Popen(["sleep", "600"], pass_fds=[held._file]) as child:
        try:
            held.release()
            monkeypatch.setattr(lock, "TAKEOVER_WAIT_S", 0.0)
            hold(f"file:{tmp_path}", nothing).release()
        finally:
            child.kill()


def test_a_note_of_a_dead_driver_asks_for_nothing(tmp_path) -> None:
    """It was killed while it waited; who has the lock now is not to stop for it."""
    (tmp_path / "driver.takeover").write_text("pid 1 on nowhere")
    held = hold(f"file:{tmp_path}", nothing)
    assert held.asked() is None
    held.release()


def test_of_many_drivers_one_runs_at_a_time(tmp_path, start) -> None:
    """Each stops for the next, whoever that is, and none waits in vain."""
    drivers = [start() for _ in range(5)]
    held = hold(f"file:{tmp_path}", nothing)
    while not all(driver.poll() == 0 for driver in drivers):
        held.release()
        held = hold(f"file:{tmp_path}", nothing)
    held.release()
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    turns = list(zip(lines[::2], lines[1::2], strict=True))
    assert len(turns) == 5
    assert all(came == f"in {went.removeprefix('out ')}" for came, went in turns)


def test_a_second_run_in_one_process_is_another_driver(tmp_path, monkeypatch) -> None:
    """The lock is the run's, not the process's."""
    held = hold(f"file:{tmp_path}", nothing)
    monkeypatch.setattr(lock, "TAKEOVER_WAIT_S", 0.0)
    with pytest.raises(StorageError, match=f"pid {os.getpid()} "):
        hold(f"file:{tmp_path}", nothing)
    held.release()
    hold(f"file:{tmp_path}", nothing).release()


def test_there_is_no_lock_elsewhere() -> None:
    """On an object store nothing is held, nobody is asked, and nothing is let go of."""
    held = hold("s3a://bucket/job", nothing)
    assert not held.held
    assert held.asked() is None
    held.release()


def test_a_directory_that_cannot_be_locked_is_refused(tmp_path) -> None:
    """The message names the lock file."""
    with pytest.raises(StorageError, match=r"could not lock .*nowhere/driver.lock"):
        hold(f"file:{tmp_path}/nowhere", nothing)
