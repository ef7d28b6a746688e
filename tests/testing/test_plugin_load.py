"""The pytest plugin as pytest finds it: declared by the package, and cheap until it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("absflow", "pyspark", "pyarrow", "pandas", "numpy")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package says of itself, as it would be installed."""
    folder = tmp_path_factory.mktemp("installed")
    program = (
        "from setuptools import build_meta\n"
        f"build_meta.prepare_metadata_for_build_wheel({str(folder)!r})"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)
    return folder


def pytest_in(folder: Path, installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest that finds the package as installed."""
    paths = [str(installed), str(ROOT), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pytest_finds_the_fixtures_by_the_entry_point(installed, tmp_path):
    """And their docstrings say what they are."""
    done = pytest_in(tmp_path, installed, "--fixtures")
    for name in ("absflow_local", "absflow_spark", "absflow_conf"):
        assert f"\n{name}" in done.stdout
    assert "Jobs under a storage root in the test's temporary folder" in done.stdout


def test_a_test_that_uses_no_fixture_pays_nothing(installed, tmp_path):
    """None of what a job needs is imported."""
    (tmp_path / "test_cheap.py").write_text(
        "import sys\n\n\n"
        "def test_nothing_is_imported(request):\n"
        "    assert request.config.pluginmanager.has_plugin('_absflow_pytestplugin')\n"
        f"    assert not {{*{HEAVY}}} & {{*sys.modules}}\n"
    )
    # Plugins of others, such as Hypothesis', may import what they like.
    others = ("no:hypothesispytest", "no:anyio", "no:xdist", "no:timeout")
    options = [part for each in others for part in ("-p", each)]
    done = pytest_in(tmp_path, installed, *options)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
