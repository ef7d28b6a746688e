"""The command that writes a small job to start from."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from absflow.cli.options import WithExamples
from absflow.errors import GraphError
from absflow.graph.check import check_name
from absflow.settings.session_keys import session_lines

__all__ = ["new_command"]

# Where each file of absflow/cli/new_job goes. These end in .txt so that no tool takes them for code
# of absflow.
_FILES = {
    "job.py.txt": "job.py",
    "job.conf.txt": "job.conf",
    "test_job.py.txt": "test_job.py",
    "clicks.json.txt": "data/clicks/1.json",
}


def _name(_: click.Context, __: click.Parameter, name: str) -> str:
    try:
        check_name("job", name)
    except GraphError as error:
        raise click.BadParameter(str(error)) from error
    if Path(name).exists():
        raise click.BadParameter(
            f"{name!r} is there already, and nothing of it was changed; choose another name"
        )
    return name


@click.command(
    "new",
    cls=WithExamples,
    examples=[
        "absflow new visits",
    ],
)
@click.argument("name", callback=_name)
def new_command(name: str) -> None:
    """Write a small job to start from into the directory NAME.

    A program, its properties file, a test and a little input. It runs as it stands; the commands
    for that are printed.
    """
    _write(Path(name), {"name": name, "session": "\n".join(session_lines(local=True))})
    click.echo(
        f"The job {name!r} is in {name}/. To run it, look at it, and test it (with pytest):\n\n"
        f"{_activation()}"
        f"cd {name}\n"
        "spark-submit --properties-file job.conf job.py\n"
        "absflow history --properties-file job.conf\n"
        "absflow state visits --properties-file job.conf\n"
        "python -m pip install --quiet 'absflow[testing]'\n"
        "python -m pytest test_job.py"
    )


def _activation() -> str:
    """The line that makes a shell find this environment's programs, and spark-submit its Spark.

    Empty where that is so already, or where the environment is none that a shell activates.
    """
    script = Path(sys.prefix) / "bin" / "activate"
    if os.environ.get("VIRTUAL_ENV") == sys.prefix or not script.exists():
        return ""
    return f". {shlex.quote(str(script))}\n"


def _write(folder: Path, values: Mapping[str, str]) -> None:
    templates = files("absflow.cli") / "new_job"
    for template, target in _FILES.items():
        text = Template((templates / template).read_text(encoding="utf-8")).substitute(values)
        file = folder / target
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
