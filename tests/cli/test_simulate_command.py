"""``absflow simulate``: the story of a simulated run, and its verdict."""

import json
import re
from dataclasses import replace

import pytest
from commands_run import run, succeed

from absflow.cli import simulate_command
from absflow.simulation.narrate import is_interesting


def test_a_run_is_narrated():
    """One line per event, then the hard cases, then the verdict; a seed plays the same again."""
    said = simulate("--seed", "7")
    assert said == simulate("--seed", "7") != simulate("--seed", "8")
    lines = said.splitlines()
    assert lines[0].startswith("seed 7: job ")
    assert re.search(r"^ *\d+ +world +begins", said, re.MULTILINE)
    verdict = " ".join(said.rpartition("\n\n")[2].split())
    assert re.fullmatch(r"All is well: [1-9]\d* checkpoints completed, .* exactly once\.", verdict)


def simulate(*arguments):
    return succeed(None, "simulate", *arguments)


def test_until_it_is_interesting():
    """From the seed on, the first in which much goes wrong at once."""
    document = json.loads(simulate("--until-interesting", "--json"))
    assert is_interesting(document["hard_cases"])
    for seed in range(1, min(document["seed"], 6)):
        before = json.loads(simulate("--seed", str(seed), "--json"))
        assert not is_interesting(before["hard_cases"])
    assert document["wrong"] == [] and document["completed"]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_checkers_find_is_said(as_json, monkeypatch):
    """By the exit code, too: here a checker that finds something."""
    played = simulate_command.run
    monkeypatch.setattr(
        simulate_command, "run", lambda seed: replace(played(seed), violations=("row 7 is lost",))
    )
    done = run(None, "simulate", *(["--json"] if as_json else []))
    assert done.exit_code == 1
    assert "row 7 is lost" in done.stdout
    assert "All is well" not in done.stdout
