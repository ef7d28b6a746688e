"""absflow as it is given to others: an sdist, and the wheel that is built from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What is installed: the package, and the module by which pytest finds the kit.
PACKAGE = ("absflow", "_absflow_pytestplugin.py")
# What the sdist is made of, beside it.
_FILES = ("setup.cfg", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


def clean() -> dict[str, str]:
    """An environment in which Python does not find the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def tracked(*paths: str) -> list[str]:
    """The files of the repository at these paths, by name."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def build(folder: Path) -> tuple[Path, Path]:
    """Build both in ``folder`` from a copy of the checkout, tests included, without a network."""
    source = folder / "source"
    for name in tracked(*_FILES, *PACKAGE, "tests"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), "."]
    done = subprocess.run(
        command, cwd=source, env=clean(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist
