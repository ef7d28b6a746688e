"""``absflow delete``: what it shows, whom it asks, and what it writes for the driver."""

import json
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from commands_run import typed_into
from deltalake import write_deltalake
from shared_roots import write_small_root
from storage_roots import Root, answer, end_driver, requests, retire

from absflow.cli import asking
from absflow.cli.commands import absflow
from absflow.cli.reader import Reader
from absflow.errors import DeletionError
from absflow.facts.columns import REQUESTS
from absflow.protocol.retention.inventory import DeleteSets

MAIN = "from absflow.cli.main import main; main()"


@pytest.fixture
def root(tmp_path):
    """Completed are 1, 3, 4, 5, 6 and 8; 9 is pending; the driver has not said that it ended."""
    return write_small_root(tmp_path)


def run(root, *arguments):
    """What a command line does without a terminal."""
    return CliRunner().invoke(
        absflow, ["delete", *arguments, "--storage", str(root.path)], env={"COLUMNS": "80"}
    )


def failure(root, *arguments):
    done = run(root, *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    return done.stderr.removesuffix("\n").removeprefix("absflow: ")


def terminal(root, *arguments, typed):
    """The exit code, and all that a person sees who types this."""
    command = [sys.executable, "-c", MAIN, "delete", *arguments, "--storage", str(root.path)]
    return typed_into(command, typed)


# -- what it shows ----------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_freed(root):
    """Only sets that no other checkpoint reads, with the size of their files."""
    shown = json.loads(run(root, "5", "3", "1", "4", "3", "--dry-run", "--json").stdout)
    assert [c["checkpoint_id"] for c in shown["checkpoints"]] == [1, 3, 4, 5]
    assert shown["frees"] == ["delete sets 1, 3, 4 of stage aircraft"]
    paths = (root.path / "state" / "aircraft").glob("set_id=*/*.parquet")
    size = sum(p.stat().st_size for p in paths if p.parent.name[7:] in {"1", "3", "4"})
    assert (shown["bytes"], shown["answer"]) == (size, "DRY RUN")
    seen = run(root, "1", "3", "4", "5", "--dry-run")
    assert seen.exit_code == 0
    assert "delete sets 1, 3, 4 of stage aircraft" in seen.stdout
    assert seen.stdout.endswith("nothing was deleted\n")
    assert requests(root) == []


def test_shared_sets_are_not_freed(root):
    """The lineages of 4 and 5 begin with what 3 has."""
    done = run(root, "3", "--dry-run")
    assert "frees nothing by itself: all that it reads is read by others, too" in done.stdout


def test_what_is_freed_is_what_retention_then_deletes(root):
    """The plan for what is left has the very actions that were shown."""
    frees = Reader(str(root.path)).deletion([1, 3, 4]).frees
    assert frees == ()  # 5 reads all of it
    frees = Reader(str(root.path)).deletion([6]).frees
    assert frees == ()  # 8 is laid on it
    (sets,) = Reader(str(root.path)).deletion([1, 3, 4, 5]).frees
    assert sets == DeleteSets("aircraft", (1, 3, 4))


# -- what it refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ("1 10", "checkpoint 10 was never triggered; completed are 6 from 1 to 8"),
        ("9", "checkpoint 9 is pending; completed are 6 from 1 to 8"),
        (
            "2",
            "checkpoint 2 was aborted (EXPIRED: not every stage reported within its timeout); "
            "completed are 6 from 1 to 8",
        ),
        (
            "1 8",
            "nothing was deleted: checkpoint 8 is needed: attempt 1 goes on from it, base of "
            "pending checkpoint 9; ask again when a newer one has completed",
        ),
    ],
)
def test_what_cannot_be_deleted_is_refused(root, ids, said):
    """In one line, before anybody is asked; nothing is written."""
    assert failure(root, *ids.split(), "--yes") == said
    assert requests(root) == []


def test_what_was_deleted_is_refused(root):
    """As whatever else asks for it."""
    retire(root, 3)
    assert failure(root, "3", "--yes").startswith("checkpoint 3 was deleted; completed are 5 ")


