"""``absflow restore`` on a real job: a plan changes nothing, and the restore does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from chain import expected
from deltalake import DeltaTable
from diamond import write_source
from reading import assert_same_rows
from session import builder, with_delta, write_properties

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

FILES = 5
HERE = Path(__file__).parent
SCRIPT = str(HERE / "chain.py")


def run(root: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command as a person gives it; without one that is at ``root``."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
    return subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=False
    )


def absflow(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``absflow restore`` of the chain job."""
    main = [sys.executable, "-m", "absflow.cli.main", "restore"]
    properties = ["--properties-file", str(root / "spark.conf")]
    return run(root, [*main, *arguments, *properties, SCRIPT, str(root)])


def files(root: Path) -> dict[str, tuple[int, int]]:
    """Every file of the job and its sink, with size and time of its last change."""
    found = [p for part in ("job", "sink") for p in (root / part).rglob("*")]
    assert len(found) > 50
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def rows(root: Path, table: str) -> pd.DataFrame:
    """All rows of a Delta table, read without Spark."""
    return DeltaTable(str(root / table)).to_pyarrow_table().to_pandas()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has run to its end."""
    root = tmp_path_factory.mktemp("restore")
    write_source(root / "a", files=FILES, rows=50, seed=5)
    conf = {
        **with_delta(builder())._options,
        "spark.log.level": "ERROR",
    }
    write_properties(root / "spark.conf", conf)
    done = run(root, [sys.executable, SCRIPT, str(root)])
    assert done.returncode == 0, done.stderr[-3000:]
    return root


@pytest.fixture(scope="module")
def first(root: Path) -> int:
    """The id of its first completed checkpoint."""
    facts = rows(root, "job/checkpoints")
    ids = sorted(facts[facts["kind"] == "COMPLETED"]["checkpoint_id"])
    assert len(ids) > 1
    return int(ids[0])


@pytest.fixture(scope="module")
def plan(root: Path, first: int) -> dict[str, Any]:
    """What going back to it means."""
    before = files(root)
    done = absflow(root, "--from", str(first), "--plan", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert files(root) == before
    return dict(json.loads(done.stdout))


def test_the_plan_says_what_would_be_done(root: Path, first: int, plan: dict[str, Any]) -> None:
    """And to make it has not touched a file of the job or its sink: see the fixture."""
    assert plan["problems"] == plan["differences"] == []
    assert plan["origin"] == {"root": f"file:{root}/job", "checkpoint_id": first}
    assert (plan["taken_in_attempt"], plan["attempt"], plan["fork"]) == (1, 2, False)
    assert [s["stage"] for s in plan["stages"]] == ["left", "tally"]
    assert [s["key_groups_now"] for s in plan["stages"]] == [4, 4]
    facts = rows(root, "job/checkpoints")
    (manifest,) = facts[(facts["checkpoint_id"] == first) & (facts["kind"] == "COMPLETED")][
        "stages"
    ]
    assert [s["keys"] for s in plan["stages"]] == [s["keys_total"] for s in manifest]
    assert list(plan["positions"]) == ["a"]
    (sink,) = plan["sinks"]
    assert sink["version_now"] == DeltaTable(str(root / "sink")).version()
    assert 0 <= sink["version_then"] < sink["version_now"]
    # Commits of batches without rows are none to undo.
    assert 1 <= len(sink["undone"]) <= sink["version_now"] - sink["version_then"]
    assert sink["undone"][0].startswith(f"version {sink['version_then'] + 1} (WRITE, ")


def test_a_checkpoint_that_is_not_there_is_a_problem(root: Path, plan: dict[str, Any]) -> None:
    """It is said in the plan's words, and nothing is touched."""
    before = files(root)
    done = absflow(root, "--from", "999", "--plan")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "checkpoint 999 was never triggered" in done.stdout
    assert "nothing was changed" in done.stdout
    assert files(root) == before


def test_the_restore_does_what_the_plan_said(root: Path, first: int, plan: dict[str, Any]) -> None:
    """The sink goes back to that version, and in the end every row is in it once."""
    done = absflow(root, "--from", str(first))
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = rows(root, "job/attempts")
    started = attempts[(attempts["kind"] == "STARTED") & (attempts["attempt"] == 2)]
    assert list(started["restored_from"]) == [f"#{first}"]
    log = DeltaTable(str(root / "sink")).history()
    (restored,) = [commit for commit in log if commit["operation"] == "RESTORE"]
    assert int(restored["operationParameters"]["version"]) == plan["sinks"][0]["version_then"]
    assert_same_rows(rows(root, "sink"), expected(root, FILES)["sink"], ["id"])
