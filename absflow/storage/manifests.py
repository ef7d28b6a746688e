"""A stage's part of a manifest as the ``checkpoints`` table has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from absflow.protocol.checkpoints import ChannelState, StageManifest, StageReport
from absflow.protocol.load import Backlog, Load

__all__ = ["stage_of", "stage_row"]

_REPORT = [field.name for field in fields(StageReport)]
_LOAD = [field.name for field in fields(Load)]


def stage_row(stage: StageManifest) -> dict[str, Any]:
    """The value of one element of ``stages``."""
    row = asdict(stage.report)
    row["positions"] = list(stage.report.positions.items())
    row["lineage"] = list(stage.lineage)
    row["in_flight"] = [
        {name: value for name, value in asdict(state).items() if name != "stage"}
        for state in stage.in_flight
    ]
    return row | (asdict(stage.load) if stage.load else dict.fromkeys(_LOAD))


def stage_of(row: Mapping[str, Any]) -> StageManifest:
    """The inverse of :func:`stage_row`; columns that it does not know are left alone."""
    in_flight = tuple(
        ChannelState(row["stage"], **{**state, "files": tuple(state["files"])})
        for state in row["in_flight"] or []
    )
    known = {name: row[name] for name in _REPORT}
    known["positions"] = dict(row["positions"] or [])
    known["in_flight"] = {state.input: state.position for state in in_flight}
    load = None
    if row.get("busy") is not None:  # a table of an earlier version has no such column
        told = row["backlogs"]
        backlogs = None if told is None else tuple(Backlog(**each) for each in told)
        load = Load(row["busy"], row["backpressured"], backlogs)
    return StageManifest(StageReport(**known), tuple(row["lineage"]), in_flight, load)
