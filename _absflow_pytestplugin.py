"""Fixtures of pytest for tests of absflow's jobs: a local Spark, and jobs on a root of their own.

Not in the package ``absflow``, for pytest loads this at each of its starts, and to import the
package takes a third of a second. What a fixture needs is imported when a test uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from absflow.testing import LocalJobs

__all__ = ["absflow_conf", "absflow_local", "absflow_spark"]


@pytest.fixture(scope="session")
def absflow_conf() -> dict[str, str]:
    """More conf for the session of ``absflow_spark``; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def absflow_spark(absflow_conf: dict[str, str]) -> Iterator[SparkSession]:
    """A local Spark session with Delta, for all tests of the run; one that runs already is used."""
    from pyspark.sql import SparkSession

    from absflow.testing import local_session

    running = SparkSession.getActiveSession()
    session = local_session(absflow_conf)
    yield session
    if running is None:
        session.stop()


@pytest.fixture
def absflow_local(absflow_spark: SparkSession, tmp_path: Path) -> Iterator[LocalJobs]:
    """Jobs under a storage root in the test's temporary folder; what still runs is stopped."""
    from absflow.testing import LocalJobs

    jobs = LocalJobs(absflow_spark, tmp_path)
    yield jobs
    jobs.stop()
