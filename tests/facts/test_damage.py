"""What is said of a damaged file, and which checkpoints can do without it."""

import json

import pyarrow as pa
import pytest

from absflow.cli.storage import expression
from absflow.errors import StorageError
from absflow.facts.columns import ATTEMPTS, CHECKPOINTS
from absflow.facts.damage import (
    ChannelFile,
    SetFile,
    advice,
    damage_error,
    file_in,
    needed_by,
    part_of,
    spared,
)
from absflow.storage.layout import Layout

LAYOUT = Layout("/job")

SAID = """An error occurred while calling o1.showString.
: org.apache.spark.SparkException: [FAILED_READ_FILE.{}] Encountered error while reading file {}. {}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:940)"""


@pytest.mark.parametrize("root", ["/a b/job", "file:/a b/job", "file:///a b/job/"])
def test_the_file_in_an_error_of_spark(root):
    """Whether it is gone or damaged; files of others, and other errors, are not for us."""
    path = "file:///a%20b/job/state/left/set_id=7/part-0.c000.snappy.parquet"
    inside = "state/left/set_id=7/part-0.c000.snappy.parquet"
    damaged = SAID.format("NO_HINT", path, " SQLSTATE: KD001")
    assert file_in(damaged, root) == (inside, "its bytes are not what was written")
    gone = SAID.format("FILE_NOT_EXIST", path, "File does not exist.")
    assert file_in(gone, root) == (inside, "it is gone")
    assert file_in(damaged, "/a b/job2") is None
    assert file_in("TASK_WRITE_FAILED", root) is None


@pytest.mark.parametrize(
    "cause",
    [
        "java.lang.RuntimeException: Cannot reserve additional contiguous bytes in the vectorized "
        "reader (requested 1717986918 bytes). As a workaround, you can reduce the batch size",
        "java.lang.OutOfMemoryError: Java heap space",
        "java.nio.channels.ClosedByInterruptException",
        "software.amazon.awssdk.thirdparty.org.apache.http.ConnectionClosedException: Premature "
        "end of Content-Length delimited message body (expected: 1,877; received: 938)",
        "java.net.SocketTimeoutException: Read timed out",
        "org.apache.http.conn.HttpHostConnectException: Connect to store:9000 failed",
        "java.net.ConnectException: Connection refused",
        "software.amazon.awssdk.services.s3.model.S3Exception: slow down (Service: S3, Status "
        "Code: 503, Request ID: 1)",
        "org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block",
        "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.ipc.RetriableException): too busy",
        "java.io.EOFException: End of File Exception between local host is: a; destination host "
        "is: b:8020\n\tat org.apache.hadoop.ipc.Client$Connection.run(Client.java:1178)",
    ],
)
def test_a_reader_that_failed_itself_has_not_found_a_damaged_file(cause):
    """Spark names the file all the same."""
    said = SAID.format("NO_HINT", "file:///job/state/left/set_id=7/part-0.parquet", " SQLSTATE: KD")
    assert file_in(said, "/job") is not None
    assert file_in(f"{said}\nCaused by: {cause}", "/job") is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("state/left.2/set_id=-7/p.parquet", SetFile("left.2", -7)),
        ("channels/left/attempt=3/_epoch=12/p.parquet", ChannelFile("left", 3, 12)),
        ("checkpoints/p.parquet", None),
        ("state/left/_delta_log/p.parquet", None),
    ],
)
def test_what_a_file_belongs_to(path, part):
    """A set, an epoch of a channel, or nothing that a checkpoint names."""
    assert part_of(f"/job/{path}", "file:/job") == part


