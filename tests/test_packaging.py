"""The wheel and the sdist: what is in them, and that an environment with nothing else runs them."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from built import PACKAGE, ROOT, build, clean, tracked
from packaging.metadata import Metadata


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    return build(tmp_path_factory.mktemp("built"))


def version() -> str:
    """That of setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config["metadata"]["version"]


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Every file of it: types, templates, styles, scripts, Java, the job to start from."""
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        text = wheel.read(f"absflow-{version()}.dist-info/METADATA")
    package = {name for name in names if ".dist-info/" not in name}
    assert package == set(tracked(*PACKAGE))
    for ending in ("py.typed", "page.css", "page.js", ".jinja", ".java", "job.py.txt"):
        assert any(name.endswith(ending) for name in package)
    metadata = Metadata.from_email(text, validate=True)
    assert str(metadata.version) == version()
    assert metadata.description_content_type == "text/markdown"
    assert "Roll back, fork or audit" in (metadata.description or "")


def test_the_sdist_has_no_tests_and_makes_the_same_wheel(built: tuple[Path, Path]) -> None:
    """The wheel was built from it, so it has all that this takes."""
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert [name for name in names if name.startswith(("tests", "docs", "benchmarks"))] == []
    assert {"LICENSE", "README.md", "CHANGELOG.md", "setup.cfg", *tracked(*PACKAGE)} <= names


def test_an_environment_of_its_own_runs_it(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Away from the checkout; the packages that it needs are those of this environment."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=clean(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (packages,) = (path for path in sys.path if path.startswith(sys.prefix) and "site-pack" in path)
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "of_the_tests.pth").write_text(packages)
    run(str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(built[0]))
    where = run(str(python), "-c", "import absflow; print(absflow.__file__)")
    assert where.startswith(site)
    program = str(tmp_path / "env" / "bin" / "absflow")
    assert run(program, "--version").split()[-1] == version()
    assert "spark-submit" in run(program, "new", "visits")
    assert (tmp_path / "visits" / "job.py").is_file()


def test_the_version_stands_in_one_place() -> None:
    """In setup.cfg; docs may print it, in what a command has said, and changes are of one."""
    found = []
    for name in tracked(
        "absflow", "docs", "conf", "jobs", "*.md", "Makefile", "docker-compose.yml"
    ):
        if name == "CHANGELOG.md" or not name.endswith((".py", ".md", ".conf", ".yml", "file")):
            continue
        text = re.sub(
            r"^```text\n.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.S | re.M
        )
        found += [
            name for _ in re.findall(rf"absflow[^\n]{{0,20}}\b{re.escape(version())}\b", text)
        ]
    assert found == []
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version()
