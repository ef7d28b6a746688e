"""What a table needs to go back is found in the commits behind that version alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from absflow.storage.delta.log_back import brought_back

Actions = Sequence[Mapping[str, Any]]


def commit(added: Sequence[str], removed: Sequence[str]) -> Actions:
    """A commit, the files that it removes first."""
    return [
        {"commitInfo": {}},
        *({"remove": {"path": path}} for path in removed),
        *({"add": {"path": path}} for path in added),
    ]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Actions], list[frozenset[str]]]:
    """A log, and the files that each version of the table has."""
    log, tables = [], []
    now: frozenset[str] = frozenset()
    for version in range(draw(st.integers(2, 8))):
        old = sorted(now)
        removed = draw(st.sets(st.sampled_from(old))) if old else set()
        again = draw(st.sets(st.sampled_from(sorted(removed)))) if removed else set()
        before = sorted(frozenset().union(*tables) - now)  # a RESTORE brings files back
        back = draw(st.sets(st.sampled_from(before))) if before else set()
        added = {f"new-{version}", *again, *back}
        log.append(commit(sorted(added), sorted(removed)))
        now = now - removed | added
        tables.append(now)
    return log, tables


@given(logs(), st.data())
def test_exactly_the_files_that_are_not_there_now(
    drawn: tuple[list[Actions], list[frozenset[str]]], data: st.DataObject
) -> None:
    """Those of the version that the newest does not have, each with the commit that removed it."""
    log, tables = drawn
    then = data.draw(st.integers(0, len(log) - 2))
    since = [(version, log[version]) for version in range(len(log) - 1, then, -1)]
    found = brought_back(since)
    assert found.keys() == tables[then] - tables[-1]
    for path, version in found.items():
        assert all(path in tables[v] for v in range(then, version))
        assert {"remove": {"path": path}} in log[version]
