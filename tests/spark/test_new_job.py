"""What ``absflow new`` writes runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from absflow.cli.commands import absflow

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]


BIN = Path(sys.executable).parent
# They would let the job find more than what is installed, or what a new shell does not know.
TOO_MUCH = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV"}


def shell(folder: Path, script: str) -> str:
    """What the lines print, in a shell in which the environment is not activated."""
    path = [each for each in os.environ["PATH"].split(":") if Path(each) != BIN]
    inherited = {name: value for name, value in os.environ.items() if name not in TOO_MUCH}
    environment = {**inherited, "PATH": ":".join(path), "SPARK_LOCAL_IP": "127.0.0.1"}
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
    """Every line as it is printed, from activating the environment to the written test."""
    advice = shell(tmp_path, f"{BIN / 'absflow'} new visits")
    commands = advice.split("\n\n", 1)[1]
    printed = shell(tmp_path, f"exec 2>&1\n{commands}")
    assert re.search(r"^[\d :,-]+ job 'visits' started on \S+: attempt 1,", printed, re.MULTILINE)
    assert "all input is read; the last checkpoint is" in printed
    assert "0 aborted, 0 pending" in printed
    assert "2 of 2 keys of visits at checkpoint" in printed
    assert "3 passed" in printed
    # The examples that the help of these commands ends with, as they stand.
    ready = "\n".join(commands.splitlines()[:2])
    for line in (each for each in absflow.commands["doctor"].examples if "--prop" in each):
        assert "WRONG" not in shell(tmp_path, f"{ready}\n{line}")
    newest, by_time = absflow.commands["restore"].examples
    said = shell(tmp_path, f"exec 2>&1\n{ready}\n{newest}")
    assert re.search(r"job 'visits' started on \S+: attempt 2,", said)
    # The job is younger than the example.
    said = shell(tmp_path, f"exec 2>&1\n{ready}\n! {by_time}")
    assert "no completed checkpoint" in said
