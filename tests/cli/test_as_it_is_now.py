"""What is said of checkpoints by the job as it is now: its branch, and whether its driver lives."""

import json

import pytest
from click.testing import CliRunner
from commands_run import document, failure, succeed
from shared_roots import write_small_root
from storage_roots import complete, end_driver, requests, restore

from absflow.cli import submit
from absflow.cli.commands import absflow
from absflow.cli.documents import cell
from absflow.facts.lock import hold

pytestmark = pytest.mark.usefixtures("job_program")


@pytest.fixture
def root(tmp_path):
    return write_small_root(tmp_path / "job")


@pytest.fixture
def restored(root):
    """Attempt 2 goes on from 4; it has taken savepoint 10 and checkpoint 11."""
    restore(root, 2, 4)
    complete(root, 10, attempt=2, type="SAVEPOINT")
    complete(root, 11, attempt=2)
    return root


def shown(root):
    return {row["checkpoint_id"]: row for row in document(root, "history")["checkpoints"]}


def test_what_a_restore_has_abandoned_is_marked(restored):
    """It is what lies beside the branch of the newest attempt, however it ended."""
    rows = shown(restored)
    assert [n for n, row in rows.items() if row["abandoned"]] == [5, 6, 7, 8, 9]
    assert {n: row["attempt"] for n, row in rows.items() if n > 8} == {9: 1, 10: 2, 11: 2}
    line = next(x for x in succeed(restored, "history").splitlines() if x.startswith(" 8 "))
    assert line.endswith("abandoned")
    assert "abandoned   by a restore" in succeed(restored, "show", "8")
    assert "abandoned" not in succeed(restored, "show", "4")


def test_savepoints_are_marked(restored):
    """In the list, in the document, and at the head of one."""
    types = {n: row["type"] for n, row in shown(restored).items()}
    assert [n for n, type_ in types.items() if type_ == "SAVEPOINT"] == [10]
    line = next(x for x in succeed(restored, "history").splitlines() if x.startswith("10 "))
    assert line.endswith("savepoint")
    assert succeed(restored, "show", "10").startswith("savepoint  10")
    assert document(restored, "show", "10")["type"] == "SAVEPOINT"


def test_latest_is_the_newest_of_the_branch(restored):
    """Not what was abandoned, even if that is newer, and not what is pending."""
    assert document(restored, "show", "latest")["checkpoint_id"] == 11
    restore(restored, 3, 4)
    assert document(restored, "show", "latest")["checkpoint_id"] == 4
    at = document(restored, "state", "aircraft", "--at", "latest")
    assert at["checkpoint_id"] == 4
    assert document(restored, "verify", "latest")["checkpoint_id"] == 4


def test_what_an_ended_driver_left_pending_is_aborted(root):
    """As the next start will say; the list, its counts, and the checkpoint itself agree."""
    assert shown(root)[9]["status"] == "PENDING"
    end_driver(root)
    row = shown(root)[9]
    assert (row["status"], row["reason"]) == ("ABORTED", "DRIVER_RESTART")
    cause = "driver incarnation 2 has ended; the next start aborts what it has left"
    assert document(root, "show", "9")["cause"] == cause
    assert "6 completed, 3 aborted, 0 pending" in succeed(root, "history")
    refused = (
        "absflow: checkpoint 9 did not complete: driver incarnation 2 has ended; completed are 6 "
        "from 1 to 8"
    )
    assert failure(root, "state", "aircraft", "--at", "9") == refused
    assert failure(root, "delete", "9", "--yes") == refused


def test_a_killed_driver_is_known_by_its_lock(root):
    """It has said nothing; but nobody holds the lock that it held on this machine."""
    lock = hold(f"file:{root.path}", lambda: None)
    assert shown(root)[9]["status"] == "PENDING"
    lock.release()
    row = shown(root)[9]
    assert (row["status"], row["cause"].partition(";")[0]) == (
        "ABORTED",
        "driver incarnation 2 has gone",
    )


