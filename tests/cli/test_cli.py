"""The command line against storage roots whose answers are known."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from storage_roots import (
    CHECKPOINT_HISTORY,
    KEY_VALUES,
    Checkpoint,
    aircraft,
    compact,
    retire,
    write_rich_root,
    write_root,
    write_small_root,
)

from absflow.cli import documents
from absflow.cli.commands import absflow

GOLDEN = Path(__file__).parent / "golden"
COMPLETED = [c.id for c in CHECKPOINT_HISTORY if c.kind == "COMPLETED"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small_root(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return write_rich_root(tmp_path_factory.mktemp("rich"))


def run(root, *arguments, env=None):
    """What a command line does in a terminal of 80 columns."""
    path = [] if root is None else ["--storage", str(getattr(root, "path", root))]
    environment = {"COLUMNS": "80", "ABSFLOW_STORAGE": None, **(env or {})}
    return CliRunner().invoke(absflow, [*arguments, *path], env=environment)


def succeed(root, *arguments, env=None):
    done = run(root, *arguments, env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def document(root, *arguments):
    return json.loads(succeed(root, *arguments, "--json"))


def failure(root, *arguments):
    """The one line of an error of absflow."""
    done = run(root, *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr.removesuffix("\n")


def as_json(row):
    return {name: documents.plain(value) for name, value in row.items()}


def by_key(rows):
    return sorted(rows, key=str)


# -- what people see --------------------------------------------------------------------------


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
        ("delete", "--help"),
    ],
    ids=" ".join,
)
def test_what_is_printed_is_golden(small, arguments):
    """Tables and help look as in golden/; UPDATE_GOLDEN=1 writes them anew."""
    root = None if "--help" in arguments else small
    printed = succeed(root, *arguments)
    printed = "".join(line.rstrip() + "\n" for line in printed.splitlines())
    file = GOLDEN / (re.sub(r"\W+", "-", " ".join(arguments)).strip("-") + ".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(printed, encoding="utf-8")
    assert printed == file.read_text(encoding="utf-8")


def test_the_real_tables_are_not_styled_in_a_pipe(small):
    """No escape codes reach a pipe."""
    assert "\x1b" not in succeed(small, "history")


# -- what retention has done ------------------------------------------------------------------


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


# -- what programs see ------------------------------------------------------------------------


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
        "status": "ABORTED",
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


# -- which files are read ---------------------------------------------------------------------


def test_only_the_lineage_is_read(small, tmp_path):
    """State at 4 needs the sets 1, 3 and 4 only: the files of all others may be gone."""
    root = tmp_path / "job"
    shutil.copytree(small.path, root)
    for folder in (root / "state" / "aircraft").glob("set_id=*"):
        if folder.name not in {"set_id=1", "set_id=3", "set_id=4"}:
            shutil.rmtree(folder)
    assert document(root, "state", "aircraft", "--at", "4")["keys"] == 4
    assert "could not read table" in failure(root, "state", "aircraft", "--at", "8")


# -- the storage root -------------------------------------------------------------------------


def test_the_storage_root_is_found_in_three_places(small, tmp_path):
    """--storage, else --properties-file, else the environment."""
    conf = tmp_path / "job.conf"
    conf.write_text(
        "# spark.absflow.storage.path /nowhere\nspark.master local\n"
        f"spark.absflow.storage.path   {small.path}  \n"
    )
    expected = succeed(small, "history")
    missing = {"ABSFLOW_STORAGE": "/nowhere"}
    assert succeed(small, "history", "--properties-file", str(conf), env=missing) == expected
    assert succeed(None, "history", "--properties-file", str(conf), env=missing) == expected
    assert succeed(None, "history", env={"ABSFLOW_STORAGE": str(small.path)}) == expected
    assert succeed(f"file:{small.path}/", "history") == expected


@pytest.mark.parametrize("line", ["{}={}", "{} : {}", "  {}\t{}"])
def test_properties_are_read_as_java_does(small, tmp_path, line):
    """Key and value are parted by blanks, = or a colon."""
    conf = tmp_path / "job.conf"
    conf.write_text(line.format("spark.absflow.storage.path", small.path))
    succeed(None, "history", "--properties-file", str(conf))


def test_a_job_that_has_just_started_has_an_empty_history(tmp_path):
    """No checkpoint is no error for history, but there is no state yet."""
    root = write_root(tmp_path, [aircraft()], [Checkpoint(1, kind=None)])
    assert "0 completed, 0 aborted, 1 pending" in succeed(root, "history")
    assert failure(root, "state", "aircraft") == (
        "absflow: there is no completed checkpoint; 1 were triggered"
    )


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("state", "planes"),
            "there is no stage 'planes'; the job has 'legs', 'aircraft', 'route-pairs'",
        ),
        (
            ("state", "legs"),
            "stage 'legs' forwards a source and keeps no state; those that do are 'aircraft', "
            "'route-pairs'",
        ),
        (
            ("state", "aircraft", "--at", "2"),
            "checkpoint 2 was aborted (EXPIRED: not every stage reported within "
            "its timeout); completed are 6 from 1 to 8",
        ),
        (
            ("state", "aircraft", "--at", "9"),
            "checkpoint 9 is pending; completed are 6 from 1 to 8",
        ),
        (("show", "10"), "checkpoint 10 was never triggered; completed are 6 from 1 to 8"),
        (
            ("state", "route-pairs", "--key", "tailnum=N1"),
            "'tailnum' is no key column; stage 'route-pairs' has the key columns 'origin', 'day'",
        ),
        (
            ("state", "route-pairs", "--key", "day=tomorrow"),
            "key column 'day' has type date32[day], which 'tomorrow' is not; give it as `absflow "
            "state --json` prints it",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_what_is_not_there_is_said_with_what_is(small, arguments, said):
    """One line on stderr and exit code 1."""
    assert failure(small, *arguments) == f"absflow: {said}"


def test_another_directory_is_no_storage_root(tmp_path):
    """The error names the table that was looked for."""
    for root in (tmp_path, tmp_path / "absent"):
        assert failure(root, "history") == (
            f"absflow: {str(root)!r} is not the storage root of a job: there is no table "
            f"{str(root / 'attempts')!r}; give the job's spark.absflow.storage.path"
        )


def test_a_properties_file_must_set_the_storage_root(tmp_path):
    """The error names file and key."""
    conf = tmp_path / "job.conf"
    conf.write_text("spark.master local\n")
    assert failure(None, "history", "--properties-file", str(conf)) == (
        f"absflow: {str(conf)!r} does not set spark.absflow.storage.path; add it, or use --storage"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("history",), "no storage root given"),
        (("show", "seven"), "'seven' is not a valid integer"),
        (("history", "--limit", "-1"), "-1 is not in the range"),
        (("history", "--properties-file", "absent.conf"), "does not exist"),
        (("forget",), "No such command 'forget'"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments, said):
    """Usage errors are click's own."""
    done = run(None, *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True)


# -- the program ------------------------------------------------------------------------------


def python(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("history",), ("state", "aircraft", "--key", "tailnum=N4")])
def test_no_command_imports_pyspark(small, arguments):
    """A command needs no JVM, and does not wait for the import of what would start one."""
    done = python(
        "import sys\n"
        "from absflow.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'delta'})",
        *arguments,
        *("--storage", str(small.path)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("package", ["click", "rich", "deltalake"])
def test_a_missing_extra_is_named(package):
    """Without the extra one line says what to install."""
    code = f"import sys; sys.modules[{package!r}] = None\nfrom absflow.cli.main import main\nmain()"
    done = python(code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"absflow: the command line needs {package!r}, which is not installed; "
        "pip install 'absflow[cli]'\n"
    )


def test_version_is_printed():
    """`absflow --version` says which."""
    assert re.fullmatch(r"absflow \d+\.\d+\.\d+\n", succeed(None, "--version"))
