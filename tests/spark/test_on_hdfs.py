"""A job whose storage root and sink are on HDFS: workers by REST, Spark by its own client."""

from __future__ import annotations

from pathlib import Path

import pytest
from diamond import write_source
from hdfs_server import hdfs
from on_store import started
from processes import bury, tail

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 3
PATIENCE_S = 800


def test_a_job_on_hdfs_ends_equal_to_pandas(tmp_path: Path) -> None:
    """Two stages, a channel and a sink: rows and states are those of all files, each once."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as there:
        process = started(tmp_path, f"{there.root}/some", there)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            bury(process)
    assert code == 0, tail(tmp_path / "log")
    assert " is right" in (tmp_path / "log").read_text()
