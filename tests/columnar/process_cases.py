"""Rows, state and calls of process functions."""

import pyarrow as pa
import pytest

from absflow.columnar.process import Call, Result, call
from absflow.columnar.state import DELETED, KeyedState
from absflow.errors import ProcessError

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
KEYS = pa.schema([("k", pa.string())])
STATE = pa.schema([("n", pa.int64()), ("name", pa.string())])
OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64())])
EMPTY = KeyedState.empty(KEYS, STATE)
MADE = Call(
    stage="legs",
    input="flights",
    key_group=17,
    epoch=4,
    batch_id=9,
    time_ms=1_700_000_000_000,
    number=0,
    key=("k",),
    output=OUTPUT,
)


def rows(*pairs):
    return pa.table(list(map(list, zip(*pairs, strict=True))), schema=INPUT)


AB = rows(("a", 1), ("b", 2), ("a", 3))


def state_table(*values, schema=None):
    columns = list(zip(*values, strict=True)) or [()] * 3
    return pa.table(list(map(list, columns)), schema=schema or pa.schema([*KEYS, *STATE]))


def returning(result):
    return lambda *_: result


STORED = call(
    returning(Result(state=state_table(("a", 10, "x"), ("b", 20, "y"), ("c", 30, "z")))),
    MADE,
    rows(("a", 0), ("b", 0), ("c", 0)),
    EMPTY,
).state
WHERE = "stage 'legs', input 'flights', "


def error_of(process, given_rows=AB, made=MADE, state=EMPTY):
    with pytest.raises(ProcessError) as caught:
        call(process, made, given_rows, state)
    message = str(caught.value)
    assert message.startswith(WHERE)
    return message


def live(state):
    return {
        row["k"]: (row["n"], row["name"]) for row in state.table.to_pylist() if not row[DELETED]
    }
