"""The log of a Delta table is followed commit by commit."""

from __future__ import annotations

import json

import pytest

from absflow.storage.delta.log import LogTail, find_newest, has_commit

FILES: dict[str, str] = {}


def names(path: str) -> list[str]:
    return [file.removeprefix(f"{path}/") for file in FILES]


def commit(version: int, app_id: str, txn: int) -> None:
    """Put one log file in place."""
    lines = [
        {"commitInfo": {"userMetadata": f"note {version}"}},
        {"txn": {"appId": app_id, "version": txn}},
        {"add": {"path": "f", "size": 10, "stats": json.dumps({"numRecords": 3})}},
    ]
    FILES[f"t/_delta_log/{version:020d}.json"] = "\n".join(map(json.dumps, lines))


def test_a_tail_reads_each_commit_once_and_remembers_transactions() -> None:
    """What was found stays found, and only new files are read."""
    FILES.clear()
    reads: list[str] = []

    def read(path: str) -> str | None:
        reads.append(path)
        return FILES.get(path)

    tail = LogTail(read, names, "t")
    assert not tail.find("app", 0)
    commit(0, "app", 5)
    commit(1, "other", 9)
    assert [c.version for c in tail.advance()] == [0, 1]
    assert tail.transactions == {"app": 5, "other": 9}
    reads.clear()
    assert tail.find("app", 5)
    assert not tail.find("app", 6)
    assert all(path.endswith("2.json") for path in reads)


def test_a_tail_begins_behind_the_last_checkpoint() -> None:
    """What came before may be gone: Delta deletes old log files."""
    FILES.clear()
    FILES["t/_delta_log/_last_checkpoint"] = json.dumps({"version": 40, "size": 3})
    commit(41, "app", 7)
    tail = LogTail(FILES.get, names, "t")
    assert [c.version for c in tail.advance()] == [41]
    assert tail.find("app", 7)


@pytest.mark.parametrize("torn", ["", '{"version":4'])
@pytest.mark.parametrize("first", [0, 30])
def test_a_torn_hint_is_no_hint(torn: str, first: int) -> None:
    """A kill of Delta's write leaves it empty; what commits there are are read."""
    FILES.clear()
    FILES["t/_delta_log/_last_checkpoint"] = torn
    FILES[f"t/_delta_log/{first + 1:020d}.checkpoint.parquet"] = ""
    for version in range(first, first + 3):
        commit(version, "app", version)
    tail = LogTail(FILES.get, names, "t")
    assert [c.version for c in tail.advance()] == [first, first + 1, first + 2]


def test_a_torn_hint_of_an_empty_log() -> None:
    """Whatever comes is read."""
    FILES.clear()
    FILES["t/_delta_log/_last_checkpoint"] = ""
    tail = LogTail(FILES.get, names, "t")
    commit(0, "app", 1)
    assert [c.version for c in tail.advance()] == [0]


@pytest.mark.parametrize("hint", [None, "", 0, 3, 8])
@pytest.mark.parametrize("newest", [*range(20), 100, 1023])
def test_the_newest_version_is_found_without_a_list(newest: int, hint: int | str | None) -> None:
    """By a few looks, from the last checkpoint on; a week's log has sixty thousand names."""
    hint = min(hint, newest) if isinstance(hint, int) else hint
    FILES.clear()
    for version in range(hint or 0, newest + 1):
        commit(version, "app", version)
    if hint is not None:
        FILES["t/_delta_log/_last_checkpoint"] = json.dumps({"version": hint}) if hint else "{"
    looks: list[str] = []

    def exists(path: str) -> bool:
        looks.append(path)
        return path in FILES

    assert find_newest(FILES.get, exists, forbidden, "t") == newest
    assert len(looks) <= 22
    assert has_commit(exists, forbidden if hint in {None, "", 0} else names, "t")


def test_no_table_has_no_version() -> None:
    """A kill may leave the directory of a log with nothing in it; one without its start is read."""
    FILES.clear()
    assert find_newest(FILES.get, FILES.__contains__, names, "t") is None
    assert not has_commit(FILES.__contains__, names, "t")
    commit(7, "app", 7)
    assert find_newest(FILES.get, FILES.__contains__, names, "t") == 7
    assert has_commit(FILES.__contains__, names, "t")


def forbidden(path: str) -> list[str]:
    pytest.fail(f"{path} was listed")
