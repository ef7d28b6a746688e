"""A10: storage roots and key columns with odd names, on the command line."""

import dataclasses
import os
import re
import shutil

import pyarrow as pa
import pytest
from commands_run import document, failure, succeed
from deltalake import DeltaTable, write_deltalake
from shared_roots import write_small_root
from storage_roots import Checkpoint, Stage, requests, write_root

from absflow.cli import asking
from absflow.cli.reader import Reader
from absflow.errors import StorageError
from absflow.facts.columns import ATTEMPTS
from absflow.protocol.recovery.attempts import parse_target
from absflow.storage.layout import check_place

TAKEN = [
    "100%",
    "a%zz",
    "a b",
    "a#b",
    "a=b",
    "ü",
    "\U0001f600",
    "it's",
    "a,b",
    "a:b",
    "a;b",
    "a&b+c",
    "$x",
    "(a)<b>",
]
REFUSED = [
    "a`b",
    'a"b',
    "a%20b",
    "%C3%BC",
    "a\\b",
    "a?b",
    "a*",
    "a[b]",
    "{a}",
    "${x}",
    "a|b",
    "a^b",
    "line\nbreak",
]


@pytest.mark.parametrize("folder", TAKEN)
def test_a10_a_root_may_have_an_odd_path(folder, small, tmp_path):
    """Its state is read, retention planned, and a request written where the driver looks for it."""
    path = tmp_path / folder / "job"
    shutil.copytree(small.path, path)
    assert document(path, "state", "aircraft") == document(small.path, "state", "aircraft")
    assert document(path, "gc", "--dry-run") == document(small.path, "gc", "--dry-run")
    request = asking.ask_to_delete(Reader(str(path)), [1])
    rows = requests(dataclasses.replace(small, path=path))
    assert [row["request"] for row in rows] == [request]
    assert os.listdir(tmp_path) == [folder]


@pytest.mark.parametrize("folder", REFUSED)
def test_a10_a_root_that_is_not_found_by_all_is_refused(folder, small, tmp_path):
    """By its readers as by a start, and nothing is looked for elsewhere."""
    path = tmp_path / folder / "job"
    shutil.copytree(small.path, path)
    said = failure(path, "history")
    assert re.search(
        r"the storage root .* has '.*' in its path, .*; choose a path without it", said
    )
    with pytest.raises(StorageError, match="choose a path without it"):
        check_place(f"file:{path}")


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file://{}/"])
def test_a10_a_root_has_several_forms(form, small):
    """As Spark takes them: a path, a URI with one or three slashes, with a slash at the end."""
    assert document(form.format(small.path), "history") == document(small.path, "history")


def write_restored_root(root, origin):
    """The small root, with a second attempt that was restored."""
    write_small_root(root)
    attempts = DeltaTable(root / "attempts").to_pyarrow_table().to_pylist()
    for row in attempts:
        row |= {"attempt": 2, "incarnation": 3, "restored_from": origin}
    write_deltalake(root / "attempts", pa.Table.from_pylist(attempts, ATTEMPTS), mode="append")


def test_a10_a_relative_root_is_the_same_root(tmp_path, monkeypatch):
    """Also to what compares it with the root of a checkpoint that the job was restored from."""
    write_restored_root(tmp_path, f"file:{tmp_path}#6")
    due = document(tmp_path, "gc", "--dry-run")
    monkeypatch.chdir(tmp_path.parent)
    assert document(tmp_path.name, "gc", "--dry-run") == due


def test_a_root_that_is_moved_keeps_its_restores(tmp_path):
    """They are no forks then: what was abandoned is, and what is due to go is the same."""
    write_restored_root(tmp_path / "then", "#6")
    due = document(tmp_path / "then", "gc", "--dry-run")
    history = document(tmp_path / "then", "history")
    (tmp_path / "then").rename(tmp_path / "now")
    assert document(tmp_path / "now", "gc", "--dry-run") == due
    assert document(tmp_path / "now", "history") == history
    assert document(tmp_path / "now", "status")["restored_from"] == f"{tmp_path}/now#6"


def test_a10_the_last_number_sign_is_before_the_id():
    """Of what `restore.from` names, and of what an attempt says it was restored from."""
    target = parse_target("/a#1/b#c#7")
    assert (target.root, target.checkpoint_id) == ("/a#1/b#c", 7)


ODD = [
    ".",
    ".a",
    "a.b",
    "`",
    "a`b",
    "set",
    "Ä\U0001f600",
    '"a"',
    "it's",
    "#?%20",
    "a[b]",
    "x" * 300,
]


@pytest.mark.parametrize("name", ODD)
def test_a10_a_key_column_may_have_any_name_that_delta_takes(name, tmp_path):
    """State is found by it, and shown."""
    keys, columns = pa.schema([(name, pa.string())]), pa.schema([(f"{name}n", pa.int64())])
    states = {n: [{name: k, f"{name}n": n} for k in ("x", "y", None)] for n in (1, 2)}
    stage = Stage("s", keys, columns, states)
    root = write_root(tmp_path, [stage], [Checkpoint(1), Checkpoint(2, 1)])
    shown = document(root, "state", "s", "--key", f"{name}=y")
    assert shown["state"] == [{name: "y", f"{name}n": 2}]
    shown = document(root, "state", "s", "--at", "1")
    assert shown["state"] == [{name: k, f"{name}n": 1} for k in ("x", "y", None)]
    assert "3 of 3 keys" in succeed(root, "state", "s")
