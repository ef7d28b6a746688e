"""A lane's rows go out once and in order, whoever dies, runs twice or comes late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.publishing import LanePublication, claim_lane, publish
from absflow.errors import FencedError
from absflow.protocol.recovery.marker import Marker

ROWS = 23
LANE = "lane"
MADE = LanePublication(LANE, driver=1, lanes=1, attempt=1, checkpoint_id=7)


class KilledError(Exception):
    """As a kill: nothing of what follows happens."""


@dataclass
class Store:
    """A destination: what is committed, and who opened the lane last.

    Attributes:
        rows: the committed ones.
        sizes: how many each transaction had.
        text: the marker.
        owner: the number of the newest opening.
        steps: so many calls are answered; the next is not, or is not even made.
        made: whether that one is made.
    """

    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    text: str | None = None
    owner: int = 0
    steps: int | None = None
    made: bool = False

    def look(self, _: str) -> str | None:
        return self.text

    def open(self, _: str) -> Opened:
        return self.call(lambda: Opened(self))

    def call(self, act: Callable[[], object]) -> object:
        """Do it, unless the process dies now."""
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                if self.made:
                    act()
                raise KilledError
        return act()


class Opened:
    """The lane as one process has it."""

    def __init__(self, store: Store) -> None:
        store.owner += 1
        self._store, self._me = store, store.owner
        self._rows: list[int] | None = None

    def marker(self) -> str | None:
        return self._store.call(lambda: self._store.text)

    def begin(self) -> None:
        assert self._rows is None
        self._store.call(lambda: setattr(self, "_rows", []))

    def write(self, rows: pa.RecordBatch) -> None:
        assert rows.num_rows
        self._store.call(lambda: self._rows.extend(rows["id"].to_pylist()))

    def commit(self, marker: str) -> None:
        self._store.call(lambda: self._commit(marker))

    def close(self) -> None:
        self._rows = None

    def _commit(self, marker: str) -> None:
        if self._store.owner != self._me:
            raise FencedError("somebody has opened the lane since")
        self._store.rows += self._rows
        self._store.sizes.append(len(self._rows))
        self._store.text, self._rows = marker, None


def batches(rows: int = ROWS, each: int = 5) -> Iterator[pa.RecordBatch]:
    for begin in range(0, rows, each):
        ids = pa.array(range(begin, min(rows, begin + each)), pa.int64())
        yield pa.RecordBatch.from_arrays([ids], names=["id"])


def run(store: Store, made: LanePublication = MADE, rows: int = ROWS) -> int:
    return publish(made, store.open, store.look, batches(rows))


@pytest.mark.parametrize("limit", [None, 1, 8, 40, 41, 80, 100, 10_000])
def test_transactions_are_within_the_limit(limit: int | None) -> None:
    """A row has 8 bytes; a batch of the source has five."""
    store = Store()
    assert run(store, replace(MADE, limit=limit)) == ROWS
    assert store.rows == list(range(ROWS))
    assert all(size * 8 <= max(limit, 8) for size in store.sizes) if limit else store.sizes == [23]
    marker = Marker.from_json(store.text)
    assert (marker.published, marker.begun) == ({1: 7}, None)
    assert run(store) == 0
    assert store.rows == list(range(ROWS))


def test_a_publication_without_rows_leaves_its_marker() -> None:
    store = Store()
    assert run(store, rows=0) == 0
    assert Marker.from_json(store.text).published == {1: 7}


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("limit", [None, 30, 100])
def test_killed_at_any_call(limit: int | None, made: bool) -> None:
    """Before it and behind it; who runs next brings what is missing, and no more."""
    publication, killed = replace(MADE, limit=limit), 0
    for steps in range(100):
        store = Store(steps=steps, made=made)
        try:
            run(store, publication)
        except KilledError:
            killed += 1
        else:
            break
        store.steps = None
        run(store, publication)
        assert store.rows == list(range(ROWS))
        run(store, replace(publication, checkpoint_id=8), rows=3)
        assert store.rows == [*range(ROWS), 0, 1, 2]
    assert killed > 5


class Interleaved(Store):
    """At a call of the first process, others do all of theirs."""

    at: int = 0
    other: Callable[[Store], object] | None = None

    def call(self, act: Callable[[], object]) -> object:
        self.at -= 1
        if self.at == 0 and self.other is not None:
            other, self.other = self.other, None
            other(self)
        return act()


@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize("at", range(1, 14))
def test_a_twin_at_any_moment(limit: int | None, at: int) -> None:
    """The one that is overtaken sees that all is done, or that it is fenced."""
    store = Interleaved()
    publication = replace(MADE, limit=limit)
    store.at, store.other = at, lambda there: run(there, publication)
    run(store, publication)
    assert store.rows == list(range(ROWS))


@pytest.mark.parametrize("at", range(1, 14))
def test_a_twin_that_dies_fences_only_for_that_moment(at: int) -> None:
    """Its own run again makes it good."""
    store = Interleaved()

    def dies(there: Store) -> None:
        there.open(LANE).begin()

    store.at, store.other = at, dies
    publication = replace(MADE, limit=30)
    try:
        run(store, publication)
    except FencedError:
        run(store, publication)
    assert store.rows == list(range(ROWS))


@pytest.mark.parametrize("at", range(1, 14))
def test_a_newer_driver_at_any_moment(at: int) -> None:
    """Behind its claim the older one commits nothing, also if it only wakes up then."""
    store = Interleaved()
    there = []

    def newer(now: Store) -> None:
        becomes = lambda found: replace(found or Marker(), driver=2)  # noqa: E731
        claim_lane(LANE, now.open, 2, becomes)
        there.append(list(now.rows))

    store.at, store.other = at, newer
    publication = replace(MADE, limit=30)
    try:
        run(store, publication)
    except FencedError:
        assert store.rows == there[0]
    if there:
        with pytest.raises(FencedError, match="driver incarnation 2, this one is of 1"):
            run(store, replace(publication, checkpoint_id=8))
        assert run(store, replace(publication, driver=2)) == ROWS - len(there[0])
    assert store.rows == list(range(ROWS))


def test_what_is_no_marker_is_named() -> None:
    """Somebody else wrote to the place."""
    store = Store(text="hello")
    with pytest.raises(ValueError, match="'hello' is no marker of absflow"):
        run(store)
    assert store.rows == []


@given(
    st.integers(0, 99),
    st.integers(1, 9),
    st.dictionaries(st.integers(1, 9), st.integers(1, 99)),
    st.none() | st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, 10**12)),
)
def test_a_marker_is_read_as_it_was_written(
    driver: int, lanes: int, published: dict[int, int], begun: tuple[int, int, int] | None
) -> None:
    marker = Marker(driver, lanes, published)
    if begun is not None:
        marker = marker.behind_some(*begun)
    assert Marker.from_json(marker.to_json()) == marker
