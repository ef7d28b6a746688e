"""Each kind of call to a name node goes wrong once, in each way; the job is exact all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from diamond import write_source
from hdfs_server import hdfs
from name_node_faults import CHANGES, name_node_faults
from on_store import OFTEN_FAILING, STARTS, run_to_end
from s3_faults import Fault

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

FILES = 10
# HDFS's client makes no call again, and at a start absflow does not, either.
MORE = {**OFTEN_FAILING, STARTS: "200", "spark.absflow.state.max-inline": "1KiB"}
ASKS = {"getBlockLocations", "getFileInfo", "getListing"}


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNANSWERED, Fault.CUT, Fault.SLOW])
def test_each_kind_of_call_goes_wrong_once(tmp_path: Path, fault: Fault) -> None:
    """In a life from the start, and in one that restores."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as there, name_node_faults(there, fault) as faults:
        for more in ({}, {"spark.absflow.restore.from": "latest"}):
            said = run_to_end(tmp_path, f"{faults.hdfs.root}/some", faults.hdfs, more=MORE | more)
        counts, failed = faults.counts(), faults.failed()
    print(len(failed), "kinds of calls went wrong:", *sorted(failed), sep="\n")
    assert said.count(" is right") == 2
    assert failed.keys() == {kind for kind in counts if faults.hits(kind)}
    due = CHANGES if fault is Fault.UNANSWERED else CHANGES | ASKS
    assert {method for method, _ in failed} >= due
    assert any("/state/" in path for _, path in failed)
