"""What Delta and Spark put into a bucket by absflow's classes; ``python s3_writes.py BUCKET ...``.

The words behind the bucket are Spark conf. It prints a JSON object for each write: what was asked,
what came of it, and the requests that the server has seen for it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JJavaError
from s3_faults import Fault
from s3_server import S3Server
from session import builder

from absflow.storage.files import Files


class Writer:
    """Writes by the classes that Delta and Spark find in this session."""

    def __init__(self, spark: Any, server: S3Server, bucket: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._server = server
        self._bucket = bucket
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog
        self._store = log.forTable(spark._jsparkSession, f"{bucket}/table").store()
        streaming = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._logs: dict[str, Any] = {}
        self._files = streaming.CheckpointFileManager.create(self._path("."), self._conf)

    def commit(self, name: str, text: str) -> None:
        """As Delta puts a version of a table."""
        lines = self._jvm.java.util.ArrayList()
        lines.add(text)
        actions = self._jvm.PythonUtils.toSeq(lines).iterator()
        self._say(name, lambda: self._store.write(self._path(name), actions, False, self._conf))

    def log(self, name: str) -> None:
        """As Delta looks for the versions of a table, and for what is in its newest."""
        first = self._path(f"{name}/{0:020}.json")

        def look() -> list[str]:
            scala = self._store.listFrom(first, self._conf)
            found = [each.getPath() for each in self._listed(scala)]
            text = "|".join(self._listed(self._store.read(found[-1], self._conf)))
            return [f"{len(found)} versions", text]

        self._say(f"log of {name}", look)

    def listing(self, name: str) -> None:
        """As Spark looks for the batches of a query, and whether the next is there."""
        folder = self._path(name)
        if name not in self._logs:
            streaming = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
            manager = streaming.CheckpointFileManager.create(folder, self._conf)
            manager.mkdirs(folder)
            self._logs[name] = manager
        manager = self._logs[name]

        def look() -> list[str]:
            there = [each.getPath().getName() for each in manager.list(folder)]
            following = self._path(f"{name}/{len(there)}")
            assert not manager.exists(following)
            out = manager.createAtomic(following, False)
            out.write(bytearray(b"batch"))
            out.close()
            assert manager.exists(following)
            return there

        self._say(f"batches of {name}", look)

    def _listed(self, scala: Any) -> list[Any]:
        """What is in an iterator of Scala's, or its sequence."""
        found = []
        iterator = scala.iterator()
        while iterator.hasNext():
            found.append(iterator.next())
        return found

    def file(self, name: str, text: str, *, over: bool, cancel: bool = False) -> None:
        """As Spark puts a file of a query's checkpoint."""

        def write() -> None:
            out = self._files.createAtomic(self._path(name), over)
            out.write(bytearray(text.encode()))
            out.cancel() if cancel else out.close()

        self._say(name, write)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._bucket}/files/{name}")

    def _say(self, name: str, write: Any) -> None:
        self._server.counts()
        try:
            found = write()
            came = "written" if found is None else found
        except Py4JJavaError as error:
            came = str(error.java_exception.getClass().getName())
        asked = sorted(method for (method, _), n in self._server.counts().items() for _ in range(n))
        print(json.dumps([name, came, asked]))


def main(bucket: str, conf: dict[str, str]) -> None:
    """Write."""
    start = builder()
    for name, value in conf.items():
        start = start.config(name, value)
    spark = configure_spark_with_delta_pip(start).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    server = S3Server(conf["spark.hadoop.fs.s3a.endpoint"])
    files = Files(spark)
    assert not files.exists(f"{bucket}/nothing")
    writer = Writer(spark, server, bucket)
    writer.commit("commit", "mine")
    writer.commit("commit", "another's")
    server.fail("PUT", "/files/lost", 1, Fault.UNANSWERED)
    writer.commit("lost", "mine")
    server.fail("PUT", "/files/busy", 1)
    writer.commit("busy", "mine")
    writer.file("offsets", "mine", over=False)
    writer.file("offsets", "another's", over=False)
    writer.file("delta", "first", over=True)
    writer.file("delta", "second", over=True)
    writer.file("delta", "third", over=True, cancel=True)
    writer.file("none", "mine", over=False, cancel=True)
    log = "own/_delta_log"
    with files.only_writer([f"{bucket}/files/own"]):
        writer.commit(f"{log}/{0:020}.json", "mine")
        writer.log(log)
        writer.log(log)
        writer.commit(f"{log}/{1:020}.json", "mine, too")
        writer.log(log)
        files.add(f"{bucket}/files/{log}/{2:020}.json", b"another's")
        writer.log(log)
        writer.commit(f"{log}/{2:020}.json", "mine again")
        writer.log(log)
        writer.log(log)
    writer.log(log)
    for _ in range(3):
        writer.listing("offsets-of/offsets")
    names = ("commit", "lost", "busy", "offsets", "delta", "none")
    print(json.dumps({name: files.read(f"{bucket}/files/{name}") for name in names}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:]))
