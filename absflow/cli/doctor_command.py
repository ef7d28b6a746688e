"""The command that says what is missing before a job is started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from absflow.cli import submit
from absflow.cli.documents import failure_sentence, text
from absflow.cli.options import (
    STORAGE_SETTING,
    WithExamples,
    conf_of,
    conf_option,
    pair,
    waiting,
)
from absflow.cli.reader import Reader
from absflow.errors import AbsflowError, NotFoundError
from absflow.spark.versions import Check, java_check, package_checks, packages_here

__all__ = ["doctor_command"]

_PROGRAM = "from absflow.cli.doctor_program import main; main()\n"


@click.command(
    "doctor",
    cls=WithExamples,
    examples=[
        "absflow doctor",
        "absflow doctor --properties-file job.conf",
    ],
)
@click.option(
    "--properties-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start Spark with this file, as for spark-submit.",
)
@conf_option("Start Spark with this setting.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor_command(properties_file: Path | None, conf: tuple[str, ...], as_json: bool) -> None:
    """Say what a job needs, what is found here, and what to do.

    Looks at the Python packages and at Java. With --properties-file or --conf it also starts
    Spark, as for the job, and looks at Delta's jar, its extensions, what is installed where the
    workers run, the settings, the storage root as driver and workers see it, their clocks, and
    what the job's last driver has left. The exit code is 1 if anything has to be mended.
    """
    checks = [*package_checks(packages_here()), java_check(_java())]
    settings = dict(map(pair, conf))
    if (properties_file or settings) and all(check.holds for check in checks):
        with waiting("starting Spark"):
            inside = _spark_checks(settings, properties_file)
        # What Spark says of Java is what counts; twice would be one line too many.
        names = {check.what for check in inside}
        checks = [*(check for check in checks if check.what not in names), *inside]
        known = {**conf_of(properties_file), **settings}
        if root := known.get(STORAGE_SETTING):
            checks.append(_job_check(Reader(root, known)))
    wrong = [check for check in checks if not check.holds]
    if as_json:
        lines = [{"holds": check.holds, "line": str(check)} for check in checks]
        click.echo(text({"whole": not wrong, "checks": lines}))
    else:
        for check in checks:
            click.echo(f"{'ok   ' if check.holds else 'WRONG'} {check}")
        if not (properties_file or settings):
            click.echo(
                "Spark was not started; give --properties-file or --conf to have it looked at"
            )
    click.get_current_context().exit(1 if wrong else 0)


def _job_check(reader: Reader) -> Check:
    """What the job's last driver has left, and what retention fails at."""
    try:
        status = reader.status()
    except NotFoundError:
        return Check("job", f"none has started under {reader.root!r}", "any", "", True)
    except (AbsflowError, NotImplementedError) as error:
        return Check("job", f"only Spark can read it here ({error})", "any", "", True)
    if status.failing:
        why = "; ".join(failure_sentence(failure) for failure in status.failing)
        return Check("job", f"that retention fails: {why}", "that it does not", "mend this", False)
    left = len(status.pending)
    said = f"driver {status.incarnation} has {status.end}" if status.end else "a driver runs"
    if status.end and left:
        said += f" and left {left} checkpoints unfinished, which the next start aborts"
    behind = [name for name, n in status.sinks.items() if n < status.completed_id]
    if behind:
        owes = f"checkpoint {status.completed_id} is not published in {', '.join(behind)} yet"
        said += f"; {owes}, which a running job does"
    return Check("job", f"{said} (attempt {status.attempt})", "any", "", True)


def _java() -> int | None:
    """The Java that Spark would start; its version's first number, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else None


def _spark_checks(settings: Mapping[str, str], properties_file: Path | None) -> list[Check]:
    """What a program finds that spark-submit runs."""
    try:
        program = submit.spark_submit()
    except NotFoundError as error:
        return [_not_started(str(error))]
    with tempfile.TemporaryDirectory(prefix="absflow-") as folder:
        script, file = Path(folder) / "doctor.py", Path(folder) / "checks.json"
        script.write_text(_PROGRAM, encoding="utf-8")
        options = submit.options(settings, properties_file)
        said: list[str] = []
        submit.run([program, *options, str(script), str(file)], said.append)
        if not file.exists():
            return [_not_started(_reason(said))]
        return [Check(**check) for check in json.loads(file.read_text(encoding="utf-8"))]


def _not_started(why: str) -> Check:
    return Check("Spark", f"that it does not start ({why})", "a session", "mend this first", False)


def _reason(said: Iterable[str]) -> str:
    """The last line that names an error, else the last."""
    lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*(?:Error|Exception): ", line)]
    return (errors or lines or ["it said nothing"])[-1]