class Job:
    """Checkpoints 1 to 5, of which 2 is deleted; 1 and 3 are compacted; 5 has another table."""

    def __init__(self):
        lineages = {1: [1], 2: [1, 2], 3: [1, 3], 4: [1, 3, 4], 5: [5]}
        flying = {4: [{"input": "left", "attempt": 1, "epoch": 3}]}
        form = {"key": [], "state": []}
        graphs = {1: {"left": {**form, "table": "left"}}, 2: {"left": {**form, "table": "left.2"}}}
        started = [
            {"attempt": n, "incarnation": n, "kind": "STARTED", "details": json.dumps(graph)}
            for n, graph in graphs.items()
        ]
        done = [
            {
                **{"checkpoint_id": n, "attempt": 1 + n // 5, "kind": "COMPLETED"},
                "stages": [{"stage": "left", "lineage": sets, "in_flight": flying.get(n, [])}],
            }
            for n, sets in lineages.items()
        ]
        more = [
            {"checkpoint_id": 2, "kind": "DELETED"},
            {
                **{"checkpoint_id": 3, "kind": "COMPACTED", "stage": "left"},
                **{"set_id": -3, "replaces": [1, 3]},
            },
        ]
        self.tables = {
            LAYOUT.attempts: pa.Table.from_pylist(started, schema=ATTEMPTS),
            LAYOUT.checkpoints: pa.Table.from_pylist([*done, *more], schema=CHECKPOINTS),
        }

    def table(self, path, columns, matches=()):
        table = self.tables[path]
        return (table.filter(expression(matches)) if matches else table).select(columns)

    def read(self, path):
        return None


@pytest.mark.parametrize(
    ("damaged", "harmed", "whole"),
    [
        (SetFile("left", 1), [1], [3, 4, 5]),
        (SetFile("left", -3), [3, 4], [1, 5]),
        (SetFile("left", 4), [4], [1, 3, 5]),
        (SetFile("left.2", 5), [5], [1, 3, 4]),
        (SetFile("left.2", 4), [], [1, 3, 4, 5]),
        (SetFile("left", 2), [], [1, 3, 4, 5]),
        (ChannelFile("left", 1, 3), [4], [1, 3, 5]),
        (ChannelFile("left", 1, 5), [], [1, 3, 4, 5]),
        (ChannelFile("left", 2, 3), [], [1, 3, 4, 5]),
        (ChannelFile("left", 1, None), [4], [1, 3, 5]),
    ],
)
def test_who_can_do_without_it(damaged, harmed, whole):
    """A set by the lineages that are read now, a channel's file by the rows in flight."""
    assert spared(needed_by(Job(), LAYOUT), [damaged]) == (harmed, whole)


def test_who_can_do_without_all_of_them():
    """What needs one of several damaged parts is lost."""
    parts = [SetFile("left", 1), SetFile("left.2", 5)]
    assert spared(needed_by(Job(), LAYOUT), parts) == ([1, 5], [3, 4])
    assert spared({}, parts) == ([], [])


def test_the_advice_names_the_newest_whole_checkpoint():
    """What is lost, and a command that works; without any, where else to look."""
    said = advice([4, 3], [1, 2])
    assert "Without it checkpoints 4, 3 cannot be read or restored" in said
    assert "absflow restore --from 2 " in said
    assert "checkpoints 9, 8, 7, 6, 5 and 2 older can" in advice([1], range(3, 10))
    assert "No checkpoint needs it; checkpoint 1 can" in advice([], [1])
    assert "there is no other checkpoint" in advice([3], [])


class Nothing:
    """A storage root whose facts cannot be read."""

    def table(self, path, columns, matches=()):
        raise StorageError("checkpoints are gone, too")

    def read(self, path):
        return None


def test_what_more_is_damaged_is_said():
    """If nobody can say what needs a file, and of a file that is no checkpoint's."""
    layout = Layout("/job")
    said = str(damage_error(Nothing(), layout, "state/left/set_id=1/p.parquet", "it is gone"))
    assert "set 1 of state history 'left'" in said
    assert "what needs it is not known: checkpoints are gone, too" in said
    said = str(damage_error(Nothing(), layout, "attempts/p.parquet", "it is gone"))
    assert said.endswith("bring it back from a copy of the storage root")
