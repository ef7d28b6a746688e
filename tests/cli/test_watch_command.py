"""``absflow watch``: it follows a job until its driver has ended."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from commands_run import failure, run
from shared_roots import write_small_root
from storage_roots import complete, end_driver

from absflow.facts.lock import hold

PROGRAM = [str(Path(sys.executable).with_name("absflow")), "watch", "--every", "0.1", "--storage"]


@pytest.fixture
def running(tmp_path):
    """A job that this process runs."""
    root = write_small_root(tmp_path)
    lock = hold(f"file:{tmp_path}", lambda: None)
    yield root
    lock.release()


def test_a_job_that_is_dead_is_looked_at_once(tmp_path):
    """Nothing ends any more, and it says how the driver ended."""
    root = write_small_root(tmp_path)
    hold(f"file:{tmp_path}", lambda: None).release()
    done = run(root, "watch")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[1:] == ["driver 2 has gone"]


def test_without_a_job_there_is_nothing_to_follow(tmp_path):
    assert "is not the storage root of a job" in failure(tmp_path, "watch")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_for_each_checkpoint_that_ends(running, as_json):
    """From the first look on, each once and in order; then the driver ends, and so does it."""
    command = [*PROGRAM, str(running.path), *(["--json"] if as_json else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stderr.readline().endswith("completed last: checkpoint 8\n")
        complete(running, 9)
        first = watching.stdout.readline()
        complete(running, 10, kind="ABORTED", reason="EXPIRED", stages=None)
        complete(running, 11)
        end_driver(running)
        rest = watching.stdout.read().splitlines()
        assert watching.wait(timeout=60) == 0
    lines = [first, *rest]
    if as_json:
        found = [json.loads(line) for line in lines]
        assert [(r["checkpoint_id"], r["status"]) for r in found] == [
            (9, "COMPLETED"),
            (10, "ABORTED"),
            (11, "COMPLETED"),
        ]
    else:
        assert " checkpoint 9 completed in " in first
        assert " checkpoint 10 aborted: EXPIRED" in rest[0]
        assert " checkpoint 11 completed in " in rest[1]


def test_on_a_terminal_it_is_one_screen_until_ctrl_c(running):
    """The status, and the newest checkpoints below it."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "60"}
    with subprocess.Popen(
        [*PROGRAM, str(running.path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as watching:
        os.close(theirs)
        seen = b""
        while b"PENDING" not in seen:
            assert select.select([ours], [], [], 120)[0], seen
            seen += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        with suppress(OSError):  # it has ended
            while chunk := os.read(ours, 4096):
                seen += chunk
        assert watching.wait(timeout=60) == 0
    os.close(ours)
    assert b"which has not ended" in seen and b"COMPLETED" in seen
