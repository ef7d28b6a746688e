"""A real HDFS for the tests: a name node and a data node on loopback, in processes of their own.

The jars come from the Java registry by the Ivy that PySpark ships, as those of Kafka.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from kafka_broker import jars, java
from processes import answers, free_ports, servers, tail

HDFS = {
    f"org.apache.hadoop:{name}:3.5.0": True
    for name in ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common")
}
START_S = 120
# Of log4j: warnings, to where the process prints.
LOG = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""
_NODE = "org.apache.hadoop.hdfs.server"


class Hdfs:
    """An HDFS that runs.

    Attributes:
        root: its URI.
        rest: host and port of its REST interface.
        data_node: the process that has the data.
    """

    def __init__(self, root: str, rest: str, data_node: subprocess.Popen[bytes]) -> None:
        """Of the one at ``root``, with its REST interface at ``rest``."""
        self.root, self.rest, self.data_node = root, rest, data_node

    def conf(self) -> dict[str, str]:
        """The Spark conf of who writes to it, which has one data node."""
        return {"spark.hadoop.dfs.replication": "1"}

    def open_files(self) -> list[str]:
        """The paths of files that somebody writes now, or has not ended to write."""
        url = f"http://{self.rest}/fsck?ugi=root&path=/&openforwrite=1"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return [line.split(" ", 1)[0] for line in lines if "OPENFORWRITE" in line]


@contextmanager
def hdfs(folder: Path, *, short: bool = True) -> Iterator[Hdfs]:
    """One for the time of a block; its logs and data are in ``folder``.

    Args:
        folder: its own.
        short: it does so little that what a JVM compiles well costs more than it gains.

    Raises:
        RuntimeError: it did not come up; with the ends of its logs.
    """
    class_path = os.pathsep.join([str(folder / "conf"), *jars(HDFS, folder)])
    ports = [f"127.0.0.1:{port}" for port in free_ports(5)]
    root, rest, *of_data = ports
    for pages in ("hdfs", "datanode"):  # of which the jars have none, and which must be there
        (folder / "conf/webapps" / pages).mkdir(parents=True)
    (folder / "conf/log4j.properties").write_text(LOG)
    write_conf(folder / "conf/core-site.xml", {"fs.defaultFS": f"hdfs://{root}"})
    write_conf(folder / "conf/hdfs-site.xml", _conf(folder, rest, of_data))
    command = [java(), "-cp", class_path, "-Xmx384m", "-XX:+UseSerialGC"]
    command += [f"-Dhadoop.log.dir={folder}", *(["-XX:TieredStopAtLevel=1"] if short else [])]
    nodes = {"namenode": f"{_NODE}.namenode.NameNode", "datanode": f"{_NODE}.datanode.DataNode"}
    log = folder / "namenode.log"
    with log.open("w") as out:
        form = [*command, nodes["namenode"], "-format", "-nonInteractive"]
        if subprocess.run(form, cwd=folder, stdout=out, stderr=out, check=False).returncode:
            raise RuntimeError(f"the name node could not format its storage:\n{tail(log)}")
    commands = {name: [*command, main] for name, main in nodes.items()}
    # It takes files: a data node is there, and the safe mode is over.
    ready = f"http://{rest}/webhdfs/v1/ready?op=CREATE&noredirect=true&user.name=root"
    with servers(commands, folder, lambda: answers(ready, "PUT"), START_S) as running:
        yield Hdfs(f"hdfs://{root}", rest, running["datanode"])


def _conf(folder: Path, rest: str, of_data: list[str]) -> dict[str, object]:
    address, http, ipc = of_data
    return {
        "dfs.namenode.name.dir": f"file://{folder}/name",
        "dfs.datanode.data.dir": f"file://{folder}/data",
        "dfs.namenode.http-address": rest,
        "dfs.datanode.address": address,
        "dfs.datanode.http.address": http,
        "dfs.datanode.ipc.address": ipc,
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.replication": 1,
        "dfs.permissions.enabled": "false",
        # The first look at whether there is room, and whether enough blocks are known, comes soon.
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.fs-limits.min-block-size": 0,
        "dfs.datanode.du.reserved": 0,
    }


def write_conf(file: Path, values: Mapping[str, object]) -> None:
    """A file of conf as all of Hadoop reads it."""
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in values.items()
    ]
    file.write_text(f"<configuration>{''.join(lines)}</configuration>")
