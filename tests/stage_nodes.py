"""Stages as an author declares them, for tests of graphs."""

from __future__ import annotations

import pyarrow as pa

from absflow.columnar.process import Result
from absflow.graph.nodes import StageNode

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
STATE = pa.schema([("n", pa.int64())])


def stage(name: str, *inputs: str, **changes: object) -> StageNode:
    """A stage that is right but for ``changes``."""
    values: dict[str, object] = {
        "key": ("k",),
        "state": STATE,
        "output": ROWS,
        "process": {i: lambda rows, state, context: Result() for i in inputs},
        **changes,
    }
    return StageNode(name, inputs, **values)  # type: ignore[arg-type]
