"""State from rows of a state history: the keys that are asked for, and the newest of each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from absflow.columnar.expiry import expired
from absflow.columnar.merging import last_changes
from absflow.errors import NotFoundError
from absflow.protocol.checkpoints import StageColumns, StageManifest

__all__ = ["is_value", "state_at"]


def state_at(changes: pa.Table, columns: StageColumns, found: StageManifest) -> pa.Table:
    """The state of a stage at a checkpoint, sorted by key.

    Args:
        changes: rows of its history in the sets of the lineage.
        columns: the stage as it was then.
        found: the stage in the checkpoint's manifest.
    """
    rows = _newest(changes, columns.key, found.lineage).select([*columns.key, *columns.state])
    gone = expired(rows, found.report.expired_upto)
    return rows if gone is None else rows.filter(pa.array(~gone))


def _newest(changes: pa.Table, key: Sequence[str], lineage: Sequence[int]) -> pa.Table:
    """The last change of each key, unless it is a deletion; sorted by key."""
    place = pc.index_in(changes["set_id"], value_set=pa.array(lineage, pa.int64()))
    last = last_changes(changes.take(pc.sort_indices(place)), key)
    last = last.filter(pc.equal(last["op"], "upsert"))
    # By place: Arrow takes a name that begins with a dot for a path.
    places = [f"key{place}" for place in range(len(key))]
    keys = last.select(list(key)).rename_columns(places)
    return last.take(pc.sort_indices(keys, [(place, "ascending") for place in places]))


def is_value(name: str, text: str | None, type_: pa.DataType) -> ds.Expression:
    """The rows with this value, as the command line has it, in a column.

    Raises:
        NotFoundError: the text is no value of the column.
    """
    value = _parse(name, text, type_)
    return ds.field(name) == value if value.is_valid else ds.field(name).is_null()


def _parse(name: str, text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A column's value from the command line, in the form in which it is printed."""
    if text is None:
        return pa.scalar(None, type_)
    try:
        if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
            return pa.scalar(base64.b64decode(text, validate=True), type_)
        return pa.scalar(text, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, binascii.Error) as error:
        raise NotFoundError(
            f"column {name!r} has type {type_}, which {text!r} is not; give it as "
            "`absflow state --json` prints it"
        ) from error
