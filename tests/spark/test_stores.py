"""What every kind of storage must do: one contract, and each implementation of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hdfs_server import Hdfs, hdfs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from s3_faults import Fault
from s3_server import S3Server, s3_server
from session import spark_conf

from absflow.errors import StorageError
from absflow.storage.files import Files
from absflow.storage.stores import objects
from absflow.storage.stores.contract import Store
from absflow.storage.stores.mounted import MountedStore
from absflow.storage.stores.objects import ObjectStore, object_store

pytestmark = pytest.mark.spark

KINDS = ["mounted", "s3", "hdfs"]


@dataclass(frozen=True)
class Place:
    """A storage, and a folder of it that is empty."""

    store: Store
    folder: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as there:
        yield there


def options(server: S3Server) -> Callable[[str], str | None]:
    """What Hadoop's client would find in its conf."""
    conf = server.conf()
    return lambda name: conf.get(f"spark.hadoop.{name}")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "mounted":
        return Place(MountedStore(), f"file:{tmp_path}/below")
    if request.param == "hdfs":
        there: Hdfs = request.getfixturevalue("there")
        spark: SparkSession = request.getfixturevalue("spark")
        return Place(*Files(spark).for_workers(f"{there.root}/{abs(hash(tmp_path))}/below"))
    server: S3Server = request.getfixturevalue("server")
    bucket = server.bucket(f"test-{abs(hash(tmp_path))}")
    store = object_store(bucket, options(server))
    assert store is not None
    return Place(store, f"{bucket}/some/folder")


NAMES = st.text(st.sampled_from("ab1._ =,%ä&+"), min_size=1, max_size=6).filter(
    lambda name: name.strip(".") and not name.endswith(".crc") and name == name.strip()
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["write", "create", "delete"]), NAMES, st.binary(max_size=40)),
    max_size=12,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, number=st.uuids())
def test_a_storage_is_as_a_dictionary_of_whole_files(
    place: Place, calls: list[tuple[str, str, bytes]], number: object
) -> None:
    """Whatever is written, created and deleted, in any order and under any name."""
    store, folder, due = place.store, f"{place.folder}/{number}", dict[str, bytes]()
    for call, name, data in calls:
        path = f"{folder}/{name}"
        if call == "write":
            store.write(path, data)
            due[name] = data
        elif call == "create":
            assert store.create(path, data) == (due.setdefault(name, data) == data)
        else:
            store.delete([path, f"{folder}/nothing"])
            due.pop(name, None)
        assert store.read(path) == due.get(name)
        assert store.exists(path) == (name in due)
    assert store.names(folder) == sorted(due)
    store.delete([f"{folder}/{name}" for name in due])
    assert store.names(folder) == []


def test_of_many_that_create_one_file_one_has_it(place: Place) -> None:
    """The file is that one's, whole; and it has it still if it asks again."""
    path, count = f"{place.folder}/claim", 6
    texts = [f"driver {number} {'x' * 1000}".encode() for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda text: place.store.create(path, text), texts))
    (winner,) = [text for text, mine in zip(texts, answers, strict=True) if mine]
    assert place.store.read(path) == winner
    assert place.store.create(path, winner)
    assert not place.store.create(path, b"another")
    assert place.store.read(path) == winner


def test_folders_have_the_names_of_what_is_in_them(place: Place) -> None:
    """Files and folders, hidden ones too; not what is deeper."""
    store, folder = place.store, place.folder
    assert (store.names(folder), store.exists(folder), store.read(folder)) == ([], False, None)
    for name in ("a", "p=1/b", "p=1/c", ".hidden", "_log/0.json"):
        store.add(f"{folder}/{name}", b"x")
    assert store.names(folder) == [".hidden", "_log", "a", "p=1"]
    assert store.names(f"{folder}/p=1") == ["b", "c"]
    assert store.exists(f"{folder}/p=1")
    assert not store.exists(f"{folder}/p")
    assert store.read(f"{folder}/a/b") is None


@pytest.mark.parametrize("slashes", ["/", "///"])
def test_a_path_may_leave_the_name_node_to_the_conf(
    spark: SparkSession, there: Hdfs, slashes: str
) -> None:
    """As most paths on YARN do."""
    path = f"left/{len(slashes)}/to/conf"
    with spark_conf(spark, {"fs.defaultFS": there.root}):
        files = Files(spark)
        files.write(f"hdfs:{slashes}{path}", "x")
        assert files.read(f"hdfs:{slashes}{path}") == "x"
    assert Files(spark).read(f"{there.root}/{path}") == "x"


