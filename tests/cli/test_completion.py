"""``absflow completion``: what a shell is offered."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands_run import succeed

FOLDER = str(Path(sys.executable).parent)


def offered(root, typed, at):
    """What click offers bash for the word ``at`` of what was typed."""
    environment = {
        **os.environ,
        "PATH": f"{FOLDER}{os.pathsep}{os.environ['PATH']}",
        "_ABSFLOW_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(at),
        "ABSFLOW_STORAGE": str(root),
    }
    done = subprocess.run(["absflow"], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell):
    """Where the shell is here, it finds no mistake in it."""
    script = succeed(None, "completion", shell)
    assert "_ABSFLOW_COMPLETE" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_commands_and_options(small):
    assert offered(small.path, "absflow st", 1) == ["state", "status", "stop"]
    assert "--max-age" in offered(small.path, "absflow status --m", 2)


def test_stages_and_checkpoints(small, tmp_path):
    """Those of the job whose root is given; none without one, and no error in the shell's line."""
    assert offered(small.path, "absflow state a", 2) == ["aircraft"]
    assert offered(small.path, "absflow show ", 2)[:3] == ["latest", "8", "6"]
    assert offered(tmp_path, "absflow state a", 2) == []
    assert offered(tmp_path, "absflow show ", 2) == ["latest"]


def test_bash_completes(small):
    """The script in a real bash."""
    script = succeed(None, "completion", "bash")
    asked = "COMP_WORDS=(absflow state a); COMP_CWORD=2; _absflow_completion absflow; echo "
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{asked} "${{COMPREPLY[@]}}"'],
        env={
            **os.environ,
            "ABSFLOW_STORAGE": str(small.path),
            "PATH": f"{FOLDER}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["aircraft"], done.stderr
