"""Each kind of request to a bucket goes wrong once, in each way; the job is exact all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from diamond import write_source
from on_store import TIDY, class_path, run_to_end
from s3_faults import Fault
from s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

FILES = 10
MORE = {
    TIDY: "true",
    "spark.absflow.checkpoint.interval": "200ms",
    "spark.absflow.checkpoint.retained": "2",
    "spark.absflow.lineage.max-sets": "2",
}
RESTORE = {"spark.absflow.restore.from": "latest"}


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.HANGS])
def test_each_kind_of_request_goes_wrong_once(tmp_path: Path, fault: Fault) -> None:
    """In a life from the start, and in one that restores; the server counts what it does."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    jars = class_path(tmp_path)
    with s3_server(tmp_path) as server:
        bucket = server.bucket("faults")
        server.counts()
        server.fail_each(fault)
        for lives, more in enumerate(({}, RESTORE), start=1):
            said = run_to_end(tmp_path, bucket, server, jars, {**MORE, **more})
            assert said.count(" is right") == lives
        counts, failed = server.counts(), server.failed()
    lines = [f"{count} {method} {path}" for (method, path), count in sorted(failed.items())]
    (tmp_path / "failed").write_text("\n".join(lines))
    assert set(failed.values()) == {1}
    if fault is Fault.STALE:
        assert failed.keys() <= {kind for kind in counts if kind[0] == "LIST"}
    else:
        assert failed.keys() == counts.keys()
        assert {method for method, _ in failed} == {"GET", "PUT", "HEAD", "LIST", "POST", "DELETE"}
    assert any("/state/" in path for _, path in failed)


# By both clients, that of the JVM and that of the workers.
HANG = {
    "JVM": {
        "PUT": "/job/work/attempt=1/left/spark/",
        "GET": "/job/channels/left/attempt=1/",
        "LIST": "/job/channels/left/attempt=1/",
    },
    "workers": {
        "PUT": "/job/work/attempt=1/left/state/",
        "LIST": "/job/work/attempt=1/left/state/",
        "GET": "/job/state/",
    },
}


def test_a_request_without_an_answer_is_made_again(tmp_path: Path) -> None:
    """Behind the timeout of each client, of which the JVM's cannot be shorter than 15 s."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    timeouts = ("connection.timeout", "connection.part.upload.timeout")
    more = MORE | {f"spark.hadoop.fs.s3a.{name}": "15s" for name in timeouts}
    with s3_server(tmp_path) as server:
        bucket = server.bucket("hangs")
        for kinds in HANG.values():
            for method, path in kinds.items():
                server.fail(method, path, 1, Fault.HANGS)
        for life in ({}, RESTORE):
            said = run_to_end(tmp_path, bucket, server, class_path(tmp_path), {**more, **life})
        failed = server.failed()
    assert said.count(" is right") == 2
    assert failed.total() == sum(map(len, HANG.values()))
