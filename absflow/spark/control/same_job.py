"""Whether a job that is declared once more is the one that runs already; else what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from absflow.columnar.spec import StageSpec
from absflow.graph.description import describe, differences
from absflow.graph.nodes import Graph
from absflow.settings.catalog import PREFIX, SETTINGS
from absflow.spark.control.digests import digest_of
from absflow.spark.model import JobSpec
from absflow.spark.sources.describe import describe_source

__all__ = ["what_differs"]

_NAMES = {setting.field: PREFIX + setting.name for setting in SETTINGS}
# Each expression of a plan has a number of its own.
_NUMBERS = re.compile(r'"(?:id|resultId|jvmId)":(?:\d+|"[^"]*")')
_PYTHON = re.compile(r'"class":"[\w.]*(?:Python|InPandas|InArrow)\w*"')


def what_differs(running: JobSpec, declared: JobSpec) -> list[str]:
    """How a declared job differs from one that runs, in sentences; empty if it is the same.

    Args:
        running: the job that runs.
        declared: the other one; both have been checked.
    """
    if running.graph.job != declared.graph.job:
        return [f"the job that runs is called {running.graph.job!r}, not {declared.graph.job!r}"]
    found = differences(describe(running.graph), describe(declared.graph))
    if found:
        return found
    return [
        *_settings(running, declared),
        *_sources(running, declared),
        *_stages(running.graph, declared.graph),
        *_sinks(running, declared),
    ]


def _settings(running: JobSpec, declared: JobSpec) -> Iterator[str]:
    for each in fields(running.settings):
        then, now = (getattr(job.settings, each.name) for job in (running, declared))
        if then != now:
            yield f"{_NAMES[each.name]} is another than at its start"


def _sources(running: JobSpec, declared: JobSpec) -> Iterator[str]:
    def why(name: str) -> str:
        said = _frames_differ(running.frames[name], declared.frames[name])
        return f": {said}" if said else ""

    yield from _named("source", running.graph.sources, declared.graph.sources, why)


def _sinks(running: JobSpec, declared: JobSpec) -> Iterator[str]:
    def why(name: str) -> str:
        same = _same_code(running.sinks[name], declared.sinks[name])
        return "" if same else " writes to another place, or in another way"

    yield from _named("sink", running.graph.sinks, declared.graph.sinks, why)


def _named(
    what: str,
    before: Mapping[str, object],
    now: Mapping[str, object],
    why: Callable[[str], str],
) -> Iterator[str]:
    """How parts of the graph differ; of one that is declared alike ``why`` ends the sentence."""
    for name in sorted(before.keys() | now.keys()):
        if name not in before or name not in now:
            yield f"{what} {name!r} is {'new' if name in now else 'gone'}"
        elif before[name] != now[name]:
            yield f"{what} {name!r} is declared in another way"
        elif said := why(name):
            yield f"{what} {name!r}{said}"


def _frames_differ(before: DataFrame, now: DataFrame) -> str:
    if before is now:
        return ""
    if describe_source(before) != describe_source(now):
        return "its frame reads something else, or with other options"
    try:
        plans = [str(each._jdf.queryExecution().analyzed().toJSON()) for each in (before, now)]
    except Py4JError:
        return "its frame is a new one, and cannot be compared"
    if any(_PYTHON.search(plan) for plan in plans):
        return "its frame is a new one and calls functions of Python, which cannot be compared"
    plain = [_NUMBERS.sub("", plan) for plan in plans]
    return "" if plain[0] == plain[1] else "its frame selects something else"


def _stages(before: Graph, now: Graph) -> Iterator[str]:
    for name, spec in now.stages.items():
        then = before.stages[name]
        if _without_functions(then) != _without_functions(spec):
            yield f"stage {name!r} is declared in another way"
        for given, function in spec.process.items():
            if not _same_code(then.process[given], function):
                yield f"stage {name!r}: its function for {given!r} is another one"
        if not _same_code(then.on_timer, spec.on_timer):
            yield f"stage {name!r}: its function for timers is another one"


def _without_functions(spec: StageSpec) -> StageSpec:
    return replace(spec, process={}, on_timer=None)


def _same_code(before: Any, now: Any) -> bool:
    if before is now:
        return True
    digest = digest_of(before)
    return digest is not None and digest == digest_of(now)
