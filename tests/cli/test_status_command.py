"""`absflow status`: the driver, the newest checkpoints and the stages, on one screen."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
from commands_run import document, failure, run, succeed
from deltalake import DeltaTable
from storage_roots import (
    Checkpoint,
    Stage,
    complete,
    end_driver,
    fail_restore,
    restore,
    write_root,
)

from absflow.protocol.event_time import EventTime, to_json
from absflow.protocol.retention.failures import after_plan
from absflow.protocol.retention.failures import document as document_of
from absflow.protocol.watermarks import StageTime
from absflow.storage.layout import Layout

AGE = r"\d+ d \d+ h"


def test_all_of_it_is_on_one_screen(small):
    """How old the newest checkpoint is, what is under way, and the stages as they were."""
    screen = [line.rstrip() for line in succeed(small, "status").splitlines()]
    assert screen[1] == "driver     2, which has not ended"
    assert screen[2] == "attempt    1"
    completed = rf"completed +checkpoint 8, {AGE} ago \(2026-01-02 09:01:32 UTC\), in 12\.0 s"
    assert re.fullmatch(completed, screen[3])
    (pending,) = (line for line in screen if line.startswith("pending"))
    assert re.fullmatch(rf"pending    checkpoint 9, triggered {AGE} ago", pending)
    (row,) = (line.split() for line in screen if line.startswith("aircraft"))
    assert row == ["aircraft", "2", "2.5", "MB", "75%", "0%", "4,500", "9.3", "s"]
    assert [line for line in screen if line.startswith("route-pairs (ended)")]


def test_the_document_has_the_same(small):
    """As `show` has it, with the age in ms."""
    status = document(small, "status")
    assert status["last_completed"] == document(small, "show", "latest")
    assert [row["checkpoint_id"] for row in status["pending"]] == [9]
    assert (status["aborted_since"], status["failing"]) == ([], [])
    assert status["driver"] == {"incarnation": 2, "end": None}
    assert status["age_ms"] > 0


def test_late_rows_are_in_the_documents_and_on_the_screen(tmp_path):
    """Of the newest checkpoint, by stage."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    root = write_root(tmp_path / "job", [Stage("x", keys, columns)], [Checkpoint(1)])
    (stage,) = DeltaTable(root.path / "checkpoints").to_pyarrow_table().to_pylist()[0]["stages"]
    reached = to_json(EventTime(StageTime({}, 1_767_344_400_000_000, 0), {}))
    timed = {**stage, "checkpoint_id": 2, "late_rows": 1_234, "event_time": reached}
    complete(root, 2, stages=[timed])
    last = document(root, "status")["last_completed"]
    assert last == document(root, "show", "2") == document(root, "show", "latest")
    (shown,) = last["stages"]
    assert (shown["watermark"], shown["late_rows"]) == ("2026-01-02T09:00:00+00:00", 1_234)
    assert "late rows  in checkpoint 2: x 1,234" in succeed(root, "status")


def test_a_sink_that_is_behind_is_on_the_screen(tmp_path):
    """By what it has noted; one that has all is in the document only."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    sinks = {"all": "x", "some": "x", "none": "x"}
    checkpoints = [Checkpoint(1), Checkpoint(2)]
    root = write_root(tmp_path / "job", [Stage("x", keys, columns)], checkpoints, sinks=sinks)
    for sink, upto in (("all", 2), ("some", 1)):
        note = Path(Layout(str(root.path)).published(sink, 1))
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(upto))
    assert document(root, "status")["sinks"] == [
        {"sink": "all", "published": 2},
        {"sink": "some", "published": 1},
        {"sink": "none", "published": 0},
    ]
    shown = [line.rstrip() for line in succeed(root, "status").splitlines() if line[:4] == "sink"]
    assert shown == [
        "sink       some has what came up to checkpoint 1",
        "sink       none has nothing yet",
    ]


def test_an_age_that_is_too_old_is_the_exit_code(small):
    """For a monitor: 1 and one line on stderr; the screen is there all the same."""
    done = run(small, "status", "--max-age", "10min")
    assert (done.exit_code, "completed" in done.stdout) == (1, True)
    line = rf"absflow: the newest completed checkpoint is {AGE} old; at most 10 min 00 s .*\n"
    assert re.fullmatch(line, done.stderr)
    assert run(small, "status", "--max-age", "10000d").exit_code == 0
    assert "is not a duration" in run(small, "status", "--max-age", "soon").stderr


def test_what_failed_since_is_told_with_its_cause(tmp_path):
    """Checkpoints behind the newest completed one, and what retention cannot do."""
    history = (
        Checkpoint(1),
        Checkpoint(2, 1, "ABORTED", "EXPIRED"),
        Checkpoint(3, 1, "ABORTED", "SNAPSHOT_FAILED", "stage a: disk full"),
    )
    root = write_root(tmp_path / "job", [], history)
    note = document_of(after_plan({}, {"compaction of stage a": "disk full"}, 1_767_344_400_000))
    (root.path / Layout(str(root.path)).retention_failures).write_text(note)
    screen = " ".join(succeed(root, "status").split())
    assert "aborted 2 since then; checkpoint 3: SNAPSHOT_FAILED, stage a: disk full" in screen
    assert "retention fails: compaction of stage a, once" in screen


def test_a_reason_without_a_cause_stands_alone(tmp_path):
    """Most of them need none."""
    history = (Checkpoint(1), Checkpoint(2, 1, "ABORTED", "EXPIRED"))
    screen = succeed(write_root(tmp_path / "job", [], history), "status").splitlines()
    (line,) = (line.rstrip() for line in screen if line.startswith("aborted"))
    assert line == "aborted    1 since then; checkpoint 2: EXPIRED"


def test_a_job_without_a_checkpoint_and_a_root_without_a_job(tmp_path):
    """None completed is too old for every age; a wrong root is an error."""
    root = write_root(tmp_path / "job", [], (Checkpoint(1, 0, None),))
    assert "completed  none" in succeed(root, "status")
    done = run(root, "status", "--max-age", "1h")
    assert (done.exit_code, "no checkpoint has completed" in done.stderr) == (1, True)
    shutil.rmtree(root.path)
    assert "is not the storage root of a job" in failure(root, "status")


def test_a_driver_that_ended_and_a_restored_attempt(tmp_path):
    """The newest driver and attempt count; what was left pending is aborted."""
    root = write_root(tmp_path / "job", [], (Checkpoint(1), Checkpoint(2, 1, None)))
    end_driver(root)
    assert "driver 2, which has ended" in " ".join(succeed(root, "status").split())
    status = document(root, "status")
    assert (status["driver"]["end"], status["pending"]) == ("ended", [])
    assert [row["reason"] for row in status["aborted_since"]] == ["DRIVER_RESTART"]
    restore(root, 2, 1)
    status = document(root, "status")
    assert (status["driver"], status["attempt"]) == ({"incarnation": 3, "end": None}, 2)
    assert status["restored_from"] == f"{root.path}#1"


def test_a_restore_that_failed_is_not_the_attempt_of_the_job(tmp_path):
    """The next start goes on with the one before; the driver is shown all the same."""
    root = write_root(tmp_path / "job", [], (Checkpoint(1),))
    fail_restore(root, 2, 1)
    status = document(root, "status")
    assert (status["attempt"], status["restored_from"]) == (1, None)
    assert status["driver"] == {"incarnation": 3, "end": "failed"}
