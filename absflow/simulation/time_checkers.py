"""What must be true of event time in the tables that a simulated world leaves behind.

Like the other checkers these compute what is due from the sources' rows alone:

* the watermark of a stage never falls from checkpoint to checkpoint, and at an aligned one it
  follows from the source positions: the least, over its inputs that have not ended, of what each
  has; of a source, the least over its partitions of the greatest time before the position, less the
  delay. At one that has overtaken rows it is not above that;
* no row that is on time at its source is late anywhere;
* a window's timer fires once, with all rows of the window that are on time, so not early; and on
  the right side of each barrier: behind it, if the watermark at the barrier is before the window's
  end; before it, if the stage says a watermark behind that. What the state of the checkpoint holds
  are the windows that have not fired, which the checker of cuts compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from absflow.protocol.alignment import OvertakeArrived
from absflow.protocol.checkpoints import Manifest, StageManifest
from absflow.protocol.coordinator.messages import RootInput, Triggered
from absflow.protocol.source_time import SourceTime
from absflow.protocol.watermarks import InputTime, StageTime, WatermarkStatus, later
from absflow.simulation.due import Due, Window, newest_at, watermark_at
from absflow.simulation.event_time import time_of
from absflow.simulation.items import Fired
from absflow.simulation.job import DELAY, Graph, StageSpec
from absflow.simulation.restore import reconstruct
from absflow.simulation.tables import Tables

__all__ = ["check", "check_cut", "fired_windows"]


def check(graph: Graph, tables: Tables, due: Due) -> Iterator[str]:
    """What must hold of the whole run."""
    for row in tables.missed:
        yield f"late: {row} is on time at its source, but came behind a stage's watermark"
    for stage in graph.stages:
        fired = _fired(tables, stage.name)
        for window, count in Counter((f.end, f.key) for f in fired).items():
            if count > 1:
                yield f"timer: window {window} of stage {stage.name} fired {count} times"
        whole = due.whole_windows(stage.name)
        rows = [row for path in due.into[stage.name] for row in tables.rows[path[0]]]
        far = max(row.at for row in rows) - DELAY - 1
        for one in fired:
            if one.end > far:
                yield f"timer: {one} of stage {stage.name}, but no partition came beyond {far}"
            if one.value != whole.get((one.end, one.key)):
                yield (
                    f"timer: window {(one.end, one.key)} of stage {stage.name} fired with "
                    f"{one.value}, due is {whole.get((one.end, one.key))}"
                )


def check_cut(
    graph: Graph,
    tables: Tables,
    due: Due,
    manifest: Manifest,
    seen: dict[str, int | None],
) -> Iterator[str]:
    """What must hold at a completed checkpoint; they are looked at oldest first.

    Args:
        graph: the job.
        tables: what it left.
        due: folded up to the checkpoint.
        manifest: of the checkpoint.
        seen: the watermark of each stage at the checkpoint before; replaced by those at this one.
    """
    number = manifest.checkpoint_id
    times: dict[str, StageTime] = {}
    ordered = {o.barrier.checkpoint_id for o in tables.overtakes if isinstance(o, OvertakeArrived)}
    triggered = {row.barrier.checkpoint_id for row in tables.barriers if isinstance(row, Triggered)}
    for spec in graph.stages:
        part = next(s for s in manifest.stages if s.report.stage == spec.name)
        if not tables.histories[spec.name].sets.keys() >= {*part.lineage}:
            return  # which the checker of cuts says
        values = reconstruct(tables.histories[spec.name], part.lineage)
        time, sources, _ = time_of(spec, values)
        times[spec.name] = time
        yield from _sides(tables, due, spec.name, number, time)
        if part.report.checkpoint_id != number:
            continue  # it had ended; what it is now was looked at when it did
        yield from _partitions(tables, number, part, sources)
        if number not in triggered:
            continue  # what a restored attempt began with
        before = seen.get(spec.name)
        bound = later(before, _bound(tables, spec, number, part, times))
        # A stage whose inputs have all ended may have overtaken, too, though nobody awaits it.
        overtaken = bool(part.report.in_flight) or number in ordered
        low, high = before if overtaken else bound, None if tables.idles else bound
        if not _at_most(low, time.value) or (not tables.idles and not _at_most(time.value, high)):
            yield (
                f"watermark: stage {spec.name} has {time.value} at checkpoint {number}, due is "
                f"{'at least ' if overtaken or tables.idles else ''}{low}"
                + (f", at most {high}" if overtaken and not tables.idles else "")
            )
        seen[spec.name] = time.value


def _partitions(
    tables: Tables, checkpoint_id: int, part: StageManifest, sources: Mapping[str, SourceTime]
) -> Iterator[str]:
    """How far each partition of a source was at the position of the checkpoint."""
    for name, source in sources.items():
        newest = {p: at for p, at in source.newest.items() if at is not None}
        wanted = newest_at(tables.rows[name], int(part.report.positions[name]))
        if newest != wanted:
            yield (
                f"partition: source {name} has {newest} at checkpoint {checkpoint_id}, "
                f"due is {wanted}"
            )


def _bound(
    tables: Tables,
    spec: StageSpec,
    checkpoint_id: int,
    part: StageManifest,
    times: Mapping[str, StageTime],
) -> int | None:
    """The least of what the inputs have at a checkpoint that have not ended by then."""
    triggers = [row for row in tables.barriers if isinstance(row, Triggered)]
    ended = {r for t in triggers if t.barrier.checkpoint_id <= checkpoint_id for r in t.exhausted}
    statuses = (WatermarkStatus.ACTIVE, WatermarkStatus.ENDED)
    inputs = [
        InputTime(
            watermark_at(tables.rows[root], int(part.report.positions[root])),
            statuses[RootInput(spec.name, root) in ended],
        )
        for root in spec.roots
    ]
    inputs += [InputTime(times[name].output, times[name].status) for name in spec.upstream]
    active = [given.value for given in inputs if given.status is not WatermarkStatus.ENDED]
    known = [given.value for given in inputs if given.value is not None]
    if active:
        return None if None in active else min(v for v in active if v is not None)
    return max(known, default=None)


def _sides(
    tables: Tables, due: Due, stage: str, checkpoint_id: int, time: StageTime
) -> Iterator[str]:
    """The windows that have fired before a barrier are over; what the stage says is past them."""
    before = fired_windows(tables, stage, checkpoint_id)
    windows = due.windows(stage)
    early = [w for w in before if time.value is None or w[0] > time.value or w not in windows]
    missing = [
        w for w in windows if time.output is not None and w[0] <= time.output and w not in before
    ]
    if early or missing:
        yield (
            f"timer: before barrier {checkpoint_id} stage {stage} fired {sorted(early)} too early "
            f"and {sorted(missing)} not at all"
        )


def fired_windows(
    tables: Tables, stage: str, checkpoint_id: int | None = None
) -> frozenset[Window]:
    """The windows that a stage has let go before a barrier; without one, ever."""
    return frozenset(
        (one.end, one.key)
        for one in _fired(tables, stage)
        if checkpoint_id is None or one.epoch <= checkpoint_id
    )


def _fired(tables: Tables, stage: str) -> list[Fired]:
    return [item for item in tables.log_of(stage) if isinstance(item, Fired)]


def _at_most(one: int | None, other: int | None) -> bool:
    return one is None or (other is not None and one <= other)
