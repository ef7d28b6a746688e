"""What of a stage's state differs between two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.cli.reader import Reader
from absflow.columnar.keys import locate
from absflow.errors import NotFoundError

__all__ = ["Difference", "difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """What of a stage differs between two checkpoints.

    Attributes:
        stage: the stage.
        key: names of its key columns.
        came: rows of keys that only the later has.
        went: rows of keys that only the earlier has.
        before: rows of the earlier that the later has otherwise.
        after: these as the later has them, in the same order.
    """

    stage: str
    key: Sequence[str]
    came: pa.Table
    went: pa.Table
    before: pa.Table
    after: pa.Table


def difference(reader: Reader, stage: str, earlier: int, later: int) -> Difference:
    """Compare the state of a stage at two checkpoints.

    Raises:
        NotFoundError: one of them is not there, or the stage had another key.
    """
    before, after = (reader.state(stage, n) for n in (earlier, later))
    key = list(after.columns.key)
    if list(before.columns.key) != key:
        raise NotFoundError(
            f"stage {stage!r} had the key columns {list(before.columns.key)} at checkpoint "
            f"{earlier} and has {key} at {later}; its keys cannot be compared"
        )
    old, new = before.rows, after.rows
    at = locate(new.select(key), old.select(key))
    known = np.flatnonzero(at >= 0)
    there = np.ones(old.num_rows, dtype=bool)
    there[at[known]] = False
    then, now = old.take(pa.array(at[known])), new.take(pa.array(known))
    changed = pa.array(_differs(then, now))
    return Difference(
        stage,
        key,
        new.filter(pa.array(at < 0)),
        old.filter(pa.array(there)),
        then.filter(changed),
        now.filter(changed),
    )


def _differs(then: pa.Table, now: pa.Table) -> npt.NDArray[np.bool_]:
    """Of each pair of rows, whether any column differs; a column that one lacks is left out."""
    found = np.zeros(now.num_rows, dtype=bool)
    for name in now.column_names:
        if name not in then.column_names:
            continue
        a, b = then[name], now[name]
        if a.type == b.type and not pa.types.is_nested(a.type):
            differs = pc.fill_null(pc.not_equal(a, b), False).to_numpy()
            found |= differs | (a.is_null().to_numpy() != b.is_null().to_numpy())
        else:
            pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
            found |= np.array([x != y for x, y in pairs], dtype=bool)
    return found
