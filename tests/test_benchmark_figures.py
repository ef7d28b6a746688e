"""What benchmarks make of their runs (``benchmarks/_periods.py``, ``_results.py``)."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A program in ``benchmarks/``, by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_a_run_goes_from_mark_to_mark_with_the_pause_between(module) -> None:
    """A run has the rows and the time of whole periods, pauses included, and begins at a mark."""
    # 10 rows a second; none for 8 s before 48 and before 78.
    moments = [(float(at), 10) for at in range(100) if not 40 < at < 48 and not 70 < at < 78]
    speeds, pauses = module("_periods").runs_of(moments, [20.0, 30.0, 50.0, 80.0, 200.0], 5)
    assert speeds == [10 * (30 - 7) / 30, 10 * (30 - 7) / 30]
    assert pauses == [8.0, 8.0]


def test_a_run_that_is_not_over_does_not_count(module) -> None:
    """Rows behind the last mark are of no run."""
    moments = [(float(at), 1) for at in range(30)]
    assert module("_periods").runs_of(moments, [0.0, 25.0, 40.0], 5) == ([1.0], [1.0])


def test_retention_has_a_tenth_of_what_is_measured_of_absflow(module) -> None:
    """A run is a plan of retention and the time behind it, weighted by their shares of a job."""
    housekeeping, run_s = module("_housekeeping"), module("_periods").RUN_S
    # 20 rows a second in the plan, 100 else; a plan that began before it counted is left out.
    moments = [(float(at), 20 if 40 <= at < 70 else 100) for at in range(200)]
    seen = housekeeping.Housekeeping([(5.0, 10.0), (40.0, 70.0), (150.0, 199.0)])
    assert housekeeping.SHARE == 0.1
    assert seen.runs(moments, 20.0, 5) == ([pytest.approx(0.1 * 20 + 0.9 * 100)], [1.0])
    assert seen.runs(moments[: 70 + run_s // 2], 20.0, 5) == ([], [])  # not over yet
    assert seen.missing(housekeeping.ALL) == "no Compact, no DeleteSets, no VACUUM"


def test_cases_that_did_not_run_keep_their_figures_and_their_date(
    module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written beside figures of before does not get them a new date."""
    results = module("_results")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results.Results, "_plot", lambda *_: None)
    old = {"at": "2001-01-01", "on": "one core", "versions": {"pyspark": "1"}}
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"speed": {**old, "runs": {"a": {"x": [1.0]}, "c": {"x": [3.0]}}}}))
    for _ in range(2):  # also behind what was written before
        new = results.Results("speed", "rows/s", keeps=("a", "b"))
        new.add("b", "x", [2.0])
        new.write()
    found = json.loads(file.read_text())["speed"]
    assert found["runs"] == {"a": {"x": [1.0]}, "b": {"x": [2.0]}}
    assert found["older"] == {"a": old}
    assert found["at"] != old["at"]


def test_quick_figures_are_not_written(
    module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``QUICK=1`` puts nothing into the docs."""
    results = module("_results")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "QUICK", True)
    with pytest.raises(SystemExit, match="QUICK"):
        results.Results("speed", "rows/s").write()
    assert not [*tmp_path.iterdir()]


def test_a_ratio_is_told_from_one_only_if_its_runs_agree(module) -> None:
    """The interval of a ratio is wide where its runs differ, and narrow where they do not."""
    interval_of = module("checkpoint_overhead").interval_of
    low, high = interval_of([0.95, 0.96, 0.94, 0.95])
    assert 0.93 < low < 0.95 < high < 0.97
    low, high = interval_of([0.7, 1.2, 0.8, 1.1])
    assert low < 0.7
    assert high > 1.2


def test_each_job_has_each_place_of_a_turn_as_often(module) -> None:
    """Over six turns a machine that becomes slower favours none."""
    orders = [module("checkpoint_overhead").turn(number) for number in range(6)]
    for place in range(3):
        at = sorted(order[place] for order in orders)
        assert at == sorted([*orders[0]] * 2)
