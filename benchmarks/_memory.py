"""How much memory a JVM and the Python workers that it has started take, while a block runs."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def jvm_pid(spark: SparkSession) -> int:
    """The process that is the session's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


class Memory:
    """The most memory, in MB, that was seen in use.

    Attributes:
        jvm: by the JVM.
        python: by all Python workers together.
        worker: by one of them.
    """

    def __init__(self, jvm: int) -> None:
        """Watch a JVM and what it starts."""
        self.jvm, self.python, self.worker = 0.0, 0.0, 0.0
        self._pid = jvm
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            parents = {}
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # gone in the meantime
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    parents[int(folder.name)] = int(fields[1])
            below = {self._pid}
            while more := {pid for pid, parent in parents.items() if parent in below} - below:
                below |= more
            self.jvm = max(self.jvm, _megabytes(self._pid))
            # A process that the JVM starts is for a moment as large as the JVM.
            workers = [_megabytes(pid) for pid in below - {self._pid} if _is_worker(pid)]
            self.python = max(self.python, sum(workers))
            self.worker = max(self.worker, *workers, 0.0)


def _is_worker(pid: int) -> bool:
    with suppress(OSError):
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _megabytes(pid: int) -> float:
    """What a process has in memory; of what forked processes share, its part."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    return 0.0
