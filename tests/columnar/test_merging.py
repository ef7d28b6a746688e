"""Shares of the keys of a state history: each row is in one, and its file is known to have it."""

import numpy as np
import pyarrow as pa
import pytest

from absflow.columnar.keys import key_groups
from absflow.columnar.merging import Shares
from absflow.errors import StorageError

ROWS = 500


def rows(groups):
    keys = pa.array(range(ROWS), pa.int64())
    own = pa.array(key_groups([keys], groups))
    return pa.record_batch({"k": keys, "key_group": own})


@pytest.mark.parametrize("groups", [1, 2, 7, 16, 128])
@pytest.mark.parametrize("shares", [1, 2, 5, 16])
def test_each_row_is_in_one_share_of_key_groups_and_its_file_is_read_for_it(groups, shares):
    """A file is left out only if it has no row of the share."""
    shares, given = min(shares, groups), rows(groups)
    of_groups = Shares(["k"], shares, groups)
    found = [of_groups.of(n, given) for n in range(shares)]
    assert sorted(k for part in found for k in part["k"].to_pylist()) == list(range(ROWS))
    assert sum(map(len, found)) == sum(
        len(Shares(["k"], shares).of(n, given)) for n in range(shares)
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


@pytest.mark.parametrize("bounds", [(9, 9), (3, 200), (8, 8)])
def test_what_is_no_key_group_is_in_some_share(bounds):
    """Which refuses it; else it would be lost."""
    assert any(Shares(["k"], 4, 8).may_have(n, bounds) for n in range(4))
    given = rows(8)
    other = pa.record_batch({"k": given["k"], "key_group": pa.array(np.full(ROWS, 9, np.int32))})
    with pytest.raises(StorageError, match="is in key group 9, but its key is in"):
        Shares(["k"], 4, 8).of(0, other)
