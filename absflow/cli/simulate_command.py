"""``absflow simulate``: the protocol in a world with faults, as a story."""

from __future__ import annotations

import re
from typing import Any

import click
from rich.text import Text

from absflow.cli import cells, documents
from absflow.cli.options import WithExamples, open_console
from absflow.errors import NotFoundError
from absflow.simulation.job import Graph
from absflow.simulation.narrate import is_interesting
from absflow.simulation.world import Result, run

__all__ = ["simulate_command"]

_SEEDS = 1_000
# The first that is found in a line says how it looks.
_STYLES = (
    ("red", re.compile(r"abort|crash|death|dies|fails|lost|killed", re.IGNORECASE)),
    ("green", re.compile(r"complete|manifest", re.IGNORECASE)),
    ("yellow", re.compile(r"overtak|restart|begins|stopped", re.IGNORECASE)),
)


@click.command(
    "simulate",
    cls=WithExamples,
    examples=[
        "absflow simulate --seed 7",
        "absflow simulate --until-interesting",
    ],
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="All that happens follows from it.",
)
@click.option(
    "--until-interesting",
    is_flag=True,
    help="Of the seeds from N on take the first in which much goes wrong at once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate_command(seed: int, until_interesting: bool, as_json: bool) -> None:
    """Run the checkpoint protocol in a simulated world with faults, and say what happened.

    A job of a few stages runs from its first row to its last checkpoint, while the driver and the
    queries crash, writes fail and messages are late, lost or come twice. It is the protocol that
    real jobs run; only Spark, Delta and the clock are simulated. Then checkers look at all that was
    written. The exit code is 1 if they find anything wrong.
    """
    result = _found(seed) if until_interesting else run(seed)
    if as_json:
        click.echo(documents.text(_document(result)))
    else:
        _narrate(result)
    click.get_current_context().exit(1 if _wrong(result) else 0)


def _found(seed: int) -> Result:
    for each in range(seed, seed + _SEEDS):
        result = run(each)
        if _wrong(result) or is_interesting(result.marks):
            return result
    raise NotFoundError(f"nothing interesting happens with the seeds {seed} to {seed + _SEEDS - 1}")


def _wrong(result: Result) -> list[str]:
    stuck = [] if result.finished else ["the job did not come to its end"]
    return [*stuck, *result.violations]


def _document(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "graph": result.graph.name,
        "completed": sorted(result.tables.manifests),
        "wrong": _wrong(result),
        "hard_cases": dict(sorted(result.marks.items())),
        "story": list(result.story),
    }


def _narrate(result: Result) -> None:
    console = open_console()
    console.print(Text(f"seed {result.seed}: {_shape(result.graph)}", "bold"))
    console.print("     ms  who        what               id  more", style="bright_black")
    for line in result.story:
        style = next((style for style, words in _STYLES if words.search(line)), "")
        console.print(Text(line, style), soft_wrap=True)
    table = cells.table("hard case", "times>")
    for case, times in sorted(result.marks.items()):
        table.add_row(case, cells.count(times))
    console.print()
    console.print(table)
    console.print()
    if wrong := _wrong(result):
        console.print(cells.listed("wrong", wrong, "red"))
        return
    completed = len(result.tables.manifests)
    console.print(
        Text(
            f"All is well: {completed} checkpoints completed, each is one consistent cut, and "
            "every row was processed exactly once.",
            "green",
        )
    )


def _shape(graph: Graph) -> str:
    stages = (f"{stage.name} reads {' and '.join(stage.inputs)}" for stage in graph.stages)
    return f"job {graph.name!r}, where " + ", ".join(stages)
