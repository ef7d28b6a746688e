"""The JVM reads and writes files for the Python processes beside it, and for nobody else."""

from __future__ import annotations

import pickle
import socket
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from absflow.errors import StorageError
from absflow.spark.worker.any_names import map_in_arrow
from absflow.storage.files import Files
from absflow.storage.java import behind_server, serve_files
from absflow.storage.session import conf_set
from absflow.storage.stores.hadoop import HadoopStore, served_at

pytestmark = pytest.mark.spark

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def store(spark: SparkSession) -> Iterator[HadoopStore]:
    with conf_set(spark, {MANAGER: None}):
        place, options = serve_files(spark)
        served_at(place)
        yield HadoopStore(options)


def test_only_its_user_can_read_how_it_is_reached(store: HadoopStore, spark: SparkSession) -> None:
    """And who does not know the token gets nothing, not even an error."""
    place, _ = serve_files(spark)
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o600
    port, token = Path(place).read_text().split()
    assert len(token) == 64
    with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as stranger:
        stranger.sendall(b"0" * len(token) + bytes(4) + b"R" + b"\0\0\0\1a")
        assert stranger.recv(1) == b""


def test_what_the_session_says_of_file_systems_goes_along(
    spark: SparkSession, store: HadoopStore
) -> None:
    """Each JVM knows the application's conf; secrets are in no text."""
    with conf_set(spark, {"fs.some.secret": "x1"}):
        _, options = serve_files(spark)
    assert dict(options)["fs.some.secret"] == "x1"
    assert not [name for name, _ in options if name.startswith("spark.")]
    given = HadoopStore(options)
    assert "x1" not in repr(given)
    assert pickle.loads(pickle.dumps(given)) == given != store


def test_many_threads_ask_at_once(store: HadoopStore, tmp_path: Path) -> None:
    """Each gets what it asked for."""

    def there_and_back(number: int) -> bool:
        path = f"file:{tmp_path}/{number}"
        data = bytes([number]) * (number * 40_000)
        store.add(path, data)
        return store.read(path) == data and store.exists(path)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(60)))
    names = [name for name in store.names(f"file:{tmp_path}") if not name.endswith(".crc")]
    assert names == sorted(map(str, range(60)))


def test_a_worker_finds_the_jvm_beside_it(
    spark: SparkSession, store: HadoopStore, tmp_path: Path
) -> None:
    """It runs as soon as the first row has come by."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                store.add(f"file:{tmp_path}/{number}", b"x")
        yield pa.RecordBatch.from_pylist([], pa.schema([]))

    numbers = behind_server(spark.range(0, 4, 1, 2))
    map_in_arrow(numbers, write, StructType()).collect()
    found = {path.name for path in tmp_path.iterdir() if path.suffix != ".crc"}
    assert found == {"0", "1", "2", "3"}


def test_another_class_for_sparks_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Ours begins to serve in front of a stage's function."""
    with (
        conf_set(spark, {MANAGER: "org.example.Ours"}),
        pytest.raises(StorageError, match=r"checkpointFileManagerClass is 'org\.example\.Ours'"),
    ):
        Files(spark).for_workers("nobodys://a/b")
