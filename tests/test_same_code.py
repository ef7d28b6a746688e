"""Functions that a cell makes anew are the same if they are made of the same code."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
from pyspark.sql.streaming import StatefulProcessor

from absflow.columnar.forms import on_pandas, per_row
from absflow.sinks import DeltaSink
from absflow.spark.control.digests import digest_of

CELL = """
import numpy as np

LIMIT = 3
KNOWN = {{"a": 1}}

def helper(n):
    return n + {helper}

def count(state, row, factor={factor}):
    {comment}
    if LIMIT:
        return (helper(row[0]) * factor,), [np.int64(1)]
    return {returned}
"""
PLAIN = {"helper": 1, "factor": 2, "comment": "pass", "returned": "None"}


def ran(**changes) -> dict:
    """The names of a cell, as a notebook has them: of a module that nobody can import."""
    names = {"__name__": "__main__"}
    exec(compile(CELL.format(**{**PLAIN, **changes}), "<cell>", "exec"), names)
    return names


def test_a_cell_that_is_run_again_makes_the_same_function():
    first, again = ran()["count"], ran()["count"]
    assert first is not again
    assert digest_of(first) == digest_of(again) is not None
    assert digest_of(per_row(first)) == digest_of(per_row(again))
    assert digest_of(on_pandas(first)) != digest_of(per_row(again))


def test_where_it_stands_does_not_count():
    """A cell above has more lines, or a comment has come."""
    moved = ran(comment="\n\n    # of no matter\n    pass")
    assert digest_of(moved["count"]) == digest_of(ran()["count"])


@pytest.mark.parametrize(
    "change",
    [{"helper": 2}, {"factor": 3}, {"returned": "1"}],
    ids=lambda change: next(iter(change)),
)
def test_other_code_constants_defaults_and_helpers_are_another_function(change):
    assert digest_of(ran(**change)["count"]) != digest_of(ran()["count"])


def test_globals_that_it_uses_count_and_others_do_not():
    names, other = ran(), ran()
    names["KNOWN"] = {}
    assert digest_of(names["count"]) == digest_of(other["count"])
    names["LIMIT"] = 4
    assert digest_of(names["count"]) != digest_of(other["count"])


def closing_over(value):
    def process(state, row):
        return value, None

    return process


def test_closures_count():
    assert digest_of(closing_over(1)) == digest_of(closing_over(1))
    assert digest_of(closing_over(1)) != digest_of(closing_over(2))


def processor(emitted):
    names = {"StatefulProcessor": StatefulProcessor, "__name__": "__main__"}
    code = f"""
class Counts(StatefulProcessor):
    def __init__(self, start):
        super().__init__()
        self.start = start

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        yield {emitted}
"""
    exec(compile(code, "<cell>", "exec"), names)
    return names["Counts"]


def test_a_class_that_is_made_anew_is_the_same():
    """Though a pickle of it has a number of its own."""
    assert digest_of(processor(1)(0)) == digest_of(processor(1)(0)) is not None
    assert digest_of(processor(1)(0)) != digest_of(processor(2)(0))
    assert digest_of(processor(1)(0)) != digest_of(processor(1)(5))


def test_a_module_that_was_edited_and_loaded_again_counts(tmp_path, monkeypatch):
    """Its functions have the names that they had."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "edited_by_hand.py"
    file.write_text("def count(state, row):\n    return state, None\n")
    module = importlib.import_module("edited_by_hand")
    before = digest_of(module.count)
    assert before == digest_of(importlib.reload(module).count)
    file.write_text("def count(state, row):\n    return None, [(row[0],)]\n")
    importlib.invalidate_caches()
    assert digest_of(importlib.reload(module).count) != before


def test_sinks_are_compared_by_what_they_hold():
    assert digest_of(DeltaSink("/a")) == digest_of(DeltaSink("/a")) is not None
    assert digest_of(DeltaSink("/a")) != digest_of(DeltaSink("/b"))


def test_what_cannot_be_looked_into_has_no_digest():
    generator = (n for n in range(3))
    assert digest_of(closing_over(generator)) is None
    assert digest_of(types.SimpleNamespace(held=generator)) is None
