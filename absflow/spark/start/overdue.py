"""What a restore finds overdue: what has waited for processing time, which went on meanwhile."""

from __future__ import annotations

from pyspark.sql import functions as F

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.spec import StageSpec
from absflow.columnar.timers import Domain
from absflow.protocol.recovery.matching import StageFit
from absflow.spark.start.restore_input import lineage_rows
from absflow.spark.start.restore_plan import Overdue, RestorePlan
from absflow.storage import state_history
from absflow.storage.root import StorageRoot
from absflow.storage.sql import quoted

__all__ = ["overdue"]


def overdue(
    root: StorageRoot, spec: StageSpec, plan: RestorePlan, fit: StageFit, now_ms: int
) -> Overdue:
    """What of a stage's state is overdue by now; one look at the state, if anything may be.

    Args:
        root: the job's storage root.
        spec: the stage.
        plan: of the restore.
        fit: how the stage gets its state.
        now_ms: the time, ms since 1970 (UTC).
    """
    if fit.source is None or not fit.lineage:
        return Overdue()
    rows = lineage_rows(root, plan, fit).frame()
    there, counts = set(rows.columns), [F.lit(0), F.lit(0)]
    touched = F.unix_micros(F.col(quoted(TOUCHED.name)))
    if spec.on_timer is not None and Domain.PROCESSING.column in there:
        timers = F.col(quoted(Domain.PROCESSING.column))
        due = F.filter(timers, lambda timer: F.unix_micros(timer["time"]) <= now_ms * 1_000)
        counts[0] = F.greatest(F.size(due), F.lit(0))  # of no timers the size may be -1
    by_clock = spec.expires_in(Domain.PROCESSING) and TOUCHED.name in there
    if spec.expiry is not None and by_clock:
        counts[1] = (touched <= now_ms * 1_000 - spec.expiry.after).cast("long")
    elif spec.on_timer is None:
        return Overdue()
    rows = state_history.live_rows(rows, plan.keys[fit.source], fit.lineage)
    if fit.expired_upto is not None:
        rows = rows.where(F.coalesce(touched > fit.expired_upto, F.lit(True)))
    numbers = rows.agg(*map(F.sum, counts)).collect()[0]
    return Overdue(*(int(number or 0) for number in numbers))
