"""A real Kafka broker for the tests: one KRaft node on loopback, and the jars of Spark's connector.

The jars come from the Java registry by the Ivy that PySpark ships, with the machine's own settings.
Broker and Spark are two processes with class paths of their own.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from processes import free_ports, tail

BROKER = {
    # With all it depends on.
    "org.apache.kafka:kafka_2.13:4.1.0": True,
    # Kafka brings no place for its log to go to.
    "org.slf4j:slf4j-simple:1.7.36": True,
}
# Without what they depend on, for Spark has the rest of it.
CONNECTOR = {
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}": False,
    # Not of Spark's version: 4.2.0 of it was not to be had where this was written, hence no
    # spark.jars.packages. The connector needs it to ask whether there is a delegation token.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0": False,
    "org.apache.kafka:kafka-clients:3.9.2": False,
    "org.apache.commons:commons-pool2:2.13.1": False,
}
START_S = 60
STOP_S = 20


def jars(wanted: Mapping[str, bool], folder: Path) -> list[str]:
    """Paths of jars, downloaded at the first time; one process at a time, for all have one cache.

    Args:
        wanted: ``organisation:name:version``, and whether it comes with what it depends on; for
            another file than the jar also ``:classifier:extension``.
        folder: where to put Ivy's input and output.
    """
    lines = []
    for coordinates, transitive in wanted.items():
        org, name, rev, *other = coordinates.split(":")
        artifact = ""
        if other:
            classifier, kind = other
            artifact = (
                f'<artifact name="{name}" m:classifier="{classifier}" type="{kind}" ext="{kind}"/>'
            )
        lines.append(
            f'<dependency org="{org}" name="{name}" rev="{rev}" conf="default" '
            f'transitive="{str(transitive).lower()}">{artifact}</dependency>'
        )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="absflow" module="tests"/>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    command = [java(), "-jar", str(ivy), "-warn", "-confs", "default"]
    command += ["-ivy", "ivy.xml", "-cachepath", "class.path"]
    with (Path(tempfile.gettempdir()) / "absflow-tests-ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # Ivy's exit code is 0 whatever happens; it writes the path last.
    if not (folder / "class.path").exists():
        raise RuntimeError(f"Ivy could not resolve {list(wanted)}:\n{done.stdout}{done.stderr}")
    return (folder / "class.path").read_text().strip().split(os.pathsep)


class Broker:
    """A broker that can be killed and started again.

    Attributes:
        servers: its ``kafka.bootstrap.servers``.
    """

    def __init__(self, folder: Path, listener: str = "PLAINTEXT", **more: object) -> None:
        """In an empty folder, which is formatted for it.

        Args:
            folder: the folder.
            listener: the name of what clients connect to.
            more: of its conf; ``_`` for a dot.

        Raises:
            RuntimeError: it could not be; with the end of its log.
        """
        self._folder = folder
        self._log = folder / "broker.log"
        self._port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        conf = _conf(folder, self._port, controller, listener)
        conf |= {name.replace("_", "."): value for name, value in more.items()}
        (folder / "server.properties").write_text(
            "\n".join(f"{name}={value}" for name, value in conf.items())
        )
        # As small, and as fast to start, as can be.
        self._run = [java(), "-cp", os.pathsep.join(jars(BROKER, folder))]
        self._run += ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._run += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # One word, for one id in 64 begins with a dash.
        command = [*self._run, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        with self._log.open("a") as out:
            done = subprocess.run(
                [*command, "-c", "server.properties"],
                cwd=folder,
                stdout=out,
                stderr=out,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"Kafka could not format its storage:\n{tail(self._log)}")

    def start(self, largest_file: int | None = None) -> None:
        """Start it, and wait until it takes connections.

        Args:
            largest_file: no file of it grows beyond so many bytes, as if the disk were full.

        Raises:
            RuntimeError: it did not come up; with the end of its log.
        """
        limit = [] if largest_file is None else ["prlimit", f"--fsize={largest_file}"]
        with self._log.open("a") as out:
            self._process = subprocess.Popen(
                [*limit, *self._run, "kafka.Kafka", "server.properties"],
                cwd=self._folder,
                stdout=out,
                stderr=out,
            )
        _await_port(self._process, self._port, self._log)

    def kill(self) -> None:
        """By SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ends(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        self._process.wait(START_S)

    def stop(self) -> None:
        """In order, or by SIGKILL if that takes long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def broker(folder: Path, listener: str = "PLAINTEXT", **more: object) -> Iterator[Broker]:
    """A broker for the time of a block; arguments as of :class:`Broker`.

    Raises:
        RuntimeError: it did not come up; with the end of its log.
    """
    made = Broker(folder, listener, **more)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _conf(folder: Path, port: int, controller: int, listener: str) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listener}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"{listener}://127.0.0.1:{port}",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the broker takes connections, which is the last thing that it does at a start."""
    deadline = time.monotonic() + START_S
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    ended = process.returncode
    seen = f"took no connection in {START_S} s" if ended is None else f"ended with code {ended}"
    raise RuntimeError(f"the Kafka broker {seen}; the end of its log:\n{tail(log)}")


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"