@pytest.mark.parametrize("size", [0, 1, (8 << 20) + 1, 20 << 20])
def test_files_of_any_size_come_back_as_they_were(place: Place, size: int) -> None:
    """Large ones go up in parts."""
    data = bytes(range(256)) * (size // 256 + 1)
    place.store.write(f"{place.folder}/file", memoryview(data)[:size])
    assert place.store.read(f"{place.folder}/file") == data[:size]
    place.store.add(f"{place.folder}/added", pa.py_buffer(data).slice(0, size))
    assert place.store.read(f"{place.folder}/added") == data[:size]
    for begin, end in ((0, size), (size // 3, size // 2), (max(0, size - 1), size)):
        if begin < end:
            part = place.store.read_part(f"{place.folder}/added", begin, end - begin)
            assert part == data[begin:end]
    assert place.store.read_part(f"{place.folder}/nothing", 0, 10) is None


def test_many_are_deleted_at_once(place: Place) -> None:
    """Those that are not there are gone already."""
    paths = [f"{place.folder}/{number}" for number in range(1100)]
    for path in paths[::50]:
        place.store.add(path, b"x")
    place.store.delete(paths)
    assert place.store.names(place.folder) == []


def test_a_key_is_named_once_in_a_request(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MinIO's answer to another is none that can be read."""
    store = object_store(server.bucket("named"), options(server))
    assert store is not None
    asked: list[list[str]] = []
    monkeypatch.setattr(objects.obstore, "delete", lambda _, keys: asked.append([*keys]))
    store.delete([f"s3a://named/{name}" for name in "abacb"])
    assert asked == [["a", "b", "c"]]


def test_a_bucket_costs_a_request_for_each_call(server: S3Server) -> None:
    """No HEAD in front of a GET or behind a PUT, and a thousand deletions are one."""
    store = object_store(server.bucket("counted"), options(server))
    assert store is not None
    server.counts()
    store.write("s3a://counted/a/b", b"x")
    store.add("s3a://counted/a/c", b"x")
    store.create("s3a://counted/a/d", b"x")
    store.read("s3a://counted/a/b")
    store.read("s3a://counted/a/none")
    store.names("s3a://counted/a")
    store.delete([f"s3a://counted/a/{name}" for name in "bcd"])
    found: dict[str, int] = {}
    for (method, _), count in server.counts().items():
        found[method] = found.get(method, 0) + count
    assert found == {"PUT": 3, "GET": 2, "LIST": 1, "POST": 1}


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNANSWERED, Fault.CUT])
def test_a_busy_server_is_asked_again(server: S3Server, fault: Fault) -> None:
    """Also if it had done what it was asked and its answer was lost; a claim stays one's own."""
    store = object_store(server.bucket(f"busy-{fault.value}"), options(server))
    assert store is not None
    folder = f"{store.bucket}/x"
    server.failed()
    for method, call in (
        ("PUT", lambda: store.write(f"{folder}/file", b"text")),
        ("PUT", lambda: store.create(f"{folder}/claim", b"mine")),
        ("GET", lambda: store.read(f"{folder}/file")),
        ("LIST", lambda: store.names(folder)),
    ):
        server.fail(method, "/x", 2, fault)
        assert call() in (None, True, b"text", ["claim", "file"])
    assert server.failed().total() == 8
    assert not store.create(f"{folder}/claim", b"another")


def test_a_bucket_that_is_not_there_is_named(server: S3Server) -> None:
    """With the path, and what to do; the keys are in no error and no text."""
    conf = options(server)
    store = object_store("s3a://nowhere-at-all", conf)
    assert store is not None
    with pytest.raises(StorageError, match=r"could not write 's3a://nowhere-at-all/a'.*must name"):
        store.write("s3a://nowhere-at-all/a", b"x")
    assert str(conf("fs.s3a.secret.key")) not in repr(store)
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.parametrize(("ssl", "unsigned"), [("true", "true"), ("false", "false")])
def test_bytes_are_signed_where_tls_does_not_guard_them(ssl: str, unsigned: str) -> None:
    """As Amazon's own clients do."""
    conf = {"fs.s3a.endpoint": "10.0.0.1:9000", "fs.s3a.connection.ssl.enabled": ssl}
    store = object_store("s3a://some", conf.get)
    assert store is not None
    assert objects._client(store).config["unsigned_payload"] == unsigned


def test_the_conf_of_hadoops_client_is_taken_over() -> None:
    """Endpoint, region, keys and encryption; what only Hadoop can do is left to it."""

    def made(**given: str) -> ObjectStore | None:
        named = {f"fs.s3a.{name.replace('_', '.')}": value for name, value in given.items()}
        return object_store("s3a://some", named.get)

    def of(**given: str) -> dict[str, str]:
        store = made(**given)
        assert store is not None
        return dict(store.options)

    assert of() == {}
    assert of(endpoint="s3.eu-central-1.amazonaws.com") == {
        "endpoint": "https://some.s3.eu-central-1.amazonaws.com",
        "region": "eu-central-1",
        "virtual_hosted_style_request": "true",
    }
    assert of(endpoint="10.0.0.1:9000", path_style_access="true", connection_ssl_enabled="false")[
        "endpoint"
    ] == ("http://10.0.0.1:9000")
    keys = of(access_key="a", secret_key="b", session_token="c", endpoint_region="eu-west-1")
    assert keys == {
        "region": "eu-west-1",
        "access_key_id": "a",
        "secret_access_key": "b",
        "session_token": "c",
    }
    assert of(encryption_algorithm="SSE-KMS", encryption_key="k") == {
        "server_side_encryption": "aws:kms",
        "sse_kms_key_id": "k",
    }
    assert made(encryption_algorithm="CSE-KMS") is None
    assert made(aws_credentials_provider="org.example.OurProvider") is None
    default = "org.x.TemporaryAWSCredentialsProvider,\n  org.x.IAMInstanceCredentialsProvider"
    assert made(aws_credentials_provider=default) is not None


def test_what_hdfs_refuses_is_an_error_with_the_path(spark: SparkSession, there: Hdfs) -> None:
    """And what it says of it; a scheme of nobody's is one, too."""
    path = f"{there.root}/refused/file"
    store, _ = Files(spark).for_workers(path)
    store.add(path, b"x")
    with pytest.raises(StorageError, match=r"could not write 'hdfs://.*file'.*AlreadyExists"):
        store.add(path, b"y" * (3 << 20))
    with pytest.raises(StorageError, match=r"could not write 'hdfs://.*file/below'"):
        store.write(f"{path}/below", b"y")
    assert store.read(path) == b"x"
    with pytest.raises(StorageError, match=r"could not read 'nobodys://a/b'.*No FileSystem"):
        store.read("nobodys://a/b")
