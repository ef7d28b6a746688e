"""The oldest commits of a log go, and nothing else does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.storage.delta.log import log_file
from absflow.storage.delta.log_trim import asks_from, trim

TABLE, ID = "/job/barriers", "an-id"


class Log:
    """A log in memory: the time in ms of each version from ``first`` on."""

    def __init__(self, times, first=0, checkpoint=None):
        self.files = {
            log_file(TABLE, first + n): json.dumps({"commitInfo": {"timestamp": at}})
            for n, at in enumerate(times)
        }
        for path in list(self.files)[::2]:  # Delta writes none for some versions
            self.files[path.replace(".json", ".crc")] = ""
        if checkpoint is not None:
            hint = json.dumps({"version": checkpoint})
            self.files[f"{TABLE}/_delta_log/_last_checkpoint"] = hint
        self.deleted = []

    def read(self, path):
        return self.files.get(path)

    def names(self, directory):
        return sorted(path.rpartition("/")[2] for path in self.files if path.startswith(directory))

    def delete(self, path):
        del self.files[path]
        self.deleted.append(path)

    def trim(self, upto, before_ms):
        return trim(self.read, self.names, self.delete, TABLE, upto, before_ms)


@given(
    times=st.lists(st.integers(0, 50), min_size=1, max_size=40).map(sorted),
    first=st.integers(0, 5),
    checkpoint=st.none() | st.integers(0, 45),
    upto=st.none() | st.integers(-1, 45),
    before=st.integers(0, 60),
)
def test_what_is_old_read_and_before_the_checkpoint_goes(times, first, checkpoint, upto, before):
    """In its order, so that a kill leaves a log without a gap; all else stays."""
    log = Log(times, first, checkpoint)
    gone = [
        log_file(TABLE, first + n)
        for n, at in enumerate(times)
        if checkpoint is not None
        and first + n < checkpoint
        and (upto is None or first + n < upto)
        and at < before
    ]
    whole = set(log.files)
    assert log.trim(upto, before) == len(gone)
    assert [path for path in log.deleted if path.endswith(".json")] == gone
    beside = {path.replace(".json", ".crc") for path in gone} & whole
    assert whole - set(log.files) == {*gone, *beside}


def test_a_stream_asks_again_for_its_last_committed_batch():
    """From where that began, among all sources of the query; else nothing is known."""
    position = {"reservoirVersion": 7, "index": -1, "isStartingVersion": False}
    lines = [
        "v1",
        "{}",
        '{"logOffset":3}',
        "-",
        json.dumps({**position, "reservoirId": "another", "reservoirVersion": 2}),
        json.dumps({**position, "reservoirId": ID}),
    ]
    files = {"q/commits/4": "", "q/commits/5": "", "q/offsets/4": "\n".join(lines)}

    def names(directory):
        return [path.rpartition("/")[2] for path in files if path.startswith(directory)]

    def asked():
        return asks_from(files.get, names, "q", ID)

    assert asked() == 7
    files["q/offsets/4"] = "\n".join(lines[:-1])
    assert asked() is None
    snapshot = {**position, "reservoirId": ID, "isStartingVersion": True}
    files["q/offsets/4"] = json.dumps(snapshot)
    assert asked() is None
    del files["q/offsets/4"]
    assert asked() is None
    del files["q/commits/5"], files["q/commits/4"]
    assert asked() is None


@pytest.mark.parametrize("upto", [-1, 0])
def test_nothing_goes_while_a_stream_may_read_all(upto):
    """As when it has not committed a batch yet."""
    assert Log([1] * 9, checkpoint=8).trim(upto, 100) == 0
