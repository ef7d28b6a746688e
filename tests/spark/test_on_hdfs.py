"""A job whose storage root and sink are on HDFS: workers by REST, Spark by its own client."""

from __future__ import annotations

from pathlib import Path

import pytest
from diamond import write_source
from hdfs_server import hdfs
from on_store import run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 3


def test_a_job_on_hdfs_ends_equal_to_pandas(tmp_path: Path) -> None:
    """Two stages, a channel and a sink: rows and states are those of all files, each once."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as there:
        assert " is right" in run_to_end(tmp_path, f"{there.root}/some", there)
