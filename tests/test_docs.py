"""The docs say what is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from click.testing import CliRunner

from absflow.protocol.checkpoints import FailureReason

ROOT = Path(__file__).parent.parent


def test_the_diagrams_are_those_of_the_transition_tables() -> None:
    """``python docs/diagrams.py`` would change nothing, and draws something."""
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    text = diagrams.PAGE.read_text()
    assert diagrams.drawn(text) == text
    assert text.count("stateDiagram-v2") == 2


def test_every_failure_reason_is_explained() -> None:
    """The table in the concepts has each reason, whether it counts, and its sentence."""
    text = (ROOT / "docs" / "concepts.md").read_text()
    for reason in FailureReason:
        counts = "yes" if reason.counted else "no"
        assert f"| {reason.code} | {counts} | {reason.sentence} |" in text


def test_every_shell_line_of_the_readme_is_a_target_or_a_command() -> None:
    """``make`` lines name targets; ``absflow`` lines parse, up to the missing storage root."""
    from absflow.cli.commands import absflow as cli

    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    lines = [line.split() for block in blocks for line in block.splitlines()]
    assert len(lines) == 5
    for program, *arguments in lines:
        if program == "make":
            assert arguments[0] in targets
        else:
            assert program == "absflow"
            there = [a for a in arguments if a.startswith("conf/")]
            assert all((ROOT / path).exists() for path in there)
            result = CliRunner().invoke(cli, [*arguments, "--help"])
            assert result.exit_code == 0, result.output
