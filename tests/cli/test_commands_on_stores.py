"""The commands on a bucket and on HDFS: what they say is what they say of the same root here."""

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands_run import run, succeed

# The servers are those that jobs are tested with.
sys.path.append(str(Path(__file__).parents[1] / "spark"))

from hdfs_server import hdfs
from places import bucket_place, hdfs_place
from s3_server import s3_server
from session import write_properties

from absflow.cli import asking
from absflow.cli.clients import client
from absflow.cli.options import conf_of
from absflow.cli.reader import Reader

STORES = [pytest.param("s3"), pytest.param("hdfs", marks=pytest.mark.spark)]
COMMANDS = [
    ("history",),
    ("status",),
    ("show", "8"),
    ("state", "aircraft", "--at", "8"),
    ("changes", "aircraft", "--key", "tailnum=N4"),
    ("diff", "1", "8", "--stage", "aircraft"),
    ("gc", "--dry-run"),
    ("delete", "3", "--dry-run"),
    ("verify", "6"),
]


@contextmanager
def place_of(store, folder, root):
    """Of a job's root that is also at ``root``."""
    if store == "hdfs":
        with hdfs(folder) as there:
            yield hdfs_place(there, "some", root)
    else:
        with s3_server(folder) as server:
            server.bucket("some")
            yield bucket_place(server, "some", root, "")


def properties(file, conf):
    """A file as for ``spark-submit``, and the options that name it."""
    write_properties(file, conf)
    return ["--properties-file", str(file)]


def document(command, given, *names):
    """What a command says of a root, without the names of that and how old its newest is."""
    said = json.loads(succeed(None, *command, *given, "--json"))
    said.pop("age_ms", None)
    text = json.dumps(said)
    for name in names:
        text = text.replace(name, "")
    return text


def paths(place):
    """The storage root, and the conf with which it is found: as a whole, and on HDFS also not."""
    yield f"{place.uri}/job", place.conf()
    if place.uri.startswith("hdfs:"):
        node = place.uri.removesuffix("/some")
        yield "hdfs:///some/job", {**place.conf(), "spark.hadoop.fs.defaultFS": node}


@pytest.mark.parametrize("store", STORES)
def test_commands_read_and_ask_by_the_conf_that_spark_has(store, small, tmp_path, monkeypatch):
    """Nothing of the environment helps them; what is gone is named; a driver can be asked."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(small.path, tmp_path / "root/job")
    (tmp_path / "server").mkdir()
    with place_of(store, tmp_path / "server", tmp_path / "root") as place:
        place.send("job")
        for number, (root, conf) in enumerate(paths(place)):
            file = tmp_path / f"{number}.conf"
            given = properties(file, {**conf, "spark.absflow.storage.path": root})
            plain = root.replace("s3a:", "s3:")
            for command in COMMANDS:
                there = document(command, given, plain, root)
                here = document(command, ["--storage", str(small.path)], str(small.path))
                assert there == here, command
            page = tmp_path / f"{number}.html"
            succeed(None, "report", *given, "--output", str(page))
            assert plain in page.read_text()
        reader = Reader(root, conf_of(file))
        request = asking.ask_to_delete(reader, [1])
        rows = reader.again().storage.table(reader.requests, ["request", "delete"]).to_pylist()
        assert rows == [{"request": request, "delete": [1]}]
        (gone, *_) = place.names("job/state/aircraft/set_id=8")
        place.delete(f"job/state/aircraft/set_id=8/{gone}")
        done = run(None, "state", "aircraft", "--at", "8", *given)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"set_id=8/{gone}' under '{plain}' is damaged: it is gone" in done.stderr


ENDPOINT = {"fs.s3a.endpoint": "store:9000", "fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"}
PLAIN = {"fs.s3a.connection.ssl.enabled": "false"}


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        (ENDPOINT, {"endpoint": "https://some.store:9000", "virtual_hosted_style_request": "true"}),
        ({**ENDPOINT, "fs.s3a.path.style.access": "true"}, {"endpoint": "https://store:9000"}),
        (
            {**ENDPOINT, **PLAIN, "fs.s3a.path.style.access": "true"},
            {"endpoint": "http://store:9000", "allow_http": "true"},
        ),
        (
            {**ENDPOINT, "fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
            {"region": "eu-central-1"},
        ),
        (
            {**ENDPOINT, "fs.s3a.bucket.some.access.key": "its", "fs.s3a.bucket.b.access.key": "b"},
            {"access_key_id": "its", "secret_access_key": "s"},
        ),
    ],
)
def test_a_bucket_is_found_as_spark_finds_it(conf, options):
    """Endpoint, style and keys; those of one bucket before those of all. No secret is shown."""
    made = client("s3://some/job", {f"spark.hadoop.{name}": value for name, value in conf.items()})
    assert options.items() <= made.options.items()
    assert "secret" not in repr(made)


def test_keys_that_only_java_finds_are_looked_for_in_the_environment(monkeypatch):
    """As Spark's conf names a class that no other client has."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    conf = {"spark.hadoop.fs.s3a.aws.credentials.provider": "com.some.OwnProvider"}
    own = {"spark.hadoop.fs.s3a.access.key": "not.these"}
    assert client("s3://some/job", {**conf, **own}).options == {}
