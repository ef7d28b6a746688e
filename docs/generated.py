"""Writes what the docs take from the code: state diagrams, the settings, the reasons of failure.

``python docs/generated.py`` rewrites the ``<!-- generated NAME -->`` blocks in place; a test fails
while they differ from the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from absflow.protocol.alignment import INPUT_TRANSITIONS, InputStatus
from absflow.protocol.checkpoints import FactKind, FailureReason
from absflow.protocol.pending import PHASE_TRANSITIONS, Phase
from absflow.settings import PREFIX, SETTINGS, Setting

PAGES = tuple(
    Path(__file__).parent / name for name in ("concepts.md", "internals.md", "settings.md")
)


def generated(text: str) -> str:
    """``text`` with each of its generated blocks made anew."""
    blocks = {
        "input": _diagram(_input_lines()),
        "checkpoint": _diagram(_checkpoint_lines()),
        "settings": _table(["setting", "default", "what it does"], _setting_rows()),
        "reasons": _table(["reason", "counts as a failure", "meaning"], _reason_rows()),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- generated {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(pattern, lambda m, b=block: m[1] + b + m[2], text, flags=re.DOTALL)
    return text


def _diagram(lines: list[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


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


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
