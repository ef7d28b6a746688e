"""A cluster whose machines die, leave, join and lag, with storage on S3 and on HDFS."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster, standalone
from diamond import source_files
from hdfs_server import Hdfs, hdfs
from in_cluster import Driver, driver
from on_store import class_path
from outside_sinks import STRAGGLER
from places import Place, bucket_place, hdfs_place
from s3_faults import Fault
from s3_server import S3Server, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

WORKERS = 3
# Two tasks of four are done before the others are looked at.
SPECULATES = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.shuffle.partitions": "4",
}
COMES_AND_GOES = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": str(WORKERS),
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "4s",
    # Delta leaves what it knows of a table in their memory, and then they would stay for ever.
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "8s",
    "spark.sql.shuffle.partitions": "4",
    # Between two bursts nothing is to be done, not even a checkpoint.
    "spark.absflow.checkpoint.interval": "20s",
}
# What executors write, by the folder in the job's storage root.
WRITTEN = {
    "state": r"work/attempt=\d+/left/state/",
    "snapshot": r"state/left/(?!_delta_log)",
    "channel": r"channels/left/attempt=\d+/(?!_delta_log)",
    "sink": r"sink/(?!_delta_log)",
}


@dataclass(frozen=True)
class Storage:
    """A store, and how it is made to hold up a write.

    Attributes:
        place: of a new job, whose root on this disk is given.
        writing: begins to hold up a write of this kind, and says in its block when it does.
    """

    place: Callable[[Path], Place]
    writing: Callable[[str, Place], AbstractContextManager[Callable[[], bool]]]


@pytest.fixture(params=["s3", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A store of its own."""
    folder = tmp_path / "server"
    folder.mkdir()
    if request.param == "s3":
        jars = class_path(folder)
        with s3_server(folder) as server:
            yield Storage(
                lambda root: bucket_place(server, "job", root, jars), _hanging_put(server)
            )
    else:
        with hdfs(folder) as there:
            yield Storage(lambda root: hdfs_place(there, "job", root), _stopped_node(there))


def _hanging_put(server: S3Server) -> Callable[..., AbstractContextManager[Callable[[], bool]]]:
    @contextmanager
    def writing(kind: str, _: Place) -> Iterator[Callable[[], bool]]:
        server.failed()
        server.fail("PUT", WRITTEN[kind], 1, Fault.HANGS)
        yield lambda: server.failed().total() > 0

    return writing


def _stopped_node(there: Hdfs) -> Callable[..., AbstractContextManager[Callable[[], bool]]]:
    @contextmanager
    def writing(kind: str, _: Place) -> Iterator[Callable[[], bool]]:
        node = there.data_node.pid

        def stopped() -> bool:
            """For half a second, or for as long as it takes where such a write is met."""
            os.kill(node, signal.SIGSTOP)
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                if any(re.search(WRITTEN[kind], path) for path in there.open_files()):
                    return True
            os.kill(node, signal.SIGCONT)
            return False

        try:
            yield stopped
        finally:
            os.kill(node, signal.SIGCONT)

    return writing


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of the job on this disk."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def speculative(events: Path) -> int:
    """How many tasks Spark has begun a second time while the first still ran."""
    logs = (path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    begun = (line for log in logs for line in log.splitlines() if "TaskStart" in line)
    return sum('"Speculative":true' in line for line in begun)


def test_executors_die_in_the_middle_of_what_they_write(
    storage: Storage, tmp_path: Path, root: Path
) -> None:
    """Of state, snapshots, channels and sinks; meanwhile tasks are begun twice."""
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        **SPECULATES,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    place, files, count = storage.place(root), source_files(root / "a", rows=100, seed=17), 0
    with standalone(tmp_path, WORKERS) as cluster, driver(cluster, place, conf) as job:
        killed = 0
        for kind in WRITTEN:
            for _ in itertools.islice(files, 6):
                count += 1
            with storage.writing(kind, place) as is_held_up:
                job.wait(is_held_up)
                killed += _kill_executors(cluster)
            job.await_files(count)
        assert killed >= len(WRITTEN) * WORKERS
        assert len(cluster.executors()) >= killed
        assert job.end() > 0
    assert speculative(events) > 0


def _kill_executors(cluster: Cluster) -> int:
    """Those that work now; how many."""
    dead = [command for worker in cluster.workers for command in worker.kill_executor()]
    return sum("CoarseGrainedExecutorBackend" in command for command in dead)


def test_machines_leave_and_join(storage: Storage, tmp_path: Path, root: Path) -> None:
    """The slow one, too; what was on the disk of one is nowhere else but in the store."""
    place, files = storage.place(root), source_files(root / "a", rows=100, seed=18)
    with standalone(tmp_path, WORKERS) as cluster, driver(cluster, place, {}) as job:
        count = _burst(job, files, 0)
        for worker in [w for w in cluster.workers if w.folder.name != STRAGGLER]:
            worker.leave()
            cluster.joins()
            count = _burst(job, files, count)
        first, joined = cluster.workers[0], cluster.workers[WORKERS:]
        first.leave()
        count = _burst(job, files, count)
        assert all(worker.executors() for worker in joined)
        assert job.end() > 0


def test_executors_come_and_go_with_the_work(storage: Storage, tmp_path: Path, root: Path) -> None:
    """Dynamic allocation: what an executor had in its cache, another reads from the store."""
    place, files = storage.place(root), source_files(root / "a", rows=100, seed=19)
    with standalone(tmp_path, WORKERS) as cluster, driver(cluster, place, COMES_AND_GOES) as job:
        count = 0
        for _ in range(3):
            count = _burst(job, files, count)
            job.wait(lambda: sum(bool(w.running()) for w in cluster.workers) == 1)
        # More than there is room for at a time, so some came again.
        assert len(cluster.executors()) > WORKERS
        assert job.end() > 0


def _burst(job: Driver, files: Iterator[None], count: int) -> int:
    """Some more files, until a checkpoint holds them; how many there are now."""
    for _ in itertools.islice(files, 6):
        count += 1
    job.await_files(count)
    return count