@pytest.mark.parametrize("option", [(), ("--json",)], ids=str)
def test_without_a_terminal_nobody_is_asked(root, option):
    """It needs --yes then, and JSON needs it too."""
    done = run(root, "1", *option)
    assert (done.exit_code, requests(root)) == (2, [])
    assert "nobody can be asked here; give --yes, or --dry-run to look first" in done.stderr


def test_on_a_terminal_no_is_no(root):
    """It shows what would go, asks, and ends."""
    code, seen = terminal(root, "1", typed=b"n\n")
    assert (code, requests(root)) == (1, [])
    assert "Delete checkpoint 1? [y/N]: " in seen
    assert seen.endswith("Aborted!\r\n")


# -- what it asks the driver ------------------------------------------------------------------


def test_without_a_driver_the_request_stands(root):
    """On a terminal, after a yes; the next driver finds the row, whatever its number."""
    end_driver(root)
    code, seen = terminal(root, "3", "1", typed=b"y\n")
    assert code == 0
    assert "no driver runs the job under" in seen.replace("\r\n", " ")
    (row,) = requests(root)
    assert (row["delete"], row["incarnation"], row["stop"]) == ([1, 3], None, None)


def ask_and_answer(root: Root, *arguments, **fact):
    """What a driver is asked, and what the command does with its answer."""
    answers = []
    driver = threading.Thread(target=lambda: answers.append(answer(root, 20, **fact)))
    driver.start()
    done = run(root, *arguments)
    driver.join()
    return answers[0], done


def test_the_driver_answers(root):
    """DELETED is success."""
    asked, done = ask_and_answer(root, "1", "--yes", checkpoint_id=1, kind="DELETED")
    assert (asked["delete"], done.exit_code) == ([1], 0)
    assert done.stdout.endswith(
        f"deleted checkpoint 1 of the job under {root.path}; files go within a day\n"
    )


def test_the_driver_answers_in_json(root):
    """One document, that is all."""
    _, done = ask_and_answer(root, "1", "--yes", "--json", checkpoint_id=1, kind="DELETED")
    assert json.loads(done.stdout)["answer"] == "DELETED"


def test_the_driver_refuses(root):
    """Its reason is the error."""
    _, done = ask_and_answer(root, "1", "--yes", kind="REFUSED", cause="it is needed")
    assert (done.exit_code, done.stderr) == (1, "absflow: nothing was deleted: it is needed\n")


def test_a_driver_that_is_gone_does_not_answer(root):
    """It was killed: nobody knows, so the command gives up, and says that the request stands."""
    done = run(root, "1", "--yes", "--timeout", "0.1")
    assert done.exit_code == 1
    assert "no answer within 0.1 s. The request stands" in done.stderr
    assert len(requests(root)) == 1


def test_a_driver_that_ends_while_it_is_asked(root):
    """The request stands, too."""
    request = asking.ask_to_delete(Reader(str(root.path)), [1])
    end_driver(root)
    assert asking.await_deletion(Reader(str(root.path)), request, 20) is False
    answer(root, 1, kind="REFUSED", cause="why not")
    with pytest.raises(DeletionError, match="why not"):
        asking.await_deletion(Reader(str(root.path)), request, 20)


def test_a_table_of_an_earlier_version_gets_the_column(root):
    """Its rows stay as they are, and mean what they meant."""
    names = [f.name for f in REQUESTS if f.name != "delete"]
    row = {"request": "old", "incarnation": 2, "requested_at": datetime.now(timezone.utc)}
    old = pa.Table.from_pylist([row], schema=pa.schema([REQUESTS.field(n) for n in names]))
    write_deltalake(Path(root.path, "requests"), old)
    asking.ask_to_delete(Reader(str(root.path)), [1])
    assert {(r["request"] == "old", str(r["delete"])) for r in requests(root)} == {
        (True, "None"),
        (False, "[1]"),
    }
