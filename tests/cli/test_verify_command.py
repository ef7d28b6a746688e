"""``absflow verify``: what is whole, what is damaged, and what to do then."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands_run import document, failure, run, succeed
from damaging import checked, flip, flip_in_values
from deltalake import write_deltalake
from storage_roots import Root, compact

from absflow.columnar.pages import channel_schema
from absflow.columnar.piece_files import write_pieces
from absflow.storage.state_files import MountedStateFiles

STAGES = 4


@pytest.fixture
def root(small, tmp_path):
    """The small root, with the rows in flight that checkpoint 8 refers to, and a state file."""
    path = tmp_path / "job"
    shutil.copytree(small.path, path)
    schema = channel_schema(pa.schema([("n", pa.int64())]))
    rows = [
        {"_epoch": epoch, "_seq": seq, "_key_group": 0, "_kind": "DATA", "n": seq}
        for epoch in (7, 8, 9)
        for seq in range(629 * (epoch == 8) or 5)
    ]
    table = pa.Table.from_pylist(rows, schema)
    write_deltalake(path / "channels/legs/attempt=1", table, partition_by=["_epoch"])
    folder = path / "work/attempt=1/aircraft/state"
    folder.mkdir(parents=True)
    write_pieces(MountedStateFiles(str(folder), 0), "3/9-base", [pa.record_batch({"k": [1, 2]})])
    (folder / ".half").write_bytes(b"a kill left it")
    return Root(path, small.stages, small.checkpoints)


def damaged(root, checkpoint_id):
    """What the command says of a checkpoint that is damaged, and its document."""
    done = run(root, "verify", str(checkpoint_id))
    assert (done.exit_code, done.stderr) == (1, "")
    as_json = run(root, "verify", str(checkpoint_id), "--json")
    assert as_json.exit_code == 1
    return " ".join(done.stdout.split())


def set_file(root, set_id) -> Path:
    (path,) = (root.path / f"state/aircraft/set_id={set_id}").glob("*.parquet")
    return path


@pytest.mark.parametrize("checkpoint_id", [1, 3, 4, 5, 6, 8])
def test_a9_what_is_whole_is_read_and_found_so(root, checkpoint_id):
    """Sets, rows in flight and state files of every checkpoint; so is it after a compaction."""
    assert f"checkpoint {checkpoint_id} is whole" in succeed(root, "verify", str(checkpoint_id))
    found = document(root, "verify", str(checkpoint_id))
    assert (found["whole"], found["advice"]) == (True, "")
    parts = {part["part"]: part for part in found["parts"] if part["stage"] == "aircraft"}
    assert sum(part["rows"] for part in parts.values()) > 0
    assert ("rows in flight from legs" in parts) == (checkpoint_id == 8)
    assert parts["state that attempt 1 works on"]["files"] == 1


def test_verify_without_an_id_is_of_the_latest(root):
    """As `show` is; the pending 9 is none."""
    assert succeed(root, "verify") == succeed(root, "verify", "8")
    assert document(root, "verify")["checkpoint_id"] == 8


def test_a9_verify_finds_a_flipped_bit_in_a_set(root):
    """By the checksum of the page, naming the file, and a checkpoint that does not need it."""
    path = set_file(root, 4)
    checked(path)
    succeed(root, "verify", "5")
    flip_in_values(path, "legs")
    said = damaged(root, 5)
    assert "set 4 of stage aircraft: file " in said
    assert path.name in said
    assert "Without it checkpoints 5, 4 cannot be read or restored" in said
    assert "absflow restore --from 8 " in said
    succeed(root, "verify", "8")


def test_a9_verify_finds_other_rows_by_the_digest(root):
    """A set with a changed value, and one with a row less, in files that are whole."""
    path = set_file(root, 4)
    table = pq.read_table(path)
    legs = table.schema.get_field_index("legs")
    other = table.set_column(legs, "legs", pa.array([999] * table.num_rows, pa.int64()))
    pq.write_table(other, path)
    assert "it has rows with other values than were written" in damaged(root, 5)
    pq.write_table(table.slice(1), path)
    rows = table.num_rows
    assert f"it has {rows - 1} rows where {rows} were written" in damaged(root, 5)
    path.unlink()
    assert "is gone" in damaged(root, 5)


def test_a9_verify_looks_at_what_compaction_wrote(root):
    """The set in the place of others has a digest of its own."""
    compact(root, "aircraft", 4, [1, 3, 4])
    assert "checkpoint 5 is whole" in succeed(root, "verify", "5")
    path = set_file(root, -4)
    pq.write_table(pq.read_table(path).slice(1), path)
    assert "set -4 of stage aircraft: it has" in damaged(root, 5)


def test_a9_verify_finds_damaged_rows_in_flight(root):
    """A flipped bit, then rows that are not there, in the channel's file of epoch 8."""
    (path,) = (root.path / "channels/legs/attempt=1/_epoch=8").glob("*.parquet")
    checked(path)
    succeed(root, "verify", "8")
    flip_in_values(path, "n")
    said = damaged(root, 8)
    assert "rows in flight from legs of stage aircraft: file " in said
    assert "Without it checkpoint 8 cannot be read or restored" in said
    assert "absflow restore --from 6 " in said
    flip_in_values(path, "n")
    pq.write_table(pq.read_table(path).slice(9), path)
    assert "there are 620 rows where 629 were in flight" in damaged(root, 8)
    succeed(root, "verify", "6")


def test_a9_verify_finds_a_damaged_state_file(root):
    """The checkpoint is whole, and to restore it is what helps."""
    (path,) = (root.path / "work/attempt=1/aircraft/state/3").iterdir()
    flip(path, 8 * 90)
    said = damaged(root, 8)
    assert f"{path.name}' is corrupt: checksum" in said
    assert "The checkpoint is whole, but the job cannot go on by itself" in said
    assert "absflow restore --from 8" in said


def test_what_is_not_completed_is_not_verified(root):
    """With the words of the other commands."""
    assert "checkpoint 2 was aborted" in failure(root, "verify", "2")
    assert "checkpoint 99 was never triggered" in failure(root, "verify", "99")
