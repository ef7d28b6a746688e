"""`absflow changes`, `diff` and `export`."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands_run import document, failure, run, succeed
from pyarrow import csv
from storage_roots import Checkpoint, Stage, write_root

KEYS = pa.schema([("k", pa.string()), ("d", pa.int32())])
COLUMNS = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])


def row(k, d, n, *tags):
    return {"k": k, "d": d, "n": n, "tags": list(tags)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    states = {
        1: [row("a", 1, 10, "x"), row("b", 1, 20), row(None, None, 5)],
        2: [row("a", 1, 10, "x"), row("b", 1, 20), row(None, None, 5)],
        3: [row("a", 1, 11, "x"), row("c", None, 30), row(None, None, 5, "new")],
        4: [row("a", 1, 12, "x"), row("b", 1, 21), row("c", None, 30), row(None, None, 6, "new")],
    }
    plain = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    flat = Stage("flat", *plain, {1: [{"k": 1, "n": 2}], 4: [{"k": 1, "n": None}]})
    checkpoints = [Checkpoint(n, max(0, n - 1)) for n in range(1, 5)]
    folder = tmp_path_factory.mktemp("job")
    return write_root(folder, [Stage("x", KEYS, COLUMNS, states), flat], checkpoints)


def test_what_a_key_has_been(root):
    """A checkpoint at which it had not changed is left out; one at which it was gone is not."""
    found = document(root, "changes", "x", "--key", "k=b", "--key", "d=1")
    assert [(c["checkpoint_id"], c["state"] and c["state"]["n"]) for c in found["changes"]] == [
        (4, 21),
        (3, None),
        (1, 20),
    ]
    null = document(root, "changes", "x", "--key", "k", "--key", "d")
    assert [c["state"]["n"] for c in null["changes"]] == [6, 5, 5]
    lines = succeed(root, "changes", "x", "--key", "k=b", "--key", "d=1").splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["4", "21", "[]"],
        ["3", "-", "-"],
        ["1", "20", "[]"],
    ]


def test_a_key_that_is_no_key(root):
    assert "has the key columns" in failure(root, "changes", "x", "--key", "k=b")
    said = failure(root, "changes", "x", "--key", "k=nobody", "--key", "d=1")
    assert "had no key k=nobody d=1 at any of the 4 newest checkpoints" in said
    assert "--key k=..." in failure(root, "changes", "x", "--key", "nobody")
    assert "no stage" in failure(root, "changes", "y", "--key", "k=b")


def test_stages_without_state_are_no_part_of_a_comparison(small):
    """As one that only forwards a source."""
    found = document(small, "diff", "1", "5")
    assert [each["stage"] for each in found["stages"]] == ["aircraft", "route-pairs"]


def test_two_checkpoints_are_compared(root):
    """By stage, how many keys came, went and changed; nulls and lists are values like others."""
    found = document(root, "diff", "1", "3")
    assert found["stages"][0] == {"stage": "x", "came": 1, "went": 1, "changed": 2}
    assert document(root, "diff", "1", "2")["stages"] == [
        {"stage": name, "came": 0, "went": 0, "changed": 0} for name in ("x", "flat")
    ]
    flat = document(root, "diff", "1", "latest", "--stage", "flat")["stages"][0]
    assert flat["keys"]["before"] == [{"k": 1, "n": 2}]
    assert flat["keys"]["after"] == [{"k": 1, "n": None}]


def test_key_by_key(root):
    lines = [line.split() for line in succeed(root, "diff", "1", "3", "--stage", "x").splitlines()]
    assert ["+", "c", "NULL", "30", "[]"] in lines
    assert ["-", "b", "1", "20", "[]"] in lines
    assert ["~", "a", "1", "10", "->", "11", '["x"]'] in lines
    assert ["~", "NULL", "NULL", "5", "[]", "->", '["new"]'] in lines


def test_what_is_compared_is_all(root):
    """Whatever two states are: what came, went and changed makes one of the other."""
    for earlier, later in ((1, 4), (4, 1), (2, 3)):
        (found, _) = document(root, "diff", str(earlier), str(later))["stages"]
        then, now = root.state("x", earlier), root.state("x", later)
        old = {(r["k"], r["d"]): r for r in then}
        new = {(r["k"], r["d"]): r for r in now}
        assert found["came"] == len(new.keys() - old.keys())
        assert found["went"] == len(old.keys() - new.keys())
        assert found["changed"] == sum(old[k] != new[k] for k in old.keys() & new.keys())


def test_a_state_is_written_into_a_file(root, tmp_path):
    target = tmp_path / "x.parquet"
    said = succeed(root, "export", "x", str(target), "--at", "3")
    assert said == f"wrote {target}: 3 keys of x at checkpoint 3\n"
    found = pq.read_table(target).to_pylist()
    assert sorted(found, key=str) == sorted(root.state("x", 3), key=str)
    flat = tmp_path / "flat.csv"
    assert document(root, "export", "flat", str(flat))["keys"] == 1
    assert csv.read_csv(flat).to_pylist() == [{"k": 1, "n": None}]


def test_files_that_cannot_be(root, tmp_path):
    nested = run(root, "export", "x", str(tmp_path / "x.csv"))
    assert (nested.exit_code, "column 'tags' has no form in CSV" in nested.stderr) == (2, True)
    odd = run(root, "export", "x", str(tmp_path / "x.json"))
    assert (odd.exit_code, "neither .parquet nor .csv" in odd.stderr) == (2, True)
    gone = failure(root, "export", "x", str(tmp_path / "none" / "x.parquet"))
    assert gone.endswith("give another file")


def test_many_keys(tmp_path):
    """More than a table of the screen: compared as columns, not row by row."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    numbers = np.arange(5000)
    states = {
        1: [{"k": int(k), "n": int(k)} for k in numbers],
        2: [{"k": int(k), "n": int(k) + (k % 10 == 0)} for k in numbers + 1000],
    }
    root = write_root(
        tmp_path, [Stage("x", keys, columns, states)], [Checkpoint(1), Checkpoint(2, 1)]
    )
    assert document(root, "diff", "1", "2")["stages"] == [
        {"stage": "x", "came": 1000, "went": 1000, "changed": 400}
    ]
