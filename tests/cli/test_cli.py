"""The command line against storage roots whose answers are known."""

import base64
import json
import os
import re
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from commands_run import document, failure, run, seen_of, succeed
from shared_roots import CHECKPOINT_HISTORY, KEY_VALUES, write_small_root
from storage_roots import compact, retire

from absflow.cli import documents
from absflow.protocol.retention.failures import after_plan
from absflow.protocol.retention.failures import document as document_of
from absflow.storage.layout import Layout

GOLDEN = Path(__file__).parent / "golden"
COMPLETED = [c.id for c in CHECKPOINT_HISTORY if c.kind == "COMPLETED"]


def as_json(row):
    return {name: documents.plain(value) for name, value in row.items()}


def by_key(rows):
    return sorted(rows, key=str)


@pytest.mark.parametrize(
    "arguments",
    [
        ("history",),
        ("history", "--limit", "2"),
        ("show", "4"),
        ("show", "7"),
        ("show", "8"),
        ("show", "9"),
        ("state", "aircraft", "--at", "3"),
        ("state", "aircraft", "--limit", "1"),
        ("state", "route-pairs", "--at", "1"),
        ("state", "route-pairs", "--at", "1", "--key", "origin=EWR", "--key", "day"),
        ("--help",),
        ("history", "--help"),
        ("show", "--help"),
        ("state", "--help"),
        ("gc", "--help"),
        ("gc", "--dry-run", "--retained", "2", "--max-sets", "1"),
        ("restore", "--help"),
        ("savepoint", "--help"),
        ("status", "--help"),
        ("delete", "--help"),
        ("verify", "--help"),
        ("new", "--help"),
        ("doctor", "--help"),
        ("changes", "--help"),
        ("diff", "--help"),
        ("export", "--help"),
        ("report", "--help"),
        ("serve", "--help"),
        ("stop", "--help"),
        ("watch", "--help"),
        ("simulate", "--help"),
        ("completion", "--help"),
    ],
    ids=" ".join,
)
def test_what_is_printed_is_golden(small, arguments):
    """Tables and help look as in golden/; UPDATE_GOLDEN=1 writes them anew."""
    is_golden(succeed(None if "--help" in arguments else small, *arguments), arguments)


def is_golden(printed, arguments, look=""):
    printed = "".join(line.rstrip() + "\n" for line in printed.splitlines())
    name = re.sub(r"\W+", "-", " ".join(arguments)).strip("-")
    file = GOLDEN / f"{name}{look}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(printed, encoding="utf-8")
    assert printed == file.read_text(encoding="utf-8")


