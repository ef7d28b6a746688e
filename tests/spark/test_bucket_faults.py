"""Each kind of request to a bucket goes wrong once, in each way; the job is exact all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diamond import write_source
from on_store import OFTEN_FAILING, class_path, run_to_end
from s3_faults import Fault
from s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

FILES = 10
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
        # What was just put and is not listed can end a start, and what breaks off in its reading;
        # then it is made again. A running job sees to that itself.
        starts = 10 if fault in (Fault.CUT, Fault.STALE) else 1
        for more in ({}, RESTORE):
            run_at_last(starts, tmp_path, bucket, server, jars, {**OFTEN_FAILING, **more})
        counts, failed = server.counts(), server.failed()
    print(len(failed), "kinds of requests went wrong:", *sorted(failed), sep="\n")
    assert set(failed.values()) == {1}
    if fault is Fault.STALE:
        assert failed.keys() <= {kind for kind in counts if kind[0] == "LIST"}
    else:
        assert failed.keys() == counts.keys()
        assert {method for method, _ in failed} == {"GET", "PUT", "HEAD", "LIST", "POST", "DELETE"}
    assert any("/state/" in path for _, path in failed)


def run_at_last(starts: int, root: Path, *more: Any) -> None:
    """One of so many starts runs to its end, which is right; no other has a wrong one."""
    before = (root / "log").read_text().count(" is right") if (root / "log").exists() else 0
    for left in range(starts - 1, -1, -1):
        try:
            said = run_to_end(root, *more)
        except AssertionError as error:
            if not left or "AssertionError" in str(error):
                raise
        else:
            assert said.count(" is right") == before + 1
            return


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
    more = OFTEN_FAILING | {f"spark.hadoop.fs.s3a.{name}": "15s" for name in timeouts}
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
