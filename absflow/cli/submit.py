"""A job's own program run by spark-submit: to restore it, or to learn what a restore would do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from absflow.errors import JobFailedError, NotFoundError
from absflow.settings.catalog import PREFIX

__all__ = ["become", "options", "plan_of", "run", "spark_submit"]


def spark_submit() -> str:
    """The program of the environment that this one runs in, else the one in ``PATH``.

    Raises:
        NotFoundError: there is none.
    """
    own = Path(sys.executable).parent / "spark-submit"
    found = str(own) if own.exists() else shutil.which("spark-submit")
    if found is None:
        raise NotFoundError(
            f"there is no spark-submit beside {sys.executable!r} and none in PATH; install "
            "absflow where Spark is"
        )
    return found


def options(conf: Mapping[str, str], properties_file: Path | None) -> list[str]:
    """Options of spark-submit; ``conf`` outdoes the file."""
    file = ["--properties-file", str(properties_file)] if properties_file else []
    return [*file, *(part for k, v in conf.items() for part in ("--conf", f"{k}={v}"))]


def become(command: Sequence[str]) -> NoReturn:
    """Run a command in the place of this process: exit code and signals are its own."""
    sys.stdout.flush()
    os.execvpe(command[0], list(command), _environment(command[0]))


def plan_of(submit: Sequence[str], program: Sequence[str]) -> dict[str, Any]:
    """The document that a program writes of its plan; what it prints goes to stderr.

    Args:
        submit: how programs are run, with all options.
        program: the program, and its own arguments.

    Raises:
        JobFailedError: it has not written any.
    """
    with tempfile.TemporaryDirectory(prefix="absflow-") as folder:
        file = Path(folder) / "plan.json"
        command = [*submit, "--conf", f"{PREFIX}restore.plan={file}", *program]
        code = run(command, lambda line: click.echo(line, nl=False, err=True))
        if file.exists():
            return dict(json.loads(file.read_text(encoding="utf-8")))
    raise JobFailedError(
        f"there is no plan: {program[0]!r} ended with exit code {code} before it "
        "came to job.start(); above is what it said last"
    )


def run(command: Sequence[str], take: Callable[[str], object]) -> int:
    """Run a command to its end.

    Args:
        command: the command.
        take: is given each line that it prints, as it comes.

    Returns:
        Its exit code.
    """
    with subprocess.Popen(
        command,
        env=_environment(command[0]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as running:
        assert running.stdout is not None  # it is a pipe
        for line in running.stdout:
            take(line)
    return running.returncode


def _environment(program: str) -> dict[str, str]:
    """The variables to run it with: Spark's Python is this one, unless they name another."""
    own = Path(program).parent == Path(sys.executable).parent
    return {**({"PYSPARK_PYTHON": sys.executable} if own else {}), **os.environ}