LOOKS = [
    ("history",),
    ("show", "8"),
    ("show", "7"),
    ("state", "route-pairs", "--at", "1"),
    ("diff", "4", "8", "--stage", "aircraft"),
    ("changes", "aircraft", "--key", "tailnum=N1"),
    ("verify", "5"),
    ("show", "--help"),
]


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_wider_it_is_golden_too(small, arguments):
    """In 160 columns."""
    root = None if "--help" in arguments else small
    is_golden(succeed(root, *arguments, env={"COLUMNS": "160"}), arguments, "-160")


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_on_a_terminal_it_is_golden_too(small, arguments, columns):
    """With its colours."""
    root = [] if "--help" in arguments else ["--storage", str(small.path)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    command = [str(Path(sys.executable).with_name("absflow")), *arguments, *root]
    is_golden(seen_of(command, environment), arguments, f"-terminal-{columns}")


def test_show_without_an_id_is_of_the_latest(small):
    """Neither the pending 9 nor an aborted one."""
    assert succeed(small, "show") == succeed(small, "show", "latest") == succeed(small, "show", "8")


def test_the_real_tables_are_not_styled_in_a_pipe(small):
    """No escape codes reach a pipe."""
    assert "\x1b" not in succeed(small, "history")


@pytest.fixture
def retained(tmp_path):
    """1 and 3 are deleted, and the sets of `aircraft` up to 4 are one."""
    root = write_small_root(tmp_path)
    for n in (1, 3):
        retire(root, n)
    compact(root, "aircraft", 4, [1, 3, 4])
    return root


def test_a_compacted_lineage_is_read_by_its_set(retained):
    """Every checkpoint that is left has the state it had, and shows the lineage it was given."""
    for n in (4, 5, 6, 8):
        rows = document(retained, "state", "aircraft", "--at", str(n))["state"]
        assert by_key(rows) == by_key(map(as_json, retained.state("aircraft", n)))
    assert document(retained, "show", "5")["stages"][1]["lineage"] == [1, 3, 4]


@pytest.mark.parametrize("command", [("show", "3"), ("state", "aircraft", "--at", "3")])
def test_a_deleted_checkpoint_is_refused_in_words(retained, command):
    """What was deleted is shown apart from what never was."""
    assert failure(retained, *command) == (
        "absflow: checkpoint 3 was deleted; completed are 4 from 4 to 8 "
        "(spark.absflow.checkpoint.retained says how many are kept)"
    )


def test_history_lists_what_was_deleted(retained):
    """It ran once; its status says that it is gone."""
    shown = document(retained, "history")
    assert shown["summary"]["deleted"] == 2
    assert shown["summary"]["completed"] == 4
    status = {row["checkpoint_id"]: row["status"] for row in shown["checkpoints"]}
    assert (status[1], status[2], status[3], status[4]) == (
        "DELETED",
        "ABORTED",
        "DELETED",
        "COMPLETED",
    )
    assert "4 completed, 2 aborted, 1 pending, 2 deleted" in succeed(retained, "history")


def test_gc_plans_and_deletes_nothing(retained):
    """The plan follows from the facts; without --dry-run there is none."""
    before = sorted(str(p) for p in retained.path.rglob("*"))
    shown = document(retained, "gc", "--dry-run", "--retained", "2")
    assert shown["actions"][:2] == ["delete checkpoint 4", "delete checkpoint 5"]
    assert "checkpoint 8: one of the newest 2, attempt 1 goes on from it" in shown["stays"][1]
    assert run(retained, "gc").exit_code == 2
    assert sorted(str(p) for p in retained.path.rglob("*")) == before


def test_a4_gc_shows_what_failed_when_the_driver_tried_it_last(retained):
    """Why, when, and how often in a row; in words and as JSON."""
    noted = Path(Layout(str(retained.path)).retention_failures)
    at = 1_767_344_400_000
    failing = after_plan({}, {"compaction of stage aircraft": "no space left on device"}, at)
    failing = after_plan(failing, {"compaction of stage aircraft": "disk quota"}, at + 60_000)
    noted.write_text(document_of(failing))
    try:
        shown = document(retained, "gc", "--dry-run")
        assert shown["failing"] == [
            {
                "what": "compaction of stage aircraft",
                "error": "disk quota",
                "at": "2026-01-02T09:01:00+00:00",
                "since": "2026-01-02T09:00:00+00:00",
                "in_a_row": 2,
            }
        ]
        assert succeed(retained, "gc", "--dry-run").splitlines()[-1] == (
            "failed: compaction of stage aircraft, 2 times in a row, since 2026-01-02 09:00:00 "
            "UTC, last at 2026-01-02 09:01:00 UTC: disk quota"
        )
    finally:
        noted.unlink()
    assert document(retained, "gc", "--dry-run")["failing"] == []


def test_history_as_json_has_every_checkpoint(small):
    """Each checkpoint is there once, with status, times and what it wrote; nulls if unknown."""
    shown = document(small, "history")
    assert shown["summary"] == {
        "pending": 1,
        "completed": 6,
        "aborted": 2,
        "deleted": 0,
        "median_duration_ms": 6750.0,
    }
    rows = shown["checkpoints"]
    assert [r["checkpoint_id"] for r in rows] == [c.id for c in CHECKPOINT_HISTORY]
    assert [r["status"] for r in rows] == [c.kind or "PENDING" for c in CHECKPOINT_HISTORY]
    assert rows[1] == {
        "checkpoint_id": 2,
        "type": "CHECKPOINT",
        "status": "ABORTED",
        "abandoned": False,
        "reason": "EXPIRED",
        "sentence": "not every stage reported within its timeout",
        "cause": None,
        "attempt": 1,
        "base_id": 1,
        "triggered_at": "2026-01-02T09:00:20+00:00",
        "ended_at": "2026-01-02T09:00:23+00:00",
        "duration_ms": 3000,
        "rows_changed": None,
        "bytes_changed": None,
    }
    assert (rows[3]["rows_changed"], rows[3]["bytes_changed"]) == (7, 7000)
    assert (rows[8]["ended_at"], rows[8]["duration_ms"]) == (None, None)


def test_history_as_json_can_be_limited_and_the_summary_stays_whole(small):
    """--limit lists the newest, --limit 0 all."""
    shown = document(small, "history", "--limit", "2")
    assert [r["checkpoint_id"] for r in shown["checkpoints"]] == [8, 9]
    assert shown["summary"]["completed"] == 6
    assert len(document(small, "history", "--limit", "0")["checkpoints"]) == 9


def test_show_as_json_has_the_manifest(small):
    """The stages come in the manifest's order; one that ended keeps its last report."""
    shown = document(small, "show", "8")
    assert [s["stage"] for s in shown["stages"]] == ["legs", "aircraft", "route-pairs"]
    assert [s["snapshot_id"] for s in shown["stages"]] == [8, 8, 5]
    assert [s["lineage"] for s in shown["stages"]] == [[], [6, 8], [1, 3, 4, 5]]
    assert shown["stages"][0]["positions"] == {"legs": '{"logOffset":3}'}
    assert shown["stages"][1]["alignment_ms"] == 400
    assert shown["versions"]["pyspark"] == "4.2.0"


def test_state_at_every_completed_checkpoint(rich):
    """Every stage's state is found at every completed checkpoint, whatever its types."""
    for stage in rich.stages.values():
        for n in COMPLETED if stage.keys.names else []:
            shown = document(rich, "state", stage.name, "--at", str(n))
            expected = [
                as_json({name: row.get(name) for name in (*stage.keys.names, *stage.columns.names)})
                for row in rich.state(stage.name, n)
            ]
            assert by_key(shown["state"]) == by_key(expected)
            assert (shown["stage"], shown["checkpoint_id"]) == (stage.name, n)
            assert (shown["key"], shown["keys"]) == (stage.keys.names, len(expected))


def test_state_without_at_is_that_of_the_newest_completed(small):
    """Neither the pending 9 nor an aborted one is taken."""
    assert document(small, "state", "aircraft")["checkpoint_id"] == 8


@pytest.mark.parametrize("name", KEY_VALUES)
def test_a_key_of_any_type_is_found_by_what_is_printed(rich, name):
    """A value copied from the JSON finds its key; the column's name alone finds the null key."""
    _, value = KEY_VALUES[name]
    text = documents.plain(value)
    given = str(text).lower() if isinstance(text, bool) else str(text)
    shown = document(rich, "state", f"by-{name}", "--at", "3", "--key", f"k={given}")
    assert shown["state"] == [{"k": text, "n": 4}]
    shown = document(rich, "state", f"by-{name}", "--at", "3", "--key", "k")
    assert shown["state"] == [{"k": None, "n": 2}]


def test_an_absent_key_is_no_error(small):
    """A key that has no state gives an empty answer."""
    assert document(small, "state", "aircraft", "--key", "tailnum=N9")["state"] == []
    assert "0 of 0 keys" in succeed(small, "state", "aircraft", "--key", "tailnum=N9")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Decimal("1E-9"), "0.000000001"),
        (b"\x00", base64.b64encode(b"\x00").decode()),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),
        (date(2026, 1, 2), "2026-01-02"),
        ({"a": [(1, None)]}, {"a": [[1, None]]}),
        (2**60, 2**60),
    ],
)
def test_values_as_json(value, expected):
    """Each kind of value has one form, and the document stays valid JSON."""
    assert documents.plain(value) == expected
    json.loads(documents.text({"value": documents.plain(value)}))
