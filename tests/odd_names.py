"""Names of columns: those that Delta takes, and those that it refuses."""

from __future__ import annotations

# tests/spark/test_odd_columns.py takes all of these through a job at once.
TAKEN = ["a.b", ".", "`", "a`b", '"a"', "it's", "a[b]", "#?%20", "a/b", "a\\b", "a:b", "a<b>"]
TAKEN += [
    "*",
    "a|b",
    "$a",
    "ä",
    "\u00a0",
    "\U0001f600",
    "1",
    "select",
    "x" * 300,
    "part",
]
REFUSED = [
    "",
    " ",
    "a b",
    "a,b",
    "a;b",
    "{a}",
    "(a)",
    "a=b",
    "p=1",
    "a\tb",
    "a\nb",
    "a\0",
]
