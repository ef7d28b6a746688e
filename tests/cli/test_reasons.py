"""The lines of ``absflow gc --dry-run`` that say why things stay."""

import pyarrow as pa
from commands_run import document, succeed
from storage_roots import Checkpoint, Stage, write_root

from absflow.cli.reasons import grouped

KEY, N = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())])
STATES = {n: [{"k": "a", "n": n}] for n in range(1, 41)}
CHECKPOINTS = [Checkpoint(n, n - 1) for n in range(1, 41)]


def test_what_stays_for_one_reason_is_one_line():
    """Its number, and the first and last; a line of another reason parts two runs."""
    newest = [f"checkpoint {n}: one of the newest 100" for n in range(1, 8) if n != 4]
    other = "checkpoint 4: a savepoint"
    assert grouped([*newest[:3], other, *newest[3:]]) == [
        "3 checkpoints from 1 to 3: one of the newest 100",
        other,
        "3 checkpoints from 5 to 7: one of the newest 100",
    ]


def test_sets_are_grouped_by_stage_whatever_names_them():
    """Which checkpoints name each is in the document; two lines stay two."""
    sets = [
        "set -9 of stage a: named by checkpoint 9",
        "set 10 of stage a: named by checkpoints 10, 11 and 7 more",
        "set 11 of stage a: named by checkpoint 11",
        "set 12 of stage a: checkpoint 12 is pending",
        "set 10 of stage b: named by checkpoint 10",
        "set 11 of stage b: named by checkpoint 11",
    ]
    said = "3 sets of stage a from -9 to 11: named by checkpoints that stay"
    assert grouped(sets) == [said, *sets[3:]]


def test_what_is_of_no_kind_stands_as_it_is():
    """Such as a channel's epochs, however many follow each other."""
    lines = [f"working directory of attempt {n}: the current attempt" for n in range(4)]
    assert grouped(lines) == lines


def test_the_command_groups_and_its_document_does_not(tmp_path):
    """A job of 40 checkpoints fits on a screen."""
    root = write_root(tmp_path / "job", [Stage("a", KEY, N, STATES)], CHECKPOINTS)
    lines = succeed(root, "gc", "--dry-run", "--max-sets", "1000").splitlines()
    assert "stays: 39 checkpoints from 1 to 39: one of the newest 100" in lines
    assert "stays: 40 sets of stage a from 1 to 40: named by checkpoints that stay" in lines
    assert len(lines) < 10
    stays = document(root, "gc", "--dry-run", "--max-sets", "1000")["stays"]
    assert len(stays) == 80
