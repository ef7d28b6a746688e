"""What is missing or of another version is refused in one line each, before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chain import chain, conf
from diamond import write_source
from pyspark.sql import SparkSession
from session import settings

import absflow
from absflow.spark import versions
from absflow.spark.versions import (
    check_versions,
    package_checks,
    packages_here,
    session_checks,
    session_here,
)
from absflow.spark.worker import installed
from absflow.spark.worker.installed import check_workers, found_on_workers, worker_checks

pytestmark = pytest.mark.spark

# A session of somebody who has followed Spark's own tutorial.
PLAIN = """
import sys
from pyspark.sql import SparkSession
import absflow

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.absflow.storage.path", sys.argv[1])
job = absflow.Job("plain", spark)
rate = job.source("rate", spark.readStream.format("rate").load())
counts = job.stage("counts", rate, key="value", state="n long", output="value long",
                   process=lambda state, row: ((1,), [(row[1],)]), form="per-row")
job.sink("out", counts, absflow.DeltaSink(sys.argv[1] + "-out"))
try:
    job.start()
except absflow.VersionError as error:
    print(error)
"""


def test_what_runs_here_is_known(spark: SparkSession) -> None:
    """The versions are read from the JVM and from the packages, here and on the workers."""
    check_versions(spark)
    check_workers(spark)
    checks = [
        *package_checks(packages_here()),
        *session_checks(session_here(spark)),
        *worker_checks(found_on_workers(spark.sparkContext)),
    ]
    assert [str(check) for check in checks if not check.holds] == []
    assert {"pyarrow", "pandas", "absflow"} <= {check.what.split(" on ")[0] for check in checks}


def test_a_start_on_another_version_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error of absflow's own, and an empty storage root."""
    write_source(tmp_path / "a", files=1, rows=10, seed=1)
    monkeypatch.setattr(versions, "DELTA", "9.9.9")
    job = chain(spark, tmp_path)
    with (
        settings(spark, conf(tmp_path)),
        pytest.raises(absflow.VersionError, match=r"Delta jar: found 4\.4\.0, expected 9\.9\.9; "),
    ):
        job.start()
    assert not (tmp_path / "job").exists()


def test_workers_with_another_python_are_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a job of Spark; what they lack is refused before anything is written."""
    write_source(tmp_path / "a", files=1, rows=10, seed=1)
    monkeypatch.setattr(installed, "_is_this", lambda _: False)
    monkeypatch.setattr(versions, "PYARROW", "999")
    monkeypatch.setattr(versions, "packages_here", dict)
    with (
        settings(spark, conf(tmp_path)),
        pytest.raises(absflow.VersionError, match=r"^pyarrow on workers \(.* on .*\): found "),
    ):
        chain(spark, tmp_path).start()
    assert not (tmp_path / "job").exists()


def test_workers_that_cannot_answer_are_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those with another Python than the driver's."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    with pytest.raises(absflow.VersionError, match="workers: found none that answers"):
        check_workers(spark)


def test_a_session_without_delta_is_refused_in_a_line_for_each_thing(tmp_path: Path) -> None:
    """No jar and no extensions: neither `JavaPackage` nor an empty directory is spoken of."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path / "job")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    jar, extensions, catalog = done.stdout.splitlines()
    assert jar.startswith("Delta jar: found none, expected 4.4.0; give --packages io.delta:")
    assert extensions.startswith("spark.sql.extensions: found none, expected io.delta.sql.Delta")
    assert catalog.startswith("spark.sql.catalog.spark_catalog: found none, expected org.apache.")
    assert not (tmp_path / "job").exists()


class Needy(absflow.TransactionalSink):
    """A sink whose client no worker has."""

    packages = ("no-such-package",)


def test_what_a_sink_needs_is_asked_of_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written."""
    write_source(tmp_path / "a", files=1, rows=10, seed=1)
    monkeypatch.setattr(installed, "_is_this", lambda _: False)
    job = chain(spark, tmp_path)
    job.sink("needy", "tally", Needy())
    words = r"^no-such-package on workers \(.*\): found none, expected it; pip install no-such-p"
    with settings(spark, conf(tmp_path)), pytest.raises(absflow.VersionError, match=words):
        job.start()
    assert not (tmp_path / "job").exists()


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the package that it would have brought."""
    monkeypatch.delitem(sys.modules, "absflow.destinations.sql", raising=False)
    monkeypatch.delitem(vars(absflow), "SqlSink", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(absflow.VersionError, match=r"pip install 'absflow\[sql\]' on the driver"):
        _ = absflow.SqlSink
