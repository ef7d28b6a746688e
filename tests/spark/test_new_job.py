"""What ``absflow new`` writes runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def shell(folder: Path, script: str) -> str:
    """What the lines print, in a shell that has this environment's programs."""
    bin_folder = str(Path(sys.executable).parent)
    # PYTHONPATH would let the job find more than what is installed.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {
        **inherited,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_the_commands_that_are_printed_run_the_job_and_its_test(tmp_path: Path) -> None:
    """spark-submit, the history, the state and the written test: every line as it is printed."""
    advice = shell(tmp_path, "absflow new visits")
    commands = advice.split("\n\n", 1)[1]
    printed = shell(tmp_path, commands)
    assert "all input is read; the last checkpoint is" in printed
    assert "0 aborted, 0 pending" in printed
    assert "2 of 2 keys of visits at checkpoint" in printed
    assert "1 passed" in printed
