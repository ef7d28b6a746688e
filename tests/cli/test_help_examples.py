"""Every command's help ends with examples, and each of them runs as it stands."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from shared_roots import write_small_root
from storage_roots import answer

from absflow.cli.commands import absflow
from absflow.facts.lock import hold

EXAMPLES = {name: command.examples for name, command in absflow.commands.items()}
# What starts Spark is run by tests/spark/test_new_job.py; serve and what asks a driver, below.
ELSEWHERE = {"restore", "serve", "savepoint", "stop"}
# The newest completed checkpoint is older than the monitor would have it, and lacks rows in flight.
EXIT_CODES = {
    "absflow status --max-age 10min": 1,
    "absflow verify": 1,
    "absflow changes aircraft --key tailnum=N14228": 1,  # it is no key of this job
}
HERE = [
    line
    for name, lines in EXAMPLES.items()
    for line in lines
    if name not in ELSEWHERE and "--properties-file" not in line
]


@pytest.fixture
def environment(tmp_path):
    """A shell in an empty folder of its own; the job of ABSFLOW_STORAGE has been killed."""
    write_small_root(tmp_path / "root")
    hold(f"file:{tmp_path / 'root'}", lambda: None).release()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".config" / "fish" / "completions").mkdir(parents=True)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"ABSFLOW_STORAGE": str(tmp_path / "root"), "PATH": programs}
    return {**os.environ, **own, "HOME": str(tmp_path / "here")}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_command_has_examples(name):
    assert EXAMPLES[name]
    assert all(line.startswith(f"absflow {name}") for line in EXAMPLES[name])


@pytest.mark.parametrize("line", HERE)
def test_an_example_runs(line, environment):
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_CODES.get(line, 0), done.stderr
    assert done.stdout or done.stderr or ">" in line


@pytest.mark.parametrize("line", EXAMPLES["serve"])
def test_a_page_is_served(line, environment):
    """Until ctrl-c; a port that somebody else has is the only reason why not."""
    program = shutil.which("absflow", path=environment["PATH"])
    command = [program, *line.split()[1:], *([] if "--port" in line else ["--port", "0"])]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        with urllib.request.urlopen(server.stdout.readline().split()[0], timeout=60) as page:
            assert b"<title>" in page.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0


@pytest.mark.parametrize("line", [*EXAMPLES["savepoint"], *EXAMPLES["stop"]])
def test_a_driver_is_asked(line, environment):
    """Here it is this process that runs the job, and answers."""
    root = write_small_root(Path(environment["HOME"]) / "running")
    lock = hold(f"file:{root.path}", lambda: None)
    command = line.replace("/data/job", str(root.path)).split()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as asking:
        asked = answer(root, 60, kind="COMPLETED", checkpoint_id=8)
        assert asking.stdout.read().startswith("savepoint 8 of the job under ")
        assert asking.wait(timeout=60) == 0
    lock.release()
    assert asked["stop"] == line.startswith("absflow stop")
