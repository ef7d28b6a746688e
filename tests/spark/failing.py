"""Process functions that fail, for test_failures; importable by Spark's workers."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
from diamond import to_group

import absflow


def raises_on_17(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A bug that one row brings out."""
    if 17 in rows["id"].to_pylist():
        raise ZeroDivisionError("seventeen")
    return to_group(rows, state, context)


def wrong_type(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Declared ``g long``, returned text."""
    text = pa.array(["x"] * rows.num_rows)
    return absflow.Result(output=pa.table({"id": rows["id"], "g": text, "v": rows["v"]}))


def random_values(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Not deterministic: a replay gives other rows."""
    numbers = [random.SystemRandom().randrange(10**9) for _ in range(rows.num_rows)]
    return absflow.Result(output=pa.table({"id": rows["id"], "g": rows["v"], "v": numbers}))


def with_map(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """As :func:`to_group`, and each row has a map."""
    result = to_group(rows, state, context)
    assert result.output is not None
    maps = [[("a", i), ("b", None)] for i in rows["id"].to_pylist()]
    column = pa.array(maps, pa.map_(pa.string(), pa.int64()))
    return absflow.Result(output=result.output.append_column("m", column), state=result.state)


def slow(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Slower than the checkpoint timeout of its test."""
    time.sleep(1)
    return to_group(rows, state, context)


class FailsOnce:
    """Raises until a file is there, and puts it there: an outage that passes."""

    def __init__(self, flag: Path) -> None:
        """Use ``flag`` as the memory that outlives a worker."""
        self.flag = flag

    def __call__(self, rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
        """Fail the first time."""
        if not self.flag.exists():
            self.flag.touch()
            raise ConnectionError("not yet")
        return to_group(rows, state, context)


class FailsWhile:
    """Raises as long as a file is there."""

    def __init__(self, flag: Path) -> None:
        """Look for ``flag``."""
        self.flag = flag

    def __call__(self, rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
        """Fail if it is there."""
        if self.flag.exists():
            raise ConnectionError("still there")
        return to_group(rows, state, context)
