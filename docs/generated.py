"""Writes what the docs take from elsewhere.

State diagrams, the settings, the help of the commands and the reasons of failure from the code, the
reference from its docstrings, the picture of the packages from the import contracts, figures from
what benchmarks left in ``docs/figures``. ``python docs/generated.py`` rewrites the
``<!-- generated NAME -->`` blocks in place; a test fails while they differ from the code.
"""

from __future__ import annotations

import configparser
import inspect
import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

import absflow
from absflow.cli.commands import absflow as commands
from absflow.job import Job
from absflow.protocol.alignment import INPUT_TRANSITIONS
from absflow.protocol.alignment_state import InputStatus
from absflow.protocol.checkpoints import FactKind, FailureReason
from absflow.protocol.coordinator.pending import PHASE_TRANSITIONS, Phase
from absflow.settings.catalog import PREFIX, SETTINGS, Setting
from absflow.spark.control.progress import (
    Progress,
    RetentionProgress,
    SinkProgress,
    StageProgress,
)
from absflow.spark.control.run import Run
from absflow.telemetry.names import METRICS

_NAMES = (
    "../README.md",
    "api.md",
    "benchmarks.md",
    "commands.md",
    "concepts.md",
    "internals.md",
    "internals/performance.md",
    "monitoring.md",
    "settings.md",
)
PAGES = tuple((Path(__file__).parent / name).resolve() for name in _NAMES)
FIGURES = json.loads((Path(__file__).parent / "figures" / "figures.json").read_text())

# Their methods are those of `Sink`, or of `TransactionalSink`.
_CALLED_BY_ABSFLOW = (
    absflow.DeltaSink,
    absflow.ForeachBatchSink,
    absflow.FileSink,
    absflow.KafkaSink,
    absflow.SqlSink,
)

_PROMISES = ("guarantee", "a checkpoint every")
_MADE = "{:,} uniform keys, generated and forgotten"
# Blocks of README: a benchmark, and the titles of its cases.
_SPEEDS = {
    "speed_generated": (
        "engines",
        {_MADE.format(100_000): "100 k keys", _MADE.format(1_000_000): "1 M keys"},
    ),
    "speed": (
        "throughput",
        {
            "100 k uniform keys": "100 k keys",
            "1 M uniform keys": "1 M keys",
            "100 k uniform keys, one by one": "100 k keys",
        },
    ),
}


