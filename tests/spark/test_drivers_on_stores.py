"""Two drivers in processes of their own on one storage root on a store, where no lock is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from chain import expected
from diamond import write_source
from on_store import started
from outside_sinks import Outside, outside
from places import STORES, Place, attempts, commits
from processes import bury, tail
from reading import assert_same_rows, rows_of
from session import write_properties

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

FILES = 6
PATIENCE_S = 400
SLOW = {"spark.absflow.trigger.interval": "3s"}
TABLES = ("sink", "job/attempts", "job/checkpoints", "job/channels/left/attempt=1")


@pytest.fixture(params=["s3", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Of a new job, whose sources are there."""
    write_source(tmp_path / "a", files=FILES, rows=100, seed=11)
    (tmp_path / "server").mkdir()
    with STORES[request.param](tmp_path / "server") as stores:
        yield stores("drivers", tmp_path)


def start(place: Place, name: str, more: dict[str, str]) -> subprocess.Popen[bytes]:
    """A driver, which prints into a file of this name."""
    return started(place.root, place.uri, place, place.class_path, more, name=name)


def versions(place: Place) -> dict[str, int]:
    """Of the job's tables, now."""
    time.sleep(1)  # a place looks at a folder twice in a second
    return {path: commits(place, path) for path in TABLES}


@pytest.fixture
def others(
    kafka: str, place: Place, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Outside]:
    """A database and a topic, for both drivers as well."""
    with outside(kafka, place.root, monkeypatch, request.node.name) as made:
        yield made


def check_sink(place: Place) -> pd.DataFrame:
    """The table has every row once; these are they."""
    place.fetch("sink")
    rows, due = rows_of(place.root / "sink").to_pandas(), expected(place.root, FILES)["sink"]
    assert_same_rows(rows, due, ["id"])
    return due


def check_sinks(place: Place, others: Outside) -> None:
    """All have every row once."""
    others.check(check_sink(place))


def test_a_driver_that_was_paused_commits_nothing_when_it_wakes(
    place: Place, others: Outside
) -> None:
    """A newer one has taken over and ended the job; the older says so, and changes nothing."""
    older = start(place, "older", SLOW)
    newer = None
    try:
        await_commits(place, older)
        os.killpg(older.pid, signal.SIGSTOP)
        newer = start(place, "newer", {})
        code = newer.wait(PATIENCE_S)
        assert code == 0, tail(place.root / "newer")
        there = versions(place)
        os.killpg(older.pid, signal.SIGCONT)
        assert older.wait(PATIENCE_S) != 0
        assert versions(place) == there
    finally:
        for driver in (older, newer):
            if driver is not None:
                bury(driver)
    said = (place.root / "older").read_text()
    assert "FencedError: driver incarnation 2 took the job over at" in said
    assert attempts(place) == [(1, "STARTED"), (1, "READY"), (2, "DRIVER"), (2, "ENDED")]
    check_sinks(place, others)


def await_commits(place: Place, driver: subprocess.Popen[bytes]) -> None:
    """Until a driver has committed rows to the sink."""
    end = time.monotonic() + PATIENCE_S
    while commits(place, "sink") < 3:
        assert driver.poll() is None, tail(place.root / "older")
        assert time.monotonic() < end, tail(place.root / "older")
        time.sleep(0.1)


def test_of_two_drivers_that_start_together_one_goes_on(place: Place, others: Outside) -> None:
    """The other says so, also where both have claimed the same; each row is in the sink once."""
    names = ("one", "other")
    drivers = [start(place, name, SLOW) for name in names]
    try:
        codes = {name: each.wait(PATIENCE_S) for name, each in zip(names, drivers, strict=True)}
    finally:
        for driver in drivers:
            bury(driver)
    (loser,) = (name for name, code in codes.items() if code)
    said = (place.root / loser).read_text()
    assert (
        "FencedError: driver incarnation 2 took the job over" in said
        or "took incarnation 1 first" in said
    )
    kinds = [kind for _, kind in attempts(place)]
    assert kinds.count("STARTED") == kinds.count("ENDED") == 1
    check_sinks(place, others)


def test_a_command_has_a_savepoint_from_a_driver(place: Place) -> None:
    """By the driver's own conf and no variable, from a process without a JVM."""
    conf = {**place.conf(), "spark.absflow.storage.path": f"{place.uri}/job"}
    file = place.root / "job.conf"
    write_properties(file, conf)
    driver = start(place, "older", SLOW)
    try:
        await_commits(place, driver)
        command = [sys.executable, "-m", "absflow.cli.main", "savepoint", "--json"]
        done = subprocess.run(
            [*command, "--properties-file", file],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["type"], said["status"]) == ("SAVEPOINT", "COMPLETED")
        assert driver.wait(PATIENCE_S) == 0, tail(place.root / "older")
    finally:
        bury(driver)
    check_sink(place)
