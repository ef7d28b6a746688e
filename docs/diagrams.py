"""Draws the state diagrams of docs/internals.md from the transition tables; run it after a change.

``python docs/diagrams.py`` rewrites the blocks in place; a test fails while they differ.
"""

from __future__ import annotations

import re
from pathlib import Path

from absflow.protocol.alignment import INPUT_TRANSITIONS, InputStatus
from absflow.protocol.checkpoints import FactKind
from absflow.protocol.coordinator import PHASE_TRANSITIONS, Phase

PAGE = Path(__file__).parent / "internals.md"


def drawn(text: str) -> str:
    """``text`` with each ``<!-- diagram NAME -->`` block drawn anew."""
    for name, lines in {"input": _input_lines(), "checkpoint": _checkpoint_lines()}.items():
        block = "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])
        pattern = rf"(<!-- diagram {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(pattern, lambda m, b=block: m[1] + b + m[2], text, flags=re.DOTALL)
    return text


def _input_lines() -> list[str]:
    lines = [f"    [*] --> {InputStatus.OPEN.name}"]
    for (status, event), targets in INPUT_TRANSITIONS.items():
        lines += [f"    {status.name} --> {target.name}: {event}" for target in targets]
    return lines


def _checkpoint_lines() -> list[str]:
    lines = [f"    [*] --> {Phase.TRIGGERING.name}: trigger"]
    for (phase, event), target in PHASE_TRANSITIONS.items():
        lines.append(f"    {phase.name} --> {target.name}: {event}")
    return [*lines, *(f"    {kind.name} --> [*]" for kind in FactKind)]


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
