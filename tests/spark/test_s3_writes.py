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


def test_what_is_written_and_what_is_asked_for(tmp_path: Path) -> None:
    """A version once and by one request, also where an answer is lost or the store is busy.

    What is replaced is put without a look, and what is known is not asked for.
    """
    with s3_server(tmp_path) as server:
        bucket, path = server.bucket("writes"), class_path(tmp_path)
        text = run_to_end(tmp_path, bucket, server, path, program="s3_writes.py")
    lines = text.splitlines()
    *said, found = [json.loads(line) for line in lines if line.startswith(('["', '{"'))]
    look = ["GET", "HEAD", "PUT"]
    assert said[:10] == [
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
    # Of a log that only this driver writes it asks nothing, until it finds that another did.
    first, second, third = (f"own/_delta_log/{version:020}.json" for version in range(3))
    log, asked, whose = "log of own/_delta_log", ["GET", "HEAD", "LIST"], "another's"
    assert said[10:-3] == [
        [first, "written", ["PUT"]],
        [log, ["1 versions", "mine"], ["LIST"]],
        [log, ["1 versions", "mine"], []],
        [second, "written", ["PUT"]],
        [log, ["2 versions", "mine, too"], []],
        [log, ["2 versions", "mine, too"], []],  # another has put the third
        [third, TAKEN, look],
        [log, ["3 versions", whose], asked],
        [log, ["3 versions", whose], []],
        [log, ["3 versions", whose], asked],  # behind the block
    ]
    assert said[-3:] == [
        ["batches of offsets-of/offsets", [], ["HEAD", "LIST", "LIST", "PUT"]],
        ["batches of offsets-of/offsets", ["0"], ["PUT"]],
        ["batches of offsets-of/offsets", ["0", "1"], ["PUT"]],
    ]
    assert found == {
        "commit": "mine\n",
        "lost": "mine\n",
        "busy": "mine\n",
        "offsets": "mine",
        "delta": "second",
        "none": None,
    }
