"""Two drivers in processes of their own on one storage root in a bucket, where no lock is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
from chain import expected
from deltalake import DeltaTable
from diamond import write_source
from on_store import class_path, started
from processes import bury, tail
from reading import assert_same_rows
from s3_server import KEY, SECRET, S3Server, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 6
PATIENCE_S = 400
SLOW = {"spark.absflow.trigger.interval": "3s"}


TABLES = ("sink", "job/attempts", "job/checkpoints", "job/channels/left/attempt=1")


def table_in(server: S3Server, path: str) -> DeltaTable:
    """A table in a bucket."""
    options = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    return DeltaTable(path.replace("s3a://", "s3://"), storage_options=options)


def rows_in(server: S3Server, path: str) -> pa.Table:
    """All rows of a table in a bucket."""
    return pa.table(table_in(server, path).to_pyarrow_table())


def versions(server: S3Server, bucket: str) -> dict[str, int]:
    """The versions that the job's tables have now."""
    return {path: table_in(server, f"{bucket}/{path}").version() for path in TABLES}


def attempts(server: S3Server, bucket: str) -> list[tuple[int, str]]:
    """The incarnations that have written a fact of an attempt, and which."""
    rows = rows_in(server, f"{bucket}/job/attempts").to_pylist()
    return [(r["incarnation"], r["kind"]) for r in sorted(rows, key=lambda r: r["at"])]


@pytest.mark.soak
def test_a_driver_that_was_paused_commits_nothing_when_it_wakes(tmp_path: Path) -> None:
    """A newer one has taken over and ended the job; the older says so, and changes nothing."""
    write_source(tmp_path / "a", files=FILES, rows=100, seed=11)
    with s3_server(tmp_path) as server:
        bucket, path = server.bucket("paused"), class_path(tmp_path)
        older = started(tmp_path, bucket, server, path, SLOW)
        newer = None
        try:
            await_commits(server, older, tmp_path)
            os.killpg(older.pid, signal.SIGSTOP)
            newer = started(tmp_path, bucket, server, path, name="newer")
            code = newer.wait(PATIENCE_S)
            assert code == 0, tail(tmp_path / "newer")
            there = versions(server, bucket)
            os.killpg(older.pid, signal.SIGCONT)
            assert older.wait(PATIENCE_S) != 0
            assert versions(server, bucket) == there
        finally:
            for driver in (older, newer):
                if driver is not None:
                    bury(driver)
        assert (
            "FencedError: driver incarnation 2 took the job over at"
            in (tmp_path / "log").read_text()
        )
        kinds = [(1, "STARTED"), (1, "READY"), (2, "DRIVER"), (2, "ENDED")]
        assert attempts(server, bucket) == kinds
        sink = rows_in(server, f"{bucket}/sink").to_pandas()
        assert_same_rows(sink, expected(tmp_path, FILES)["sink"], ["id"])


def await_commits(server: S3Server, driver: subprocess.Popen[bytes], root: Path) -> None:
    """Until a driver has committed rows to the sink."""
    end = time.monotonic() + PATIENCE_S
    made = 0
    while made < 3:
        assert driver.poll() is None, tail(root / "log")
        assert time.monotonic() < end, tail(root / "log")
        counts = server.counts()
        made += counts["PUT", "/paused/sink/_delta_log/#.json"]
        time.sleep(0.1)
