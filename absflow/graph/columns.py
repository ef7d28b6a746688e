"""Which names and types the columns of a stage may have.

The rows of a source travel in pages, where any name will do. What goes into a table must have a
name that Delta takes and that is none of absflow's own.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from absflow.columnar.pages import CHANNEL_FIELDS, TIME_FIELDS
from absflow.columnar.state import DELETED, HIDDEN_COLUMNS, MODIFIED
from absflow.errors import GraphError
from absflow.storage.delta.names import same_name, unfit, unfit_type

__all__ = ["check_channel", "check_input", "check_output", "check_state"]

# Columns beside the user's own, of a stage's state, its history and the views of that.
_OF_STATE = {
    MODIFIED,
    DELETED,
    *HIDDEN_COLUMNS,
    "set_id",
    "checkpoint_id",
    "at_checkpoint",
    "key_group",
    "op",
}
# What the difference of two checkpoints has beside the key.
_OF_DIFFERENCES = {"before", "after"}
# And what Spark has beside the columns of a file, by which the rows of a commit are found again.
_OF_CHANNELS = {*(field.name for field in (*CHANNEL_FIELDS, *TIME_FIELDS)), "_metadata"}
# What the SELECTs of the history call things while they are at it.
_OF_QUERIES = "_absflow_"


def check_input(stage: str, given: str, schema: pa.Schema) -> None:
    """Refuse rows of a source of which a column could not be found by its name.

    Raises:
        GraphError: naming it.
    """
    twice = next((n for n in schema.names if schema.names.count(n) > 1), None)
    if twice is not None:
        raise GraphError(
            f"stage {stage!r}: column {twice!r} stands twice in its input {given!r}; select one of "
            "them, or rename it"
        )


def check_state(stage: str, key: tuple[str, ...], keys: pa.Schema, state: pa.Schema) -> None:
    """Refuse key and state columns that cannot stand in a state history.

    Raises:
        GraphError: naming one, and what to do.
    """
    known = {same_name(name): name for name in key}
    for name in state.names:
        if same_name(name) in known:
            raise GraphError(
                f"stage {stage!r}: column {name!r} stands twice in its state and key; the key "
                "columns are added to the state by absflow"
            )
    _check_own(stage, "key", keys, _OF_STATE | _OF_DIFFERENCES, _OF_QUERIES)
    _check_own(stage, "state", state, _OF_STATE, _OF_QUERIES)
    if why := unfit(pa.schema([*keys, *state])):
        raise GraphError(
            f"stage {stage!r}: its key and state columns go into a table, but {why}; rename the "
            "column (a key where the source is selected)"
        )
    if why := unfit_type(state, values=True):
        raise GraphError(f"stage {stage!r}: its state goes into a table, but {why}")


def check_output(stage: str, schema: pa.Schema) -> None:
    """Refuse output columns that a channel has beside them, whether there is one or not.

    Raises:
        GraphError: naming one.
    """
    twice = next((n for n in schema.names if schema.names.count(n) > 1), None)
    if twice is not None:
        raise GraphError(f"stage {stage!r}: column {twice!r} stands twice in its output")
    _check_own(stage, "output", schema, _OF_CHANNELS)


def check_channel(stage: str, schema: pa.Schema, *, forwards: bool) -> None:
    """Refuse output columns that cannot stand in a channel.

    Raises:
        GraphError: naming one, and what to do.
    """
    why = unfit(schema)
    if why and forwards:
        raise GraphError(
            f"source {stage!r} is read by several inputs, so its rows go through a table, but "
            f"{why}; select the column under another name"
        )
    if of_type := unfit_type(schema):
        what = f"the rows of source {stage!r} go" if forwards else f"the output of {stage!r} goes"
        raise GraphError(f"{what} through a table, a channel, but {of_type}")
    if why:
        raise GraphError(
            f"stage {stage!r}: its output goes into a table, its channel, but {why}; rename the "
            "column"
        )


def _check_own(
    stage: str, what: str, schema: pa.Schema, own: Collection[str], begins: str | None = None
) -> None:
    for name in schema.names:
        if same_name(name) in own or (begins and same_name(name).startswith(begins)):
            raise GraphError(
                f"stage {stage!r}: column {name!r} of its {what} has a name that absflow's own "
                "tables use; rename it"
            )
