"""Shares of the keys of a state history: each row is in one, and its file is known to have it."""

import random

import numpy as np
import pyarrow as pa
import pytest

from absflow.columnar.keys import hash64, key_groups
from absflow.columnar.merging import Shares, last_changes, last_of_each
from absflow.errors import StorageError

ROWS = 500


def rows(groups):
    keys = pa.array(range(ROWS), pa.int64())
    own = pa.array(key_groups([keys], groups))
    return pa.record_batch({"k": keys, "key_group": own, "op": pa.array(["upsert"] * ROWS)})


@pytest.mark.parametrize("names", [("a",), ("b",), ("a", "b")])
def test_of_each_key_the_last_change_stays(names):
    """Nulls are keys, empty tables are tables, and hashes may be equal where keys are not."""
    rng = random.Random(3)
    for count in (0, 1, 2, 100, 3_000):
        a = [rng.choice([None, *range(300)]) for _ in range(count)]
        b = [rng.choice([None, "", "x", "longer than a word"]) for _ in range(count)]
        # Of several chunks, as files come.
        given = pa.table(
            {"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.string()), "n": range(count)}
        )
        given = pa.concat_tables([given.slice(0, count // 3), given.slice(count // 3)])
        last = {tuple(row[name] for name in names): row["n"] for row in given.to_pylist()}
        found = last_changes(given, names)
        assert found["n"].to_pylist() == sorted(last.values())
        assert found.schema == given.schema
        keys = given.select(names)
        hashes = hash64(keys.columns)
        # The upper 52 bits, 4, 1 and none of them.
        for lost in (12, 60, 63):
            few = hashes >> np.uint64(lost) << np.uint64(lost)
            assert given.filter(pa.array(last_of_each(keys, few))).equals(found)
        assert given.filter(pa.array(last_of_each(keys, few & np.uint64(0)))).equals(found)


def test_keys_of_one_hash_beside_those_that_have_one_each():
    """A row more or less of some keys, among many of others."""
    numbers = np.arange(2_000) % 1_500
    hashes = hash64([pa.array(numbers)])
    hashes[np.isin(numbers, [3, 4, 700, 1_400])] = hashes[3]
    due = [number >= 1_500 or number >= 500 for number in range(2_000)]
    assert last_of_each(pa.table({"k": numbers}), hashes).tolist() == due


@pytest.mark.parametrize("groups", [1, 2, 7, 16, 128])
@pytest.mark.parametrize("shares", [1, 2, 5, 16])
def test_each_row_is_in_one_share_of_key_groups_and_its_file_is_read_for_it(groups, shares):
    """A file is left out only if it has no row of the share."""
    shares, given = min(shares, groups), rows(groups)
    of_groups = Shares(["k"], shares, groups)
    found = [of_groups.of(n, given).rows for n in range(shares)]
    assert sorted(k for part in found for k in part["k"].to_pylist()) == list(range(ROWS))
    assert sum(map(len, found)) == sum(
        len(Shares(["k"], shares).of(n, given).rows) for n in range(shares)
    )
    for n, part in enumerate(found):
        has = {*part["key_group"].to_pylist()}
        for low in range(groups):
            for high in range(low, groups):
                if has & {*range(low, high + 1)}:
                    assert of_groups.may_have(n, (low, high))
            mine = low * shares // groups == n
            assert of_groups.may_have(n, (low, low)) is mine


def test_a_file_of_which_nothing_is_known_is_read_for_each_share():
    assert all(Shares(["k"], 4, 8).may_have(n, None) for n in range(4))


@pytest.mark.parametrize("bounds", [(9, 9), (3, 200), (8, 8), (-3, -1)])
def test_what_is_no_key_group_is_in_some_share(bounds):
    """Which refuses it; else it would be lost."""
    assert any(Shares(["k"], 4, 8).may_have(n, bounds) for n in range(4))
    given = rows(8)
    for said in (9, -1, None):
        own = given["key_group"].to_pylist()
        own[17] = said
        other = given.set_column(1, "key_group", pa.array(own, pa.int32()))
        for share in range(4):
            with pytest.raises(StorageError, match=rf"is in key group {said or -1}, but its key"):
                Shares(["k"], 4, 8).of(share, other)


def test_a_row_in_a_key_group_that_is_not_its_own_is_refused_by_the_share_that_it_says():
    given = rows(8)
    other = given.set_column(1, "key_group", pa.array(np.full(ROWS, 5, np.int32)))
    with pytest.raises(StorageError, match="is in key group 5, but its key is in"):
        Shares(["k"], 4, 8).of(2, other)
    assert len(Shares(["k"], 4, 8).of(0, other).rows) == 0
