"""A real schema registry for the tests: Apicurio's, which has Confluent's interface, in memory.

Its archive comes from the Java registry as the broker's jars do. 2.6 is the last that runs on
Java 17.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_broker import jars, java
from processes import await_answer, bury, free_ports

__all__ = ["registry"]

_APICURIO = "io.apicurio:apicurio-registry-app:2.6.13.Final:all:tar.gz"
_START_S = 90


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """The URL of one that runs for the time of a block.

    Raises:
        RuntimeError: it did not come up; with the end of its log.
    """
    (archive,) = jars({_APICURIO: False}, folder)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (port,), log = free_ports(1), folder / "registry.log"
    command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    classes = os.pathsep.join(str(folder / each) for each in ("*", "lib/*"))
    command += ["-cp", classes, "io.quarkus.runner.GeneratedMain"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        await_answer(process, f"{url}/subjects", log, _START_S)
        yield url
    finally:
        bury(process)
