"""A job whose storage root and sink are in a bucket, read by Hadoop's S3 client."""

from __future__ import annotations

from pathlib import Path

import pytest
from diamond import write_source
from on_store import class_path, run_to_end
from s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 3


def test_a_job_in_a_bucket_ends_equal_to_pandas(tmp_path: Path) -> None:
    """Two stages, a channel and a sink: rows and states are those of all files, each once."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    with s3_server(tmp_path) as server:
        bucket = server.bucket("one")
        said = run_to_end(tmp_path, bucket, server, class_path(tmp_path))
        counts = server.counts()
    assert " is right" in said
    lines = [f"{count} {method} {path}" for (method, path), count in counts.most_common()]
    (tmp_path / "counts").write_text("\n".join(lines))
    for stage in ("left", "tally"):
        # State is written by workers and, on the machine that has written it, not read again.
        state = {method for method, path in counts if f"/{stage}/state/" in path}
        assert state - {"POST"} == {"LIST", "PUT"}
        assert counts["PUT", f"/one/job/work/attempt=#/{stage}/staging/#"] == 0


@pytest.mark.soak
def test_workers_go_by_the_jvm_where_it_alone_finds_the_keys(tmp_path: Path) -> None:
    """A provider in Java has them, of which no other client knows."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    provider = "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider"
    keys = "-Daws.accessKeyId=tests -Daws.secretAccessKey=secret"  # the server takes any
    more = {
        "spark.hadoop.fs.s3a.aws.credentials.provider": provider,
        "spark.driver.extraJavaOptions": keys,
    }
    with s3_server(tmp_path) as server:
        bucket = server.bucket("keys")
        said = run_to_end(tmp_path, bucket, server, class_path(tmp_path), more)
    assert " is right" in said
