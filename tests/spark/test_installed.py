"""The wheel in fresh environments, with the oldest Python and the newest: the quick start runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from built import build
from test_new_job import shell

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

# The oldest that absflow takes, and the newest two that PySpark 4.2 does.
VERSIONS = ["3.10", "3.13", "3.14"]


def interpreter(version: str) -> str:
    """A Python of this version: of the system's, or of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    there = [
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))),
    ]
    for program in filter(None, there):
        command = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return program
    pytest.skip(f"there is no Python {version} on this machine")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_quick_start_runs_from_the_wheel(version: str, tmp_path: Path) -> None:
    """Installed as README says it; then every line that `absflow new` prints."""
    python = interpreter(version)
    build(tmp_path / "dist")
    made = (
        f"{python} -m venv env && . env/bin/activate && "
        'pip install --quiet "$(echo dist/absflow-*.whl)[cli]" pytest && '
        "python -c 'import absflow; print(absflow.__file__)' && absflow doctor && "
        "absflow new visits"
    )
    advice = shell(tmp_path, made)
    assert str(tmp_path / "env") in advice.splitlines()[0]
    assert "WRONG" not in advice
    commands = advice.split("\n\n", 1)[1]
    printed = shell(tmp_path, f"exec 2>&1; . env/bin/activate\n{commands}")
    assert "all input is read; the last checkpoint is" in printed
    assert "2 of 2 keys of visits at checkpoint" in printed
    assert "3 passed" in printed
