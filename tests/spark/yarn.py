"""A real YARN for the tests: a resource manager and a node manager, in front of an HDFS.

Both are processes on loopback, from the jars that Hadoop publishes. Spark's own parts for YARN are
in PySpark.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from hdfs_server import LOG, Hdfs, write_conf
from kafka_broker import jars, java
from processes import end_session, free_ports, servers, sessions_of
from session import write_properties

YARN = {
    f"org.apache.hadoop:{name}:3.5.0": True
    for name in (
        "hadoop-hdfs-client",
        "hadoop-yarn-server-resourcemanager",
        "hadoop-yarn-server-nodemanager",
        # The resource manager's pages do not load without, though nothing of it is used.
        "hadoop-yarn-server-timelineservice",
    )
}
START_S = 120
_SERVER = "org.apache.hadoop.yarn.server"
_MANAGERS = {
    "resourcemanager": f"{_SERVER}.resourcemanager.ResourceManager",
    "nodemanager": f"{_SERVER}.nodemanager.NodeManager",
}
_FIFO = f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler"
_DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster "


@dataclass(frozen=True)
class Yarn:
    """A YARN that runs.

    Attributes:
        folder: its own, with the conf by which clients find it and what its containers print.
    """

    folder: Path

    def submit(
        self, program: Path, words: list[str], conf: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """``spark-submit`` of a program, to the end of the application."""
        properties = self.folder / "spark.conf"
        write_properties(properties, conf)
        home = Path(pyspark.__file__).parent
        # Which Python runs is for the conf to say.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
        environment |= {"HADOOP_CONF_DIR": str(self.folder / "conf"), "SPARK_HOME": str(home)}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
        command = [str(home / "bin" / "spark-submit"), "--properties-file", str(properties)]
        with log.open("w") as out:
            return subprocess.Popen(
                [*command, str(program), *words],
                env=environment,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill_driver(self) -> bool:
        """SIGKILL the container with the driver, if there is one."""
        leaders = sessions_of(_DRIVER, str(self.folder))
        for leader in leaders:
            end_session(leader)
        return bool(leaders)

    def said(self) -> str:
        """What all containers have printed."""
        logs = sorted((self.folder / "logs").rglob("stdout"))
        return "".join(log.read_text(errors="replace") for log in logs)


@contextmanager
def yarn(folder: Path, there: Hdfs) -> Iterator[Yarn]:
    """One for the time of a block, with what applications send along in ``there``.

    Raises:
        RuntimeError: it did not come up; with the ends of its logs.
    """
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "log4j.properties").write_text(LOG)
    write_conf(conf / "core-site.xml", {"fs.defaultFS": there.root})
    ports = [f"127.0.0.1:{port}" for port in free_ports(8)]
    write_conf(conf / "yarn-site.xml", _conf(folder, ports))
    class_path = os.pathsep.join([str(conf), *jars(YARN, folder)])
    command = [java(), "-cp", class_path, "-Xmx384m", "-XX:+UseSerialGC"]
    command += ["-XX:TieredStopAtLevel=1", f"-Dhadoop.log.dir={folder}"]
    commands = {name: [*command, main] for name, main in _MANAGERS.items()}
    try:
        with servers(commands, folder, lambda: _ready(ports[0]), START_S):
            yield Yarn(folder)
    finally:
        _end_containers(folder)


def _ready(pages: str) -> bool:
    """Whether the resource manager has a machine."""
    try:
        with urllib.request.urlopen(f"http://{pages}/ws/v1/cluster/metrics", timeout=10) as answer:
            return bool(json.load(answer)["clusterMetrics"]["activeNodes"])
    except OSError:
        return False


def _end_containers(folder: Path) -> None:
    """Each is a session of its own, and outlives a node manager that is killed."""
    while leaders := sessions_of(str(folder / "local")):
        for leader in leaders:
            end_session(leader)


def _conf(folder: Path, ports: list[str]) -> dict[str, object]:
    pages, clients, scheduler, tracker, admin, containers, localizer, own_pages = ports
    resources, node = "yarn.resourcemanager", "yarn.nodemanager"
    return {
        f"{resources}.hostname": "127.0.0.1",
        f"{resources}.webapp.address": pages,
        f"{resources}.address": clients,
        f"{resources}.scheduler.address": scheduler,
        f"{resources}.resource-tracker.address": tracker,
        f"{resources}.admin.address": admin,
        f"{resources}.scheduler.class": _FIFO,
        "yarn.scheduler.minimum-allocation-mb": 128,
        f"{node}.hostname": "127.0.0.1",
        f"{node}.address": containers,
        f"{node}.localizer.address": localizer,
        f"{node}.webapp.address": own_pages,
        f"{node}.local-dirs": folder / "local",
        f"{node}.log-dirs": folder / "logs",
        f"{node}.resource.memory-mb": 12 * 1024,
        f"{node}.resource.cpu-vcores": 8,
        f"{node}.vmem-check-enabled": "false",
        # It takes a disk that is nine tenths full for a broken one.
        f"{node}.disk-health-checker.enable": "false",
    }
