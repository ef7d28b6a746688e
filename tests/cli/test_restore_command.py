"""``absflow restore``: what it shows of a plan, and how it runs the job's program.

That a real plan changes nothing, and a real restore is what it said, is tests/spark's.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from absflow.cli import cells, restore_command, submit
from absflow.cli.commands import absflow
from absflow.errors import JobFailedError
from absflow.protocol.checkpoints import ChannelState
from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.recovery.matching import StageFit
from absflow.sinks import SinkRestore
from absflow.spark.start.restore_plan import Overdue, RestorePlan

pytestmark = pytest.mark.usefixtures("job_program")

GOLDEN = Path(__file__).parent / "golden"

ROOT = "file:/data/jobs/flights"
SAME = {
    "restores": True,
    "origin": {"root": ROOT, "checkpoint_id": 42},
    "taken_in_attempt": 1,
    "attempt": 2,
    "fork": False,
    "next_checkpoint_full": False,
    "stages": [
        {
            "stage": name,
            "source": name,
            "keys": keys,
            "lineage": lineage,
            "table": f"{ROOT}/state/{name}",
            "key_groups_then": 8,
            "key_groups_now": 8,
            "changed": False,
            "migrate": False,
            "overdue_timers": 0,
            "expired_since": 0,
            "in_flight": [],
        }
        for name, keys, lineage in (("aircraft", 3148, [1, 7, 40, 42]), ("airports", 3, [42]))
    ],
    "positions": {"legs": '{"logOffset":119}', "weather": "-"},
    "sinks": [
        {
            "sink": "delays",
            "place": "file:/data/flights/delays",
            "version_now": 131,
            "version_then": None,
            "undone": [],
            "note": "",
            "columns_added": [],
            "columns_unfilled": [],
        }
    ],
    "differences": [],
    "problems": [],
}
FLYING = ChannelState("airports", "planes", 1, "-", 40, 0, (), rows=1234, bytes=56_789)


def other():
    """A plan with everything in it that can be: a fork that has no place for some of it."""
    plan = copy.deepcopy(SAME)
    aircraft, airports = plan["stages"]
    aircraft |= {"source": "planes", "changed": True, "key_groups_now": 16}
    aircraft["table"] = f"{ROOT}/state/planes.3"
    airports |= {"migrate": True, "changed": True, "overdue_timers": 7, "expired_since": 12_345}
    airports["in_flight"] = [{"input": "aircraft", "rows": 1234, "bytes": 56_789}]
    nothing = {"source": None, "keys": 0, "lineage": [], "table": None, "key_groups_then": 0}
    stages = [aircraft, airports, {**aircraft, "stage": "routes", "changed": False, **nothing}]
    undone = [f"version {n} (WRITE, 2026-01-02 09:00:0{n} UTC)" for n in (6, 7, 9)]
    sinks = [
        {**plan["sinks"][0], "version_now": 9, "version_then": 5, "undone": undone},
        {
            **plan["sinks"][0],
            "sink": "alarms",
            "place": "",
            "version_now": None,
            "note": "what was written after checkpoint 42 stays, and will be written again under "
            "another app_id",
        },
    ]
    differences = [
        "stage 'planes' is now 'aircraft'",
        "stage 'aircraft' (was 'planes'): 8 key groups become 16",
        "stage 'airports': its state is migrated by its own function",
        "stage 'routes' is new: it begins without state",
    ]
    return plan | {
        "fork": True,
        "next_checkpoint_full": True,
        "stages": stages,
        "sinks": sinks,
        "differences": differences,
    }


DOCUMENTS = {
    "plan-same": SAME,
    "plan-other": other(),
    "plan-problems": other()
    | {
        "problems": [
            "source 'legs' was parquet, is kafka, and a position of the one says nothing about "
            "the other; give the new source another name",
            "sink table 'file:/data/flights/delays' has commits that are not this job's",
        ]
    },
    "plan-not-found": {
        "restores": False,
        "problems": ["checkpoint 43 was never triggered; completed are 6 from 1 to 42"],
    },
    "plan-nothing": {"restores": False, "problems": []},
}


def test_a_plan_says_what_it_holds():
    """The document of a real plan is the one by hand, in every key and value."""
    history = f"{ROOT}/state"
    plan = RestorePlan(
        origin=Origin(ROOT, 42),
        attempt=2,
        fork=True,
        stages=(
            StageFit("aircraft", "planes", (1, 7, 40, 42), 3148, True, key_groups=(8, 16)),
            StageFit("airports", "airports", (42,), 3, True, True, (8, 8), (("aircraft", FLYING),)),
            StageFit("routes", None, key_groups=(0, 16)),
        ),
        positions=SAME["positions"],
        source_logs={},
        sinks={
            sink["sink"]: SinkRestore(
                sink["place"],
                sink["version_now"],
                sink["version_then"],
                tuple(sink["undone"]),
                ("a problem of a sink is one of the plan",),
                sink["note"],
            )
            for sink in other()["sinks"]
        },
        tables={"planes": "planes.3", "airports": "airports"},
        keys={},
        taken_in=1,
        published={},
        cut=42,
        overdue={"airports": Overdue(7, 12_345)},
        differences=tuple(other()["differences"]),
        problems=("it cannot be",),
    )
    assert [s["table"] for s in plan.document()["stages"]] == [
        f"{history}/planes.3",
        f"{history}/airports",
        None,
    ]
    assert plan.document() == other() | {"problems": ["it cannot be"]}
    assert json.loads(json.dumps(plan.document())) == plan.document()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_plan_is_shown_as_in_golden(name, monkeypatch, capsys):
    """Each block, problems, and the line that says what to run; UPDATE_GOLDEN=1 writes anew."""
    monkeypatch.setenv("COLUMNS", "100")
    restore_command.show_plan(DOCUMENTS[name], ["--conf", "spark.master=local[2]", "job.py", "a b"])
    printed = "".join(line.rstrip() + "\n" for line in capsys.readouterr().out.splitlines())
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(printed, encoding="utf-8")
    assert printed == file.read_text(encoding="utf-8")


def test_problems_are_red():
    """On a terminal they cannot be overlooked."""
    console = Console(force_terminal=True, color_system="standard", width=60)
    with console.capture() as shown:
        console.print(cells.listed("problems", ["it cannot be"], "red"))
    assert "\x1b[31mit cannot be" in shown.get()


def program(folder, text):
    file = folder / "program.py"
    file.write_text(text)
    return [str(file)]


PYTHON = sys.executable
# Takes the place of spark-submit: passes its options on to the program, which can see them.
INTERPRETER = [PYTHON, "-c", "import sys; sys.argv.pop(0); exec(open(sys.argv[-1]).read())"]


def test_the_plan_is_what_the_program_has_written(tmp_path, capsys):
    """Its own output, of both kinds, goes to stderr; its exit code does not matter."""
    wrote = program(
        tmp_path,
        "import json\n"
        "print('to stdout')\n"
        "print('to stderr', file=sys.stderr)\n"
        "name, _, file = sys.argv[-2].partition('=')\n"
        "assert name == 'spark.absflow.restore.plan'\n"
        f"open(file, 'w').write(json.dumps({SAME!r}))\n"
        "sys.exit(1)\n",
    )
    assert submit.plan_of(INTERPRETER, wrote) == SAME
    said = capsys.readouterr()
    assert said.out == ""
    assert sorted(said.err.splitlines()) == ["to stderr", "to stdout"]


@pytest.mark.parametrize(
    ("text", "code"), [("sys.exit(3)", 3), ("raise RuntimeError('no such table')", 1), ("", 0)]
)
def test_a_program_without_a_plan_is_an_error(tmp_path, capsys, text, code):
    """The exit code is named; the last lines, which are above, say why."""
    with pytest.raises(JobFailedError, match=f"ended with exit code {code} before"):
        submit.plan_of(INTERPRETER, program(tmp_path, text))
    assert ("no such table" in capsys.readouterr().err) == ("table" in text)


@pytest.mark.parametrize(("text", "code"), [("sys.exit(7)", 7), ("", 0)])
def test_a_restore_has_the_exit_code_of_its_program(tmp_path, text, code):
    """Nothing of this process is left beside it."""
    command = [*INTERPRETER, *program(tmp_path, f"print('done', sys.argv[-1])\n{text}")]
    become = f"from absflow.cli.submit import become; become({command!r})"
    done = subprocess.run(
        [sys.executable, "-c", become], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, f"done {command[-1]}\n", "")


def test_a_restore_gets_the_signals(tmp_path):
    """It has the process id that was started."""
    text = "import signal\nprint('ready', flush=True)\nsignal.pause()"
    command = [*INTERPRETER, *program(tmp_path, text)]
    become = f"from absflow.cli.submit import become; become({command!r})"
    with subprocess.Popen([sys.executable, "-c", become], stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait() == -signal.SIGTERM


def test_spark_submit_is_that_of_this_environment(tmp_path, monkeypatch):
    """Whatever else is in PATH; if there is none beside, the one in PATH is taken."""
    mine = Path(sys.executable).parent / "spark-submit"
    other = tmp_path / "spark-submit"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit.spark_submit() == str(mine)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert submit.spark_submit() == str(other)
    other.unlink()
    done = CliRunner().invoke(absflow, ["restore", "--from", "1", "--plan", "job.py"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("absflow: there is no spark-submit beside")


def options_of(tmp_path, monkeypatch, *arguments, **environment):
    """What a command line hands to spark-submit, which here prints it as a plan's problem."""
    tool = tmp_path / "bin" / "spark-submit"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(
        f"#!{PYTHON}\n"
        "import json, sys\n"
        "plan = next(a for a in sys.argv if a.startswith('spark.absflow.restore.plan='))\n"
        "shown = [a for a in sys.argv[1:] if a != plan]\n"
        "document = {'restores': False, 'problems': shown}\n"
        "open(plan.partition('=')[2], 'w').write(json.dumps(document))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool.parent / "python"))
    given = ["restore", "--plan", "--json", *arguments]
    done = CliRunner().invoke(absflow, given, env={"ABSFLOW_STORAGE": None, **environment})
    assert (done.exit_code, done.stderr) == (1, "")
    shown = json.loads(done.stdout)["problems"]
    shown.remove("--conf")
    return shown


def test_options_are_handed_on(small, tmp_path, monkeypatch):
    """Settings as --conf, what is asked for last; the program's arguments are left as they are."""
    file = tmp_path / "job.conf"
    file.write_text("")
    arguments = ["--storage", "/data/job", "--properties-file", str(file)]
    arguments += ["--conf", "spark.master=local[2]", "--from", f"{small.path}#8"]
    shown = options_of(tmp_path, monkeypatch, *arguments, "job.py", "--from", "x", "-h", "--", "y")
    assert shown == [
        *("--properties-file", str(file)),
        "spark.absflow.storage.path=/data/job",
        *("--conf", "spark.master=local[2]"),
        *("--conf", f"spark.absflow.restore.from={small.path}#8"),
        *("--conf", "job.py", "--from", "x", "-h", "--", "y"),
    ]


def test_a_program_that_is_not_there_is_refused_first():
    """Before anything is looked up, and before Spark is started."""
    done = CliRunner().invoke(absflow, ["restore", "--from", "43", "nojob.py"])
    assert done.exit_code == 1
    assert "there is no file 'nojob.py'; give the program that declares the job" in done.stderr


def test_the_storage_root_may_be_the_programs_own(small, tmp_path, monkeypatch):
    """The environment is asked last, and not at all if there is a file."""
    variable = {"ABSFLOW_STORAGE": str(small.path)}
    wished = "spark.absflow.restore.from=latest"
    arguments = ("--from", "latest", "job.py")
    assert options_of(tmp_path, monkeypatch, *arguments) == [wished, "--conf", "job.py"]
    assert options_of(tmp_path, monkeypatch, *arguments, **variable) == [
        *(f"spark.absflow.storage.path={small.path}", "--conf", wished),
        *("--conf", "job.py"),
    ]
    file = tmp_path / "job.conf"
    file.write_text("")
    given = ("--properties-file", str(file), *arguments)
    assert options_of(tmp_path, monkeypatch, *given, **variable) == [
        *("--properties-file", str(file), wished, "--conf", "job.py")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("job.py",), "found none of --from and --at; give one"),
        (("--from", "latest"), "Missing argument 'SCRIPT'"),
        (("--from", "newest", "job.py"), "'newest' is not latest, a checkpoint's id, PATH#ID"),
        (("--from", "4", "--json", "job.py"), "give --plan, too"),
        (("--from", "4", "--conf", "spark.master", "job.py"), "is not NAME=VALUE"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, said):
    """Before anything is run."""
    done = CliRunner().invoke(absflow, ["restore", *arguments])
    assert (done.exit_code, said in done.stderr) == (2, True)
