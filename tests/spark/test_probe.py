"""Before a job starts, each executor reads what the driver wrote, and the driver what it wrote."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from unshared import Unshared

from absflow.spark.worker.probe import unseen
from absflow.storage.stores.mounted import MountedStore

pytestmark = pytest.mark.spark


def test_a_shared_place_is_seen_by_all(spark: SparkSession, tmp_path: Path) -> None:
    """And nothing is left of the look."""
    assert unseen(spark.sparkContext, MountedStore(), f"file:{tmp_path}/root") == []
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("", "workers on {} do not see the driver's file"),
        ("driver", "workers on {} do not see the driver's file"),
        ("workers", "the driver does not see the file of a worker on {}"),
    ],
)
def test_a_place_that_is_not_is_said_by_machine(
    spark: SparkSession, tmp_path: Path, seen: str, said: str
) -> None:
    """Whichever side is blind; nothing is left."""
    store = Unshared(os.getpid(), seen)
    found = unseen(spark.sparkContext, store, f"{tmp_path}/root")  # type: ignore[arg-type]
    assert found == [said.format(platform.node())]
    assert list((tmp_path / "root").iterdir()) == []
