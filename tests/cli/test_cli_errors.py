"""Where commands look, what they refuse, and how the program starts."""

import re
import shutil
import subprocess
import sys

import pytest
from commands_run import document, failure, run, succeed
from shared_roots import aircraft
from storage_roots import Checkpoint, write_root


def test_only_the_lineage_is_read(small, tmp_path):
    """State at 4 needs the sets 1, 3 and 4 only: the files of all others may be gone."""
    root = tmp_path / "job"
    shutil.copytree(small.path, root)
    for folder in (root / "state" / "aircraft").glob("set_id=*"):
        if folder.name not in {"set_id=1", "set_id=3", "set_id=4"}:
            shutil.rmtree(folder)
    assert document(root, "state", "aircraft", "--at", "4")["keys"] == 4
    assert "is damaged: it is gone" in failure(root, "state", "aircraft", "--at", "8")


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
            "stage 'route-pairs' has no column 'tailnum'; it has the key columns 'origin', 'day' "
            "and the state columns 'seen', 'op-n'",
        ),
        (
            ("state", "route-pairs", "--key", "day=tomorrow"),
            "column 'day' has type date32[day], which 'tomorrow' is not; give it as `absflow "
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
            f"absflow: {str(root)!r} is not the storage root of a job (or its job is just "
            f"starting): there is no table {str(root / 'attempts')!r}; give the job's "
            "spark.absflow.storage.path"
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
        (("show", "seven"), "'seven' is neither latest, nor a checkpoint's id"),
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
