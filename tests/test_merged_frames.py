"""Frames of many keys put together are what ``pd.concat`` makes of them. No JVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from absflow.errors import ResultError
from absflow.spark.worker.frames import _merged, checked_frames, frames_of, output_of

ZONE = "Europe/Berlin"
LARGE = 2**53 + 1
NOW = pd.Timestamp("2026-03-29 01:30")
FRAMES: dict[str, list[dict[str, Any]]] = {
    "integers": [{"a": [1, LARGE], "b": [2, 3]}, {"a": [4], "b": [5]}],
    "texts and numbers": [{"a": ["x"], "b": [1.5]}, {"a": [None], "b": [np.nan]}],
    "another type for a null": [{"a": [LARGE], "b": [1]}, {"a": [None], "b": [1]}],
    "narrow ones": [{"a": np.array([1], np.int8)}, {"a": np.array([300], np.int16)}],
    "unsigned beside signed": [{"a": np.array([1], np.uint64)}, {"a": [-1]}],
    "nullable": [{"a": pd.array([1, None], "Int64")}, {"a": pd.array([LARGE], "Int64")}],
    "nullable behind plain": [{"a": [1]}, {"a": pd.array([None], "Int64")}],
    "flags": [{"a": [True]}, {"a": [False]}, {"a": [None]}],
    "times": [{"a": [NOW]}, {"a": [NOW.tz_localize("UTC")]}],
    "lists": [{"a": [[1, 2]]}, {"a": [None]}, {"a": [[]]}],
    "categories": [{"a": pd.Categorical(["x"])}, {"a": pd.Categorical(["y"])}],
}


@pytest.mark.parametrize("given", FRAMES)
@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")
def test_they_are_as_concatenated(given: str) -> None:
    """Values and types, whatever the frames are; also in the other order."""
    frames = [pd.DataFrame(columns) for columns in FRAMES[given]]
    for some in (frames, frames[::-1], frames[:1]):
        pd.testing.assert_frame_equal(_merged(some), pd.concat(some, ignore_index=True))


def test_columns_go_by_name() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    made = [pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"b": [4], "a": [3]})]
    made.append(pd.DataFrame([[5, 6]]))  # without names they go by place
    frames = list(checked_frames(made, schema))
    table = output_of(frames, schema, ZONE)
    assert table is not None
    assert table.to_pydict() == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert list(checked_frames([pd.DataFrame(), pd.DataFrame(columns=["z"])], schema)) == []
    with pytest.raises(ResultError, match="emitted columns"):
        list(checked_frames([pd.DataFrame({"a": [1], "c": [2]})], schema))


def test_a_frame_of_each_key_is_its_own() -> None:
    """With an index from 0 on; what one call does to its frame the next does not see."""
    rows = pa.table({"v": [1, 2, 3, 4], "t": ["a", None, "c", "d"]})
    seen = []
    for frame in frames_of(rows, [1, 3, 4], ZONE):
        assert frame.index.name is None
        seen.append((list(frame.index), frame["v"].tolist(), frame["t"].tolist()))
        frame.loc[:, "v"] = 0
        frame.index.name = "named"
        frame.index = pd.Index(range(7, 7 + len(frame)))
    assert seen == [([0], [1], ["a"]), ([0, 1], [2, 3], [None, "c"]), ([0], [4], ["d"])]
