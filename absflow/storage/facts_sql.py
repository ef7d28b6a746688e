"""SELECTs over a job's facts; texts only."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from absflow.protocol.checkpoints import TERMINAL, FailureReason
from absflow.storage.sql import literal

if TYPE_CHECKING:
    from absflow.protocol.recovery.branch import Branch

__all__ = [
    "checkpoint_stages",
    "checkpoints",
    "completed",
    "deleted",
    "on_branch",
    "since_begun",
]


def checkpoints(facts: str, barriers: str, abandoned: str, lost: Collection[int]) -> str:
    """One row per triggered checkpoint; :mod:`absflow.facts.overview` makes the same without SQL.

    Args:
        facts: the table ``checkpoints``.
        barriers: the table ``barriers``.
        abandoned: whether a restore has left a checkpoint behind, over its attempt and id.
        lost: the ids that a driver which is no more has left pending.
    """
    cases = " ".join(f"WHEN {literal(r.code)} THEN {literal(r.sentence)}" for r in FailureReason)
    ended = f"(SELECT * FROM {facts} WHERE kind IN {tuple(sorted(TERMINAL))})"
    is_lost = f"b.checkpoint_id IN ({', '.join(map(str, lost)) or 'NULL'})"
    restart = literal(FailureReason.DRIVER_RESTART.code)
    # Barriers first: what completes between the two readings is completed, and not pending.
    return f"""
        SELECT checkpoint_id, type, status, abandoned, reason,
               CASE reason {cases} END AS sentence, cause, attempt, base_id, triggered_at,
               ended_at, duration_ms, stages, fingerprint, versions
        FROM (
          SELECT b.checkpoint_id, b.kind AS type, IF({is_lost}, 'ABORTED', 'PENDING') AS status,
                 {abandoned} AS abandoned, IF({is_lost}, {restart}, NULL) AS reason, NULL AS cause,
                 b.attempt, b.base_id, b.triggered_at, NULL AS ended_at, NULL AS duration_ms,
                 NULL AS stages, NULL AS fingerprint, NULL AS versions
          FROM {barriers} AS b
          LEFT ANTI JOIN {ended} AS f ON f.checkpoint_id = b.checkpoint_id
          WHERE b.kind <> 'END'
          UNION ALL
          SELECT f.checkpoint_id, coalesce(type, 'CHECKPOINT'), IF(gone, 'DELETED', kind),
                 derived_from IS NULL AND {abandoned}, reason, cause, attempt, base_id,
                 triggered_at, ended_at, duration_ms, IF(gone, NULL, stages), fingerprint,
                 versions
          FROM (SELECT f.*, d.checkpoint_id IS NOT NULL AS gone
                FROM {ended} AS f
                LEFT JOIN ({deleted(facts)}) AS d ON d.checkpoint_id = f.checkpoint_id) AS f)"""


def checkpoint_stages(facts: str) -> str:
    """One row per completed checkpoint and stage, from the table ``checkpoints``."""
    return f"""
        SELECT checkpoint_id, triggered_at, s.checkpoint_id AS snapshot_id,
               s.* EXCEPT (checkpoint_id)
        FROM ({completed(facts)}) LATERAL VIEW explode(stages) AS s"""


def completed(facts: str) -> str:
    """The COMPLETED facts of the checkpoints that are there."""
    return f"""
        SELECT f.* FROM {facts} AS f
        LEFT ANTI JOIN ({deleted(facts)}) AS d ON d.checkpoint_id = f.checkpoint_id
        WHERE f.kind = 'COMPLETED'"""


def deleted(facts: str) -> str:
    """The ids of the checkpoints that are gone, by the table of facts."""
    return f"SELECT DISTINCT checkpoint_id FROM {facts} WHERE kind = 'DELETED'"


def on_branch(branch: Branch, attempt: str, checkpoint: str) -> list[str]:
    """Conditions one of which holds for a row of the job as it is now; none if no attempt is ready.

    ``attempt`` is the column of the row's attempt, ``checkpoint`` that of its checkpoint, or epoch.
    """
    return [
        f"{attempt} = {n}" + ("" if upto is None else f" AND {checkpoint} <= {upto}")
        for n, upto in branch.parts
    ]


def since_begun(branch: Branch, attempt: str, checkpoint: str) -> str:
    """As :func:`on_branch`, or of an attempt that was begun since; as one condition."""
    parts = on_branch(branch, attempt, checkpoint)
    later = [f"{attempt} > {branch.parts[0][0]}"] if parts else []
    return " OR ".join(f"({part})" for part in (*later, *parts)) or "true"
