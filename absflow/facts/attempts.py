"""What the table ``attempts`` says to those who only look."""

from __future__ import annotations

import json

from absflow.facts.reading import StorageReader
from absflow.facts.stages import Stages, stages_of
from absflow.protocol.checkpoints import AttemptFact
from absflow.storage.layout import Layout

__all__ = ["driver_of", "published_sinks", "stages_under"]


def stages_under(reader: StorageReader, layout: Layout) -> Stages:
    """The stages of the job, as each attempt and each written savepoint had them.

    Raises:
        NotFoundError: no job has ever started there.
    """
    columns = ("attempt", "incarnation", "kind", "details")
    return stages_of(reader.table(layout.attempts, columns).to_pylist())


def published_sinks(reader: StorageReader, layout: Layout) -> dict[str, str]:
    """The stage of each on-checkpoint sink, by the sink's name."""
    rows = reader.table(layout.attempts, ("attempt", "kind", "details")).to_pylist()
    ready = [row for row in rows if row["kind"] == AttemptFact.READY]
    newest = max(ready, key=lambda row: int(row["attempt"]), default=None)
    return dict(json.loads(newest["details"]).get("on_checkpoint", {})) if newest else {}


def driver_of(reader: StorageReader, layout: Layout) -> tuple[int, str]:
    """The newest driver's incarnation, and how it has ended; "" if it has not said so.

    Raises:
        NotFoundError: no job has ever started there.
    """
    rows = reader.table(layout.attempts, ("incarnation", "kind")).to_pylist()
    newest = max(row["incarnation"] for row in rows)
    kinds = [row["kind"] for row in rows if row["incarnation"] == newest]
    if AttemptFact.WRITTEN in kinds:  # whoever writes a savepoint runs no job
        return newest, "ended"
    ends = (kind for kind in kinds if kind in {AttemptFact.ENDED, AttemptFact.FAILED})
    return newest, next((kind.lower() for kind in ends), "")
