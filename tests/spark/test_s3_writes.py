"""Delta's commits and Spark's own files in a bucket: one request each, and none over another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from on_store import class_path, run_to_end
from s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TAKEN = "java.nio.file.FileAlreadyExistsException"
THERE = "org.apache.hadoop.fs.FileAlreadyExistsException"


def test_a_version_is_written_once_and_by_one_request(tmp_path: Path) -> None:
    """Also where an answer is lost or the store is busy; what is replaced is put without a look."""
    with s3_server(tmp_path) as server:
        bucket, path = server.bucket("writes"), class_path(tmp_path)
        text = run_to_end(tmp_path, bucket, server, path, program="s3_writes.py")
    lines = text.splitlines()
    *said, found = [json.loads(line) for line in lines if line.startswith(('["', '{"'))]
    look = ["GET", "HEAD", "PUT"]
    assert said == [
        ["commit", "written", ["PUT"]],
        ["commit", TAKEN, look],
        ["lost", "written", [*look, "PUT"]],
        ["busy", "written", ["PUT", "PUT"]],
        ["offsets", "written", ["PUT"]],
        ["offsets", THERE, look],
        ["delta", "written", ["PUT"]],
        ["delta", "written", ["PUT"]],
        ["delta", "written", []],
        ["none", "written", []],
    ]
    assert found == {
        "commit": "mine\n",
        "lost": "mine\n",
        "busy": "mine\n",
        "offsets": "mine",
        "delta": "second",
        "none": None,
    }