def generated(text: str) -> str:
    """``text`` with each of its generated blocks made anew."""
    blocks = {
        "commands": _commands(),
        "input": _diagram(_input_lines()),
        "checkpoint": _diagram(_checkpoint_lines()),
        "settings": _table(["setting", "default", "what it does"], _setting_rows()),
        "metrics": _table(
            ["Prometheus", "OpenTelemetry", "unit", "kind", "labels", "from", "what it is"],
            _metric_rows(),
        ),
        "reasons": _table(["reason", "counts as a failure", "meaning"], _reason_rows()),
        **{name: _figures(name) for name in FIGURES},
        **{block: _speed(*given) for block, given in _SPEEDS.items() if given[0] in FIGURES},
        "api": _api(),
        "wings": "\n".join(["```mermaid", "flowchart TD", *_wing_lines(), "```"]),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- generated {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, b=block: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL)
    return text


def _diagram(lines: list[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _wing_lines() -> list[str]:
    """The packages, and the wings of absflow.spark: an arrow from each layer to the next."""
    packages = [
        [name.strip("() ").removeprefix("absflow.") for name in layer.split("|")]
        for layer in _layers("layers")
    ]
    wings = [[name.strip() for name in layer.split("|")] for layer in _layers("wings")]
    lines = [
        '    subgraph in_spark["absflow.spark"]',
        *(f"    {line}" for line in _arrows(wings, "spark_")),
    ]
    # Not their bare names: "graph" is a word of the diagram's own.
    return [*lines, "    end", *_arrows(packages, "in_")]


def _layers(contract: str) -> list[str]:
    """The layers of a contract in setup.cfg, from above."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parent.parent / "setup.cfg", encoding="utf-8")
    lines = config[f"importlinter:contract:{contract}"]["layers"].strip().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _arrows(layers: list[list[str]], prefix: str) -> list[str]:
    """Each layer, and the arrows from it to the one below."""
    names = [
        f'    {prefix}{name}["{name}"]' for layer in layers for name in layer if name != "spark"
    ]
    return names + [
        f"    {prefix}{above} --> {prefix}{below}"
        for upper, lower in pairwise(layers)
        for above in upper
        for below in lower
    ]


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _input_lines() -> list[str]:
    lines = [f"    [*] --> {InputStatus.OPEN.name}"]
    for (status, event), targets in INPUT_TRANSITIONS.items():
        lines += [f"    {status.name} --> {target.name}: {event}" for target in targets]
    return lines


def _checkpoint_lines() -> list[str]:
    lines = [f"    [*] --> {Phase.TRIGGERING.name}: trigger"]
    for (phase, event), target in PHASE_TRANSITIONS.items():
        lines.append(f"    {phase.name} --> {target.name}: {event}")
    ends = (kind for kind in FactKind if kind in PHASE_TRANSITIONS.values())
    return [*lines, *(f"    {kind.name} --> [*]" for kind in ends)]


def _setting_rows() -> list[list[str]]:
    return [[f"`{PREFIX}{s.name}`", _default(s), s.doc] for s in SETTINGS]


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "must be given"
    return f"`{setting.default}`" if setting.default else "not set"


def _metric_rows() -> list[list[str]]:
    return [
        [
            f"`{m.shown}`",
            f"`{m.otel}`",
            m.unit,
            m.kind.value,
            ", ".join(m.labels),
            "driver" if m.live else "tables",
            m.words,
        ]
        for m in METRICS.values()
    ]


def _reason_rows() -> list[list[str]]:
    return [[r.code, "yes" if r.counted else "no", r.sentence] for r in FailureReason]


def public() -> tuple[list[Any], list[Any]]:
    """Every public class and function in the order of the reference; and the errors."""
    given = [getattr(absflow, name) for name in absflow.__all__]
    errors = [o for o in given if inspect.isclass(o) and issubclass(o, Exception)]
    first = [Job, Run, Progress, StageProgress, SinkProgress, RetentionProgress]
    return [*first, *(o for o in given if o not in errors and o not in first)], errors


def methods(thing: Any) -> list[str]:
    """What the reference shows of a class, by name; of a function nothing."""
    if inspect.isfunction(thing) or thing in _CALLED_BY_ABSFLOW:
        return []
    return [
        name
        for name, member in vars(thing).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]


def _api() -> str:
    """Every public class and function, by its signature and docstrings; errors come last."""
    things, errors = public()
    return "\n\n".join(
        [_described(o) for o in things]
        + ["## Errors"]
        + [f"`{o.__name__}`: {_prose(inspect.getdoc(o) or '')}" for o in errors]
    )


def _described(thing: Any) -> str:
    """A class with its public methods, or a function."""
    if inspect.isfunction(thing):
        return _member("##", thing.__name__, thing)
    members = [
        _member("###", f"{thing.__name__}.{name}", vars(thing)[name]) for name in methods(thing)
    ]
    return "\n\n".join([f"## {thing.__name__}", _prose(inspect.getdoc(thing) or ""), *members])


def _member(level: str, name: str, member: Any) -> str:
    if inspect.isfunction(member):
        given = inspect.signature(member).parameters.values()
        shown = [p.replace(annotation=p.empty) for p in given if p.name != "self"]
        name += str(inspect.Signature(shown))
    return f"{level} `{name}`\n\n{_prose(inspect.getdoc(member) or '')}"


def _prose(docstring: str) -> str:
    """A docstring as Markdown: sections become lists, roles and literals become code."""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", docstring).replace("``", "`").replace("::\n", ":\n")
    lines = []
    section = False
    for line in text.splitlines():
        if title := re.fullmatch(r"(Args|Attributes|Returns|Raises):", line):
            section = True
            lines += [f"*{title[1].replace('Args', 'Arguments')}*", ""]
        elif section and (item := re.fullmatch(r"    (\w+): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section:
            lines.append(f"  {line.strip()}" if lines[-1] else line.strip())
        else:
            lines.append(line)
    return "\n".join(line.rstrip() for line in lines).strip()


def _commands() -> str:
    """Each command: what it does, its options, its examples."""
    return "\n\n".join(
        _command(name, command) for name, command in sorted(commands.commands.items())
    )


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"absflow {name}")
    usage = " ".join(command.collect_usage_pieces(context)[1:])
    options = [
        record
        for parameter in command.params  # without --help
        if parameter.name not in {"storage", "properties_file", "as_json"}
        and (record := parameter.get_help_record(context)) is not None
        and record[1]
    ]
    examples = "\n".join(f"    {line}" for line in command.examples)
    return "\n\n".join(
        [
            f"### `{f'absflow {name} {usage}'.rstrip()}`",
            inspect.cleandoc(command.help or ""),
            *(
                ["\n".join(f"- `{option}`: {words}" for option, words in options)]
                if options
                else []
            ),
            "Examples:",
            examples,
        ]
    )


def _figures(name: str) -> str:
    """A table for each case: medians, and what they are to those of the peers of absflow's."""
    found = FIGURES[name]
    parts, last = [], ""
    for case, peers in found["runs"].items():
        if (measured := _measured(found.get("older", {}).get(case, found))) != last:
            parts.append(measured)
            last = measured
        parts.append(_case_table(found, case, peers))
    return "\n\n".join(parts)


def _measured(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
    return f"Measured on {found['at']}: {found['on']}, {versions}."


def _case_table(found: dict[str, Any], case: str, peers: dict[str, list[float]]) -> str:
    middles = {peer: statistics.median(runs) for peer, runs in peers.items()}
    bases = {base: _base(middles, base) for base in found["bases"]}
    there = {base: middle for base, middle in bases.items() if middle is not None}
    said = found.get("peers", {})
    intervals = found.get("intervals", {}).get(case, {})
    rows = [
        [
            peer,
            *(said[peer].values() if said else ()),
            _rounded(middle),
            f"{_rounded(min(peers[peer]))} to {_rounded(max(peers[peer]))}",
            *(["{:.3f} to {:.3f}".format(*intervals[peer])] if intervals else []),
            *(f"{_rounded(middle / base)} x" for base in there.values()),
        ]
        for peer, middle in middles.items()
    ]
    names = [case, *_PROMISES] if said else [case]
    names += [found["unit"], "lowest to highest"]
    names += ["95 % interval"] if intervals else []
    return _table([*names, *(f"to {base}" for base in there)], rows)


def _base(middles: dict[str, float], base: str) -> float | None:
    """The median of a peer; of several that differ behind a comma, the highest."""
    names = [base] if base in middles else [p for p in middles if p.startswith(f"{base}, ")]
    return max((middles[name] for name in names), default=None)


def _speed(name: str, cases: dict[str, str]) -> str:
    """Medians of a benchmark: these of its cases, in columns of these titles."""
    found = FIGURES[name]
    columns: dict[str, dict[str, list[float]]] = {title: {} for title in cases.values()}
    for case, title in cases.items():
        columns[title] |= found["runs"].get(case, {})
    some = dict.fromkeys(peer for runs in columns.values() for peer in runs)
    # With micro-batches of another size only some were measured.
    peers = [peer for peer in some if not peer.endswith("a micro-batch")]
    rows = [
        [peer, *found["peers"][peer].values()]
        + [
            _rounded(statistics.median(runs[peer])) if peer in runs else ""
            for runs in columns.values()
        ]
        for peer in peers
    ]
    return _table([found["unit"], *_PROMISES, *columns], rows)


def _rounded(number: float) -> str:
    """Three digits."""
    return f"{float(f'{number:.3g}'):,.10g}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
