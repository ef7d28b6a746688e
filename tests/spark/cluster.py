"""A real cluster on loopback: Spark's own standalone master and workers, each a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from processes import bury, free_ports, kill, session, tail

HERE = Path(__file__).parent
START_S = 60
_CLASSES = "org.apache.spark.deploy"
# A JVM that does little, and starts fast.
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Worker:
    """A worker, which runs one executor of an application at a time, and starts another if it dies.

    Attributes:
        folder: its working directory.
        process: itself, the leader of a session with its executors and their Python workers.
    """

    folder: Path
    process: subprocess.Popen[bytes]

    def executors(self) -> set[int]:
        """The numbers of all executors that it has ever started."""
        return {int(path.name) for path in self.folder.glob("app-*/[0-9]*")}

    def running(self) -> list[int]:
        """The process ids of its executors."""
        found = session(self.process.pid)
        return [pid for pid, command in found if "CoarseGrainedExecutorBackend" in command]

    def leave(self) -> None:
        """SIGKILL it with all that it has started."""
        bury(self.process)

    def kill_executor(self) -> list[str]:
        """SIGKILL the executor and its Python processes; the command lines of what was killed."""
        found = [each for each in session(self.process.pid) if each[0] != self.process.pid]
        for pid, _ in found:
            kill(pid)
        return [command for _, command in found]


@dataclass(frozen=True)
class Cluster:
    """A master and its workers.

    Attributes:
        master: what ``spark.master`` must be.
        workers: of one core and one executor each, also those that have left.
        joins: has another one start.
    """

    master: str
    workers: list[Worker]
    joins: Callable[[], Worker]

    def conf(self) -> dict[str, str]:
        """The Spark conf of a driver that uses it all, beside that of the tests' sessions."""
        return {
            "spark.master": self.master,
            "spark.driver.memory": "1g",
            "spark.cores.max": str(len(self.workers)),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _SMALL,
            "spark.executorEnv.PYTHONPATH": python_path(),
            # The first batch waits for every executor.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }

    def executors(self) -> set[int]:
        """The numbers of all executors that have ever been started."""
        return set().union(*(worker.executors() for worker in self.workers))


def python_path() -> str:
    """Where driver and executors find what this process has imported."""
    return os.pathsep.join([str(HERE), *filter(None, sys.path)])


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for the time of a block; its logs and working directories are in ``folder``.

    Raises:
        RuntimeError: the master did not come up; with the end of its log.
    """
    port, web = free_ports(2)
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as ends:

        def start(name: str, host: str, role: str, *words: str) -> subprocess.Popen[bytes]:
            command = (f"{_CLASSES}.{role}", "--host", host, *words)
            process = _start(folder / f"{name}.log", host, *command)
            ends.callback(bury, process)
            return process

        master = start(
            *("master", "127.0.0.1", "master.Master"),
            *("--port", str(port), "--webui-port", str(web)),
        )
        _await_line(master, folder / "master.log", re.escape(f"Starting Spark master at {url}"))
        started: list[Worker] = []

        def join() -> Worker:
            place, (ui,) = folder / f"worker-{len(started)}", free_ports(1)
            # Each on a host of its own, as far as Spark can see.
            host = f"127.0.0.{2 + len(started)}"
            own = ("--webui-port", str(ui), "-c", "1", "-m", "1g", "-d", str(place))
            process = start(place.name, host, "worker.Worker", *own, url)
            started.append(Worker(place, process))
            return started[-1]

        for _ in range(workers):
            join()
        yield Cluster(url, started, join)


def _start(log: Path, host: str, *command: str) -> subprocess.Popen[bytes]:
    spark_home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL,
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(spark_home / "bin" / "spark-class"), *command],
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _await_line(process: subprocess.Popen[bytes], log: Path, line: str) -> None:
    deadline = time.monotonic() + START_S
    while not re.search(line, log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {line!r} in {log.name}; its end:\n{tail(log)}")
        time.sleep(0.05)
