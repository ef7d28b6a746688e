"""Spark's files of a query's checkpoint on a local disk: the newer one takes the older one's place.

A batch that is run again writes its state again, and the query goes on with that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from absflow.storage.root import StorageRoot
from absflow.storage.session import conf_set

pytestmark = pytest.mark.spark

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SPARKS = "org.apache.spark.sql.execution.streaming.checkpointing"
BY_FILE_SYSTEM = "FileSystemBasedCheckpointFileManager"
OURS = "absflow.LocalCheckpointFiles"


class Manager:
    """What Spark puts files in place with, in a session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = folder
        folder.mkdir(exist_ok=True)
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        package = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._manager = package.CheckpointFileManager.create(self._path(""), conf)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"file:{self._folder}/{name}")

    def begin(self, name: str, data: bytes, *, overwrite: bool = True) -> Any:
        """A file with some bytes, to be closed or cancelled."""
        out = self._manager.createAtomic(self._path(name), overwrite)
        out.write(bytearray(data))
        return out

    def write(self, name: str, data: bytes) -> None:
        """As Spark does with the state of a batch."""
        self.begin(name, data).close()

    @property
    def names(self) -> list[str]:
        """All in the folder."""
        return sorted(path.name for path in self._folder.iterdir())

    def read(self, name: str) -> bytes:
        """Its checksum is compared, if it has one."""
        file = self._manager.open(self._path(name))
        try:
            return bytes(file.readAllBytes())
        finally:
            file.close()


@pytest.fixture(params=[None, f"{SPARKS}.{BY_FILE_SYSTEM}"])
def manager(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Manager]:
    """In a session in which a job has a storage root, whichever of the two it had before."""
    with conf_set(spark, {MANAGER: request.param}):
        StorageRoot.open(spark, str(tmp_path / "job"))
        assert spark.conf.get(MANAGER) == OURS
        yield Manager(spark, tmp_path / "state")


def test_a_file_takes_the_place_of_an_older_one(manager: Manager) -> None:
    """With its checksum, and nothing is left aside."""
    for data in (b"the first run", b"the second run, which is longer"):
        manager.write("3.delta", data)
        assert manager.read("3.delta") == data
    assert manager.names == [".3.delta.crc", "3.delta"]


def test_the_files_of_a_log_do_not_replace(manager: Manager) -> None:
    """Spark asks for that where two drivers must not write one batch."""
    manager.write("7", b"of one driver")
    later = manager.begin("7", b"of another", overwrite=False)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        later.close()
    assert manager.read("7") == b"of one driver"
    assert manager.names == [".7.crc", "7"]


def test_what_is_cancelled_leaves_nothing(manager: Manager) -> None:
    """As the state of a task that fails."""
    manager.write("3.delta", b"the first run")
    manager.begin("3.delta", b"the sec").cancel()
    assert manager.read("3.delta") == b"the first run"
    assert manager.names == [".3.delta.crc", "3.delta"]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_000])
def test_the_checksum_is_hadoops(spark: SparkSession, tmp_path: Path, size: int) -> None:
    """So Hadoop sees a flipped bit when it reads the file, and no other."""
    data = random.Random(size).randbytes(size)
    with conf_set(spark, {MANAGER: f"{SPARKS}.{BY_FILE_SYSTEM}"}):
        Manager(spark, tmp_path / "sparks").write("x", data)
    with conf_set(spark, {MANAGER: None}):
        StorageRoot.open(spark, str(tmp_path / "job"))
        ours = Manager(spark, tmp_path / "ours")
    ours.write("x", data)
    sums = [(tmp_path / name / ".x.crc").read_bytes() for name in ("ours", "sparks")]
    assert sums[0] == sums[1]
    if size:
        flipped = bytearray(data)
        flipped[size // 2] ^= 1
        (tmp_path / "ours" / "x").write_bytes(flipped)
        with pytest.raises(Py4JJavaError, match="ChecksumException"):
            ours.read("x")


def test_a_kill_between_file_and_checksum_leaves_a_file_that_can_be_read(
    manager: Manager, tmp_path: Path
) -> None:
    """It has no checksum then; and the next run of the batch has one again."""
    manager.write("3.delta", b"the first run")
    (tmp_path / "state" / ".3.delta.crc").unlink()
    assert manager.read("3.delta") == b"the first run"
    manager.write("3.delta", b"the second run")
    assert manager.read("3.delta") == b"the second run"
    assert manager.names == [".3.delta.crc", "3.delta"]


def test_sparks_own_by_a_file_system_keeps_the_older_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Which is why it is not left in place; once it does, ours can go."""
    with conf_set(spark, {MANAGER: f"{SPARKS}.{BY_FILE_SYSTEM}"}):
        sparks = Manager(spark, tmp_path / "state")
    for data in (b"the first run", b"the second run"):
        sparks.write("3.delta", data)
    assert sparks.read("3.delta") == b"the first run"


@pytest.mark.parametrize(
    "chosen", ["org.example.Ours", f"{SPARKS}.FileContextBasedCheckpointFileManager"]
)
def test_what_somebody_has_chosen_is_left_alone(
    spark: SparkSession, tmp_path: Path, chosen: str
) -> None:
    """Of Spark's two, the other one replaces."""
    with conf_set(spark, {MANAGER: chosen}):
        StorageRoot.open(spark, str(tmp_path / "job"))
        assert spark.conf.get(MANAGER) == chosen
