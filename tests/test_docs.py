"""The docs say what is so; that their blocks run is tests/spark/test_documented.py."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from absflow.columnar.pages import CHANNEL_FIELDS, TIME_FIELDS
from absflow.facts import columns
from absflow.facts.columns import REQUESTS
from absflow.storage import state_history

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    """The program that writes the generated parts."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_those_of_the_code(generated: ModuleType) -> None:
    """``python docs/generated.py`` would change nothing, and every block has its source."""
    texts = [page.read_text() for page in generated.PAGES]
    assert [generated.generated(text) for text in texts] == texts
    names = re.findall(r"<!-- generated (\w+) -->", "".join(texts))
    figures = json.loads((ROOT / "docs" / "figures" / "figures.json").read_text())
    own = [
        "api",
        "checkpoint",
        "commands",
        "input",
        "metrics",
        "reasons",
        "settings",
        "speed",
        "speed_generated",
        "wings",
    ]
    assert sorted(names) == sorted([*own, *figures])


def test_links_lead_somewhere() -> None:
    """Every relative link of every page."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert len(links) > 8
    assert [(p.name, t) for p, t in links if not (p.parent / t).exists()] == []


def test_the_comparison_of_time_names_tests_and_sources_that_there_are() -> None:
    """Every test file in its tables, and every letter with a number in its list of sources."""
    text = (ROOT / "docs" / "time-compared.md").read_text()
    tests = set(re.findall(r"`([\w/]*test_\w+\.py)`", text))
    assert len(tests) > 15
    assert [name for name in sorted(tests) if not (ROOT / "tests" / name).exists()] == []
    body, sources = text.split("## Sources")
    named = set(re.findall(r"\b[FS]\d+\b", body))
    assert named == set(re.findall(r"^\| ([FS]\d+) \|", sources, re.MULTILINE))


def test_the_readme_has_the_versions_of_setup_cfg() -> None:
    """Its matrix says what is pinned, and what is the least."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = config["options"]["install_requires"]
    (spark,) = re.findall(r"^pyspark==(.+)$", wanted, re.MULTILINE)
    (delta,) = re.findall(r"^delta-spark==(.+)$", wanted, re.MULTILINE)
    (pandas,) = re.findall(r"^pandas>=([\d.]+),<3$", wanted, re.MULTILINE)
    (pyarrow,) = re.findall(r"^pyarrow>=(\d+)$", wanted, re.MULTILINE)
    python = config["options"]["python_requires"].removeprefix(">=")
    text = (ROOT / "README.md").read_text()
    for line in (
        f"| Python | {python} or newer |",
        f"| Spark | {spark}; another is refused at the start |",
        f"| Delta | {delta}; another is refused at the start |",
        f"| pandas, pyarrow | {pandas} up to, but not, 3; {pyarrow} or newer |",
    ):
        assert line in text


@pytest.mark.parametrize(
    "schema",
    [
        columns.ATTEMPTS,
        columns.BARRIERS,
        columns.OVERTAKES,
        columns.CHECKPOINTS,
        REQUESTS,
        pa.schema(columns.CHECKPOINTS.field("stages").type.value_type.fields),
        state_history.history_columns(pa.schema([]), pa.schema([])),
        pa.schema([*CHANNEL_FIELDS, *TIME_FIELDS]),
    ],
    ids=[
        "attempts",
        "barriers",
        "overtakes",
        "checkpoints",
        "requests",
        "stages",
        "state",
        "channels",
    ],
)
def test_every_column_is_explained(schema: pa.Schema) -> None:
    """docs/tables.md names each of them."""
    text = (ROOT / "docs" / "tables.md").read_text()
    assert [name for name in schema.names if f"`{name}`" not in text] == []