def test_the_lock_of_another_machine_says_nothing(root):
    """Its file system may not show there what is locked here."""
    (root.path / "driver.lock").write_text("pid 7 on another-machine, started 2026-01-02")
    assert shown(root)[9]["status"] == "PENDING"


def test_a_savepoint_of_a_dead_job_is_refused_at_once(root):
    """Nothing is asked, and what to do is said."""
    hold(f"file:{root.path}", lambda: None).release()
    assert failure(root, "savepoint") == (
        f"absflow: the job under {str(root.path)!r} is not running (its driver, incarnation 2, has "
        "gone), so there is nothing to stop, and nobody to take a savepoint"
    )
    assert requests(root) == []


def test_show_takes_nulls_for_what_was_not_measured(root):
    """A manifest of another version may have them."""
    row = dict.fromkeys(("held_rows", "held_bytes", "rows_changed", "async_ms", "rows_out"))
    report = {**row, "stage": "aircraft", "checkpoint_id": 10, "batch_id": 1, "lineage": []}
    complete(root, 10, stages=[report])
    (stage,) = document(root, "show", "10")["stages"]
    assert (stage["held_rows"], stage["async_ms"], stage["rows_out"]) == (0, 0, None)
    assert "aircraft" in succeed(root, "show", "10")


# -- state ------------------------------------------------------------------------------------


def test_state_is_found_by_its_columns_too(root):
    """As it is at the checkpoint: an older value of a key is not found."""
    given = ("state", "aircraft", "--at", "4", "--key")
    assert [r["tailnum"] for r in document(root, *given, "legs=1")["state"]] == ["N1"]
    assert document(root, *given, "legs=3")["state"] == []
    assert [r["tailnum"] for r in document(root, *given, "delay")["state"]] == ["N2", "N5"]
    both = document(root, *given, "tailnum=N4", "--key", "legs=4")
    assert [r["delay"] for r in both["state"]] == [0.0]


def test_a_nested_column_is_asked_for_null_only(root):
    """A map has no text by which to look for it."""
    said = failure(root, "state", "route-pairs", "--key", "seen=x")
    assert said.startswith("absflow: column 'seen' has type map")


def test_long_nested_values_are_cut():
    """A table stays one; a text is whole, and so is a short list."""
    long = cell({"a": list(range(100))})
    assert (len(long), long[-1]) == (60, "…")
    assert cell("x" * 100) == "x" * 100
    assert cell([1, 2]) == "[1, 2]"


# -- restore ----------------------------------------------------------------------------------


@pytest.fixture
def no_spark(monkeypatch):
    """Nothing may be started."""

    def started(*_):
        raise AssertionError("spark-submit was run")

    monkeypatch.setattr(submit, "plan_of", started)
    monkeypatch.setattr(submit, "become", started)


@pytest.mark.parametrize("target", ["300", "2", "{}#300"])
def test_a_restore_looks_for_its_checkpoint_first(root, no_spark, target):
    """What is not there is said without Spark, in the words of the driver."""
    target = target.format(root.path)
    said = "checkpoint 2 was aborted" if target == "2" else "checkpoint 300 was never triggered"
    given = ["restore", "--storage", str(root.path), "--from", target]
    done = CliRunner().invoke(absflow, [*given, "--plan", "--json", "job.py"])
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.exit_code, problem.startswith(said)) == (1, True)
    done = CliRunner().invoke(absflow, [*given, "job.py"])
    assert (done.exit_code, done.stderr) == (1, f"absflow: {problem}\n")


def test_a_restore_from_what_is_no_root(tmp_path, no_spark):
    """As the driver says it."""
    given = ["restore", "--from", f"{tmp_path}#4", "--plan", "--json", "job.py"]
    (problem,) = json.loads(CliRunner().invoke(absflow, given).stdout)["problems"]
    assert problem.startswith(f"{str(tmp_path)!r} is not the storage root of a job")
    assert problem.endswith("spark.absflow.restore.from takes latest, ID, or PATH#ID")
