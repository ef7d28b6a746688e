"""The recipes in docs/tables.md for readers without Spark, run on roots whose state is known."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from storage_roots import Root, compact

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def recipes():
    """The functions that the page defines; what it does with them needs its own root."""
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if "def " in block:
            exec(block.partition("\n\n\naircraft = ")[0].partition("\n\n\nprint(")[0], names)
    return names


NAMES = recipes()


@pytest.fixture(scope="module")
def roots(rich, tmp_path_factory):
    """As it was written; and compacted for the checkpoints 4, 5 and 8, the others being gone."""
    path = tmp_path_factory.mktemp("recipes") / "job"
    shutil.copytree(rich.path, path)
    compacted = Root(path, rich.stages, rich.checkpoints)
    compact(compacted, "aircraft", 3, [1, 3])
    compact(compacted, "aircraft", 4, [-3, 4])
    compact(compacted, "aircraft", 8, [6, 8])
    return [rich, compacted]


def rows_of(table):
    return sorted(map(str, (sorted(row.items()) for row in table.to_pylist())))


@pytest.mark.parametrize("how", ["arrow", "polars", "duckdb"])
def test_a15_the_recipe_gives_the_state_at_every_checkpoint(roots, how):
    """Of every stage, null keys and deletions among them, compacted or not."""
    state = NAMES[f"{how}_state"]
    for root in roots:
        for name, stage in root.stages.items():
            there = [4, 5, 8] if root is roots[1] else root.completed
            for n in there if stage.keys.names else ():
                if stage.ended is not None and n > stage.ended:
                    continue
                schema = pa.schema([*stage.keys, *stage.columns])
                due = pa.Table.from_pylist(root.state(name, n), schema)
                found = state(str(root.path), name, n)
                found = found.to_arrow() if how == "polars" else found
                names = [f.name for f in schema if not pa.types.is_nested(f.type)]
                found = found.select(names).cast(due.select(names).schema)
                assert rows_of(found) == rows_of(due.select(names)), (name, n)


def test_a15_a_compacted_set_is_read_in_the_place_of_what_it_covers(roots):
    """The longest that fits, wherever it stands; what ends within another is passed over."""
    sets_of = NAMES["sets_of"]
    path = str(roots[1].path)
    assert sets_of(path, "aircraft", 3)[2] == [-3]
    assert sets_of(path, "aircraft", 4)[2] == [-4]
    assert sets_of(path, "aircraft", 5)[2] == [-4]
    assert sets_of(path, "aircraft", 6)[2] == [6]
    assert sets_of(path, "aircraft", 8)[2] == [-8]
