"""Keys of applyInPandasWithState that time out, by Spark's rules. No JVM."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from one_key_group import ROWS, OneKeyGroup

from absflow.columnar.timers import TIMEOUT_FIELDS
from absflow.spark.worker.group_state import spark_watermark_ms
from absflow.spark.worker.per_key import per_key, per_key_timeout

STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("out", pa.bool_())])
PROCESSING, EVENT = "ProcessingTimeTimeout", "EventTimeTimeout"


class Stage(OneKeyGroup):
    """A stage with such a function."""

    def __init__(self, function, timeout):
        super().__init__(
            per_key(function, "UTC", timeout),
            per_key_timeout(function, "UTC", timeout, ROWS.names),
            state=pa.schema([*STATE, *TIMEOUT_FIELDS]),
            output=OUTPUT,
            timed=timeout == EVENT,
        )

    def keys(self):
        """The keys that are kept, with or without state."""
        live = self.rows_of_state()
        return {row["k"]: (row["n"], row["_exists"], row["_timeout_ms"]) for row in live}


def count_for(wait_ms, timeout):
    """Counts a key's rows; when no row has come for so long, says how many and forgets it."""

    def function(key, frames, state):
        if state.hasTimedOut:
            (frame,) = frames
            assert (len(frame), list(frame.columns)) == (0, ROWS.names)
            (n,) = state.get
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [True]})
            return
        rows = pd.concat(list(frames))
        n = len(rows) + (state.get[0] if state.exists else 0)
        state.update((n,))
        if timeout == PROCESSING:
            state.setTimeoutDuration(wait_ms)
        else:
            state.setTimeoutTimestamp(int(rows["ts"].max().timestamp() * 1000) + wait_ms)
        yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [False]})

    return function


def test_a_key_times_out_when_its_time_is_less_than_that_of_the_batch():
    stage = Stage(count_for(100, PROCESSING), PROCESSING)
    assert stage.batch(("a", 0, 1), ("b", 0, 1), now_ms=1_000) == [("a", 1, False), ("b", 1, False)]
    assert stage.batch(now_ms=1_100) == []
    assert stage.batch(("a", 0, 1), now_ms=1_100) == [("a", 2, False)]
    assert stage.batch(now_ms=1_101) == [("b", 1, True)]
    assert stage.keys() == {"a": (2, True, 1_200)}
    assert stage.batch(now_ms=1_201) == [("a", 2, True)]
    assert stage.keys() == {}


def test_a_key_times_out_when_its_time_is_less_than_the_watermark():
    stage = Stage(count_for(100, EVENT), EVENT)
    stage.batch(("a", 1_000, 1))
    # Spark's watermark is the greatest time there was: at 1,100 the key's timeout is not less.
    assert stage.batch(("b", 1_100, 1)) == [("b", 1, False)]
    assert stage.batch(("b", 1_101, 1)) == [("b", 2, False), ("a", 1, True)]


def test_rows_of_a_batch_come_before_its_timeouts():
    """A key with rows is not timed out, though its time had come: the call has set another."""
    stage = Stage(count_for(100, PROCESSING), PROCESSING)
    stage.batch(("a", 0, 1), now_ms=1_000)
    assert stage.batch(("a", 0, 1), now_ms=5_000) == [("a", 2, False)]


def test_every_call_clears_the_timeout():
    def once(key, frames, state):
        n = state.get[0] + 1 if state.exists else 0
        state.update((n,))
        if not n:
            state.setTimeoutDuration(10)
        yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [state.hasTimedOut]})

    stage = Stage(once, PROCESSING)
    stage.batch(("a", 0, 1), now_ms=100)
    stage.batch(("a", 0, 1), now_ms=105)
    assert stage.keys() == {"a": (1, True, None)}
    assert stage.batch(now_ms=10_000) == []


def test_a_key_without_state_may_time_out():
    def removing(key, frames, state):
        assert not state.exists
        if state.hasTimedOut:
            yield pd.DataFrame({"k": [key[0]], "n": [7], "out": [True]})
            return
        state.update((1,))
        state.remove()
        state.setTimeoutDuration(10)

    stage = Stage(removing, PROCESSING)
    stage.batch(("a", 0, 1), now_ms=100)
    assert stage.keys() == {"a": (None, False, 110)}
    stage.batch(("a", 0, 1), now_ms=105)
    assert stage.batch(now_ms=116) == [("a", 7, True)]
    assert stage.keys() == {}


def test_the_watermark_is_sparks():
    seen = []

    def look(_key, _frames, state):
        seen.append(state.getCurrentWatermarkMs())
        with pytest.raises(ValueError, match="INVALID_TIMEOUT_TIMESTAMP"):
            state.setTimeoutTimestamp(seen[-1] - 1) if seen[-1] > 1 else state.setTimeoutTimestamp(
                0
            )
        return []

    stage = Stage(look, EVENT)
    with pytest.raises(Exception, match="VALUE_NOT_POSITIVE"):
        stage.batch(("a", 5_000, 1))
    seen.clear()

    def only_look(_key, _frames, state):
        seen.append(state.getCurrentWatermarkMs())
        return []

    stage = Stage(only_look, EVENT)
    stage.batch(("a", 5_000, 1))
    stage.batch(("a", 6_000, 1))
    assert seen == [0, 5_000]
    assert spark_watermark_ms(pd.Timestamp("1970-01-01T00:00:04.999999Z").to_pydatetime()) == 5_000


def test_as_many_keys_as_wait_are_called_at_once():
    rows = [(f"k{n}", 0, 1) for n in range(200)]
    stage = Stage(count_for(100, PROCESSING), PROCESSING)
    stage.batch(*rows, now_ms=1_000)
    assert len(stage.batch(now_ms=2_000)) == 200
    assert np.all([not stage.keys()])
