"""Writes what the docs take from elsewhere.

State diagrams, the settings and the reasons of failure from the code, the picture of the packages
from the import contracts, figures from what benchmarks left in ``docs/figures``. ``python
docs/generated.py`` rewrites the ``<!-- generated NAME -->`` blocks in place; a test fails while
they differ from the code.
"""

from __future__ import annotations

import configparser
import json
import re
import statistics
from itertools import pairwise
from pathlib import Path

from absflow.protocol.alignment import INPUT_TRANSITIONS
from absflow.protocol.alignment_state import InputStatus
from absflow.protocol.checkpoints import FactKind, FailureReason
from absflow.protocol.coordinator.pending import PHASE_TRANSITIONS, Phase
from absflow.settings.catalog import PREFIX, SETTINGS, Setting

_NAMES = (
    "../README.md",
    "benchmarks.md",
    "concepts.md",
    "internals.md",
    "internals/performance.md",
    "settings.md",
)
PAGES = tuple((Path(__file__).parent / name).resolve() for name in _NAMES)
FIGURES = json.loads((Path(__file__).parent / "figures" / "figures.json").read_text())


def generated(text: str) -> str:
    """``text`` with each of its generated blocks made anew."""
    blocks = {
        "input": _diagram(_input_lines()),
        "checkpoint": _diagram(_checkpoint_lines()),
        "settings": _table(["setting", "default", "what it does"], _setting_rows()),
        "reasons": _table(["reason", "counts as a failure", "meaning"], _reason_rows()),
        **{name: _figures(name) for name in FIGURES},
        "speed": _speed(),
        "wings": "\n".join(["```mermaid", "flowchart TD", *_wing_lines(), "```"]),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- generated {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(pattern, lambda m, b=block: m[1] + b + m[2], text, flags=re.DOTALL)
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
        '    subgraph spark["absflow.spark"]',
        *(f"    {line}" for line in _arrows(wings, "spark_")),
    ]
    return [*lines, "    end", *_arrows(packages, "")]


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


def _reason_rows() -> list[list[str]]:
    return [[r.code, "yes" if r.counted else "no", r.sentence] for r in FailureReason]


def _figures(name: str) -> str:
    """A table for each case: medians, and what they are to that of each peer of absflow's."""
    found = FIGURES[name]
    unit, bases = found["unit"], found["bases"]
    versions = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
    parts = [f"Measured on {found['at']}: {found['on']}, {versions}."]
    for case, peers in found["runs"].items():
        middles = {peer: statistics.median(runs) for peer, runs in peers.items()}
        there = [base for base in bases if base in middles]
        said = found.get("peers", {})
        rows = [
            [
                peer,
                *(said[peer].values() if said else ()),
                _rounded(middle),
                f"{_rounded(min(peers[peer]))} to {_rounded(max(peers[peer]))}",
                *(f"{_rounded(middle / middles[base])} x" for base in there),
            ]
            for peer, middle in middles.items()
        ]
        promises = ["guarantee", "a checkpoint every"] if said else []
        names = [case, *promises, unit, "lowest to highest", *(f"to {base}" for base in there)]
        parts.append(_table(names, rows))
    return "\n\n".join(parts)


def _speed() -> str:
    """The first case of the throughput, and how much faster the fastest form of absflow is."""
    found = FIGURES["throughput"]
    case, peers = next(iter(found["runs"].items()))
    middles = {peer: statistics.median(runs) for peer, runs in peers.items()}
    best = max(middle for peer, middle in middles.items() if peer.startswith("absflow"))
    rows = [[p, _rounded(m), f"{_rounded(best / m)} x"] for p, m in middles.items()]
    return _table([case, found["unit"], "columnar is faster by"], rows)


def _rounded(number: float) -> str:
    """Three digits."""
    return f"{float(f'{number:.3g}'):,.10g}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
