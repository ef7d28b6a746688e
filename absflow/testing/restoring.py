"""Checkpoints of a stage under test, and what it begins with: by the code of a job's restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.pages import Page, pages_of
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.state import DELETED, OWN_COLUMNS, snapshot_schema
from absflow.columnar.timers import Domain
from absflow.errors import GraphError
from absflow.protocol.event_time import EventTime, to_datetime
from absflow.spark.worker.initial_rows import initial_rows
from absflow.testing.declaration import Made
from absflow.testing.rows import Rows, in_key_order, table_of

__all__ = ["Taken", "given_state", "initial_state", "restore_pages"]


@dataclass(frozen=True, slots=True)
class Taken:
    """A completed checkpoint.

    Attributes:
        base_id: what its rows are relative to; 0 for nothing.
        rows: what had changed since then.
        time: event time there; None if the stage has none.
        expired_upto: state that was touched last up to then had expired; None if none had.
        now_ms: the time of the clock.
    """

    base_id: int
    rows: pa.Table
    time: EventTime | None
    expired_upto: int | None
    now_ms: int


def restore_pages(made: Made, taken: Mapping[int, Taken], checkpoint_id: int) -> list[Page]:
    """The pages that bring the state at a checkpoint to the key groups of a stage.

    Args:
        made: the stage, which may have another number of key groups.
        taken: the checkpoints.
        checkpoint_id: one of them.
    """
    lineage = _lineage(taken, checkpoint_id)
    at, spec = taken[checkpoint_id], made.spec
    reached = None if at.time is None else at.time.stage.value
    clock = reached if spec.expires_in(Domain.EVENT) and reached is not None else at.now_ms * 1_000
    packer = StatePacker(
        stage=spec.name,
        keys=spec.keys,
        state=spec.state,
        key_groups=spec.key_groups,
        checkpoint_id=checkpoint_id,
        lineage=lineage,
        defaults={**made.defaults, TOUCHED.name: to_datetime(clock)},
        expired_upto=at.expired_upto,
        expires_by_clock=spec.expires_in(Domain.PROCESSING),
    )
    sets = [_as_set(taken[n].rows, n) for n in lineage]
    batches = pa.concat_tables(sets).to_batches()
    return [page for packed in packer.pack(batches) for page in pages_of(packed)]


def _lineage(taken: Mapping[int, Taken], checkpoint_id: int) -> list[int]:
    found = [checkpoint_id]
    while base := taken[found[-1]].base_id:
        found.append(base)
    return found[::-1]


def _as_set(rows: pa.Table, set_id: int) -> pa.Table:
    """As they stand in a state history."""
    ops = ["delete" if gone else "upsert" for gone in rows[DELETED].to_pylist()]
    rows = rows.drop_columns([DELETED])
    rows = rows.append_column("set_id", pa.array([set_id] * len(ops), pa.int64()))
    return rows.append_column("op", pa.array(ops, pa.string()))


def given_state(made: Made, rows: Rows, now_ms: int) -> pa.Table:
    """State that somebody gives, as the rows of a snapshot.

    Args:
        made: the stage.
        rows: a row for each key, with the columns of key and state.
        now_ms: when the keys were touched, if they expire.

    Raises:
        ValueError: they have other columns, or values that do not fit.
    """
    spec = made.spec
    own = [field for field in spec.state if field.name in OWN_COLUMNS]
    visible = pa.schema([*spec.keys, *(f for f in spec.state if f not in own)])
    table = table_of(rows, visible, f"the state of stage {spec.name!r}")
    for field in own:
        value = to_datetime(now_ms * 1_000) if field.name == TOUCHED.name else None
        default = made.defaults.get(field.name) if value is None else value
        table = table.append_column(
            field, pa.repeat(pa.scalar(default, field.type), table.num_rows)
        )
    return _as_snapshot(made, table)


def initial_state(made: Made, rows: pa.Table, now_ms: int) -> pa.Table:
    """What ``handleInitialState`` makes of initial rows, as the rows of a snapshot.

    Args:
        made: the stage.
        rows: with the key columns.
        now_ms: the time that the handler is given.

    Raises:
        GraphError: nothing takes them.
    """
    spec = made.spec
    if made.initial is None:
        raise GraphError(
            f"stage {spec.name!r} has no function for initial state; it is for a StatefulProcessor "
            "with handleInitialState. Give others a state: begin"
        )
    batches = in_key_order(rows, spec.keys.names).to_batches()
    made_of_them = initial_rows(spec, made.initial, rows.schema, now_ms)(batches)
    table = pa.Table.from_batches(made_of_them, pa.schema([*spec.keys, *spec.state]))
    return _as_snapshot(made, table)


def _as_snapshot(made: Made, table: pa.Table) -> pa.Table:
    schema = snapshot_schema(made.spec.keys, made.spec.state)
    there = pa.repeat(pa.scalar(False), table.num_rows)
    return table.append_column(DELETED, there).select(schema.names).cast(schema)
