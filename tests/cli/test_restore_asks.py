"""``absflow restore`` before it begins: what it refuses beside a driver, and what it asks."""

import os
import sys

import pytest
from click.testing import CliRunner
from commands_run import typed_into
from shared_roots import aircraft, write_small_root
from storage_roots import write_root

from absflow.cli import submit
from absflow.cli.commands import absflow
from absflow.facts.lock import hold

pytestmark = pytest.mark.usefixtures("job_program")


@pytest.fixture
def root(tmp_path):
    """Completed are 1, 3, 4, 5, 6 and 8."""
    return write_small_root(tmp_path / "job")


@pytest.fixture
def started(monkeypatch):
    """What spark-submit would have been run with, from ``restore.from`` on."""
    runs = []

    def become(command):
        asked = next(part for part in command if part.startswith("spark.absflow.restore.from="))
        runs.append(asked.partition("=")[2])
        raise SystemExit(0)

    monkeypatch.setattr(submit, "become", become)
    return runs


def restore(root, *arguments):
    """What a command line does without a terminal."""
    given = ["restore", "--storage", str(root.path), *arguments, "job.py"]
    return CliRunner().invoke(absflow, given)


# -- beside a driver --------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["3", "latest", "{}#3"])
def test_beside_a_driver_it_is_refused(root, started, target):
    """By its process; when that has let go, the same command goes on."""
    target = target.format(root.path)
    lock = hold(f"file:{root.path}", lambda: None)
    done = restore(root, "--from", target, "--yes")
    assert (done.exit_code, done.stdout, started) == (1, "", [])
    assert f"a driver runs the job under {str(root.path)!r} (pid {os.getpid()} on" in done.stderr
    assert "Stop it first, as by absflow stop" in done.stderr
    lock.release()
    assert restore(root, "--from", target, "--yes").exit_code == 0
    assert started == [target.rpartition("#")[2]]


def test_a_driver_of_the_other_root_is_none_of_a_forks(root, started, tmp_path):
    """It is forked while it runs."""
    fork = write_root(tmp_path / "fork", [aircraft()], [])
    lock = hold(f"file:{root.path}", lambda: None)
    done = restore(fork, "--from", f"{root.path}#3")
    assert (done.exit_code, started) == (0, [f"{root.path}#3"])
    lock.release()


# -- the job's own root -----------------------------------------------------------------------


@pytest.mark.parametrize("own", ["{}", "file://{}", "{}/"])
def test_path_and_id_of_the_own_root_is_the_id(root, started, own):
    """Under any of its names; and it is said."""
    done = restore(root, "--from", f"{own.format(root.path)}#3")
    assert started == ["3"]
    assert done.stderr == "this is the job's own storage root, so the same as --from 3\n"


# -- a time -----------------------------------------------------------------------------------


def test_the_checkpoint_of_a_time(root, started):
    """The newest that was triggered by then; it is said which one that is."""
    done = restore(root, "--at", "2026-01-02 09:00:45")
    assert started == ["4"]
    assert done.stderr == "checkpoint 4 is meant, triggered at 2026-01-02 09:00:40 UTC\n"


@pytest.mark.parametrize("given", [(), ("--at", "2026-01-02", "--from", "3")])
def test_from_and_at_are_one_or_the_other(root, started, given):
    done = restore(root, *given)
    assert (done.exit_code, started) == (2, [])
    assert "of --from and --at; give one" in done.stderr


def test_a_time_needs_a_root_that_is_known_here(started):
    """The program may name it, but has not run yet."""
    done = CliRunner().invoke(
        absflow, ["restore", "--at", "2026-01-02", "job.py"], env={"ABSFLOW_STORAGE": None}
    )
    assert (done.exit_code, started) == (2, [])
    assert "--at needs the storage root" in " ".join(done.stderr.split())


# -- what it asks -----------------------------------------------------------------------------


def test_without_a_terminal_nobody_is_asked(root, started):
    """A supervisor restores from the latest at every start."""
    done = restore(root, "--from", "latest")
    assert (done.exit_code, done.output, started) == (0, "", ["latest"])


@pytest.mark.parametrize(
    ("arguments", "typed", "runs"),
    [
        (("--from", "3"), b"n\n", False),
        (("--from", "3"), b"y\n", True),
        (("--from", "3", "--yes"), b"", True),
    ],
)
def test_on_a_terminal_it_asks_before_a_job_goes_back(root, tmp_path, arguments, typed, runs):
    """What it goes back to, and what is taken back; only a yes, or --yes, does it."""
    code, seen = typed_into(main(tmp_path, "--storage", str(root.path), *arguments), typed)
    asked = f"The job under {root.path} goes back to checkpoint 3; its newest is 8."
    assert (asked in seen, "[y/N]" in seen) == ("--yes" not in arguments,) * 2
    assert (code, "restored" in seen) == ((0, True) if runs else (1, False))


def test_where_there_is_no_job_yet_nothing_is_asked(root, tmp_path):
    """A fork into a new root takes nothing from anybody."""
    given = ("--storage", str(tmp_path / "new"), "--from", f"{root.path}#3")
    code, seen = typed_into(main(tmp_path, *given), b"")
    assert (code, seen) == (0, "restored\r\n")


def main(folder, *arguments):
    """The command, with a spark-submit that says ``restored``."""
    tool = folder / "spark-submit"
    tool.write_text("#!/bin/sh\necho restored\n")
    tool.chmod(0o755)
    program = (
        "from absflow.cli import submit\n"
        f"submit.spark_submit = lambda: {str(tool)!r}\n"
        "from absflow.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", program, "restore", *arguments, "job.py"]
    return command
