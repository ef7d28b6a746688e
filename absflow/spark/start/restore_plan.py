"""A checkpoint becomes the beginning of a new attempt: first the plan, then its steps.

The state goes from the state histories through pages in files into batch 0 of each stage's query;
that batch reads nothing else, for empty directories stand in the place of the inputs. Then the
line of each root input in ``offsets/0`` is replaced by its position in the checkpoint, so that
batch 1, with the real inputs, begins behind the cut. (Spark checks the number of a plan's sources
against its offset log, not what they are; so the source of the restored pages stays in the plan,
as the last, for as long as the attempt lives.) Rows that the checkpoint has overtaken follow as
DATA pages in further files of that source, which the first real batch finds there: before all rows
of its inputs, for their epochs are lower.

Nothing of the checkpoint, of its attempt or of another storage root is changed, but for the sinks
of the job itself. A half-made attempt is left where a kill leaves it and never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from absflow.facts.find import FoundCheckpoint, find_checkpoint
from absflow.graph import describe
from absflow.protocol.recovery import matching
from absflow.protocol.recovery.attempts import Origin, Restore
from absflow.protocol.recovery.matching import StageFit
from absflow.sinks import SinkCut, SinkRestore
from absflow.spark.model import JobSpec
from absflow.spark.sources.positions import copies_since, unreadable
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["RestorePlan", "plan_restore"]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Exactly what a restore would do.

    Attributes:
        origin: the checkpoint.
        attempt: the attempt that begins with it.
        fork: it lies under another storage root.
        stages: how each stage gets its state.
        positions: where each source goes on, as Spark writes it; new sources are not among them.
        source_logs: where that is kept what the position of each source needs.
        sinks: what happens to each sink.
        tables: name of the state history of each stage in the checkpoint.
        keys: its key columns there.
        taken_in: the attempt that took the checkpoint; 0 if it was written from nothing.
        cut: the checkpoint that positions and sinks are of: another one if it was written by hand,
            0 if it was written from nothing.
        published: what each on-checkpoint sink held when that attempt began.
        differences: between the graph of then and the one of now.
        problems: why it cannot be done; empty if it can.
    """

    origin: Origin
    attempt: int
    fork: bool
    stages: tuple[StageFit, ...]
    positions: Mapping[str, str]
    source_logs: Mapping[str, str]
    sinks: Mapping[str, SinkRestore]
    tables: Mapping[str, str]
    keys: Mapping[str, Sequence[str]]
    taken_in: int
    cut: int
    published: Mapping[str, int]
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether the next checkpoint must be a full one: it has no sets here to build upon."""
        return self.fork or any(stage.changed for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """The plan as JSON has it; ``absflow restore --plan --json`` prints it.

        ``restores`` is true: a start restores, or would if there were no ``problems``; a start that
        would not has these two alone. The stages come in topological order; ``source`` and
        ``table`` are null for one that begins empty. A source that is not in ``positions`` begins
        where its options say. ``version_then`` is null for a sink that stays as it is.
        """
        histories = Layout(self.origin.root)
        return {
            "restores": True,
            "origin": {"root": self.origin.root, "checkpoint_id": self.origin.checkpoint_id},
            "taken_in_attempt": self.taken_in,
            "attempt": self.attempt,
            "fork": self.fork,
            "next_checkpoint_full": self.full,
            "stages": [
                {
                    "stage": fit.stage,
                    "source": fit.source,
                    "keys": fit.keys,
                    "lineage": list(fit.lineage),
                    "table": fit.source and histories.state(self.tables[fit.source]),
                    "key_groups_then": fit.key_groups[0],
                    "key_groups_now": fit.key_groups[1],
                    "changed": fit.changed,
                    "migrate": fit.migrate,
                    "in_flight": [
                        {"input": name, "rows": state.rows, "bytes": state.bytes}
                        for name, state in fit.in_flight
                    ],
                }
                for fit in self.stages
            ],
            "positions": dict(self.positions),
            "sinks": [
                {
                    "sink": name,
                    "place": sink.place,
                    "version_now": sink.now,
                    "version_then": sink.then,
                    "undone": list(sink.undone),
                    "note": sink.note,
                }
                for name, sink in self.sinks.items()
            ],
            "differences": list(self.differences),
            "problems": list(self.problems),
        }


def plan_restore(
    spark: SparkSession, files: Files, job: JobSpec, layout: Layout, start: Restore
) -> RestorePlan:
    """What ``start`` means for this job; changes nothing.

    Args:
        spark: the session.
        files: for files that are no tables.
        job: the job.
        layout: of its own storage root.
        start: what :func:`absflow.protocol.recovery.attempts.decide` said.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    taken = find_checkpoint(
        spark, files, start.target.root or layout.root, start.target.checkpoint_id
    )
    fork = taken.origin.root != layout.root
    upgrades = job.graph.upgrades
    declared = matching.Declared(
        renamed={n: u.renamed_from for n, u in upgrades.items() if u.renamed_from},
        defaults={n: u.defaults.keys() for n, u in upgrades.items()},
        migrated=[n for n, u in upgrades.items() if u.migrate is not None],
        allow_dropped=job.settings.restore_allow_dropped_state,
    )
    matched = matching.fit(taken.manifest, taken.described, describe(job.graph), declared)
    sinks = {name: _plan_sink(spark, job, name, taken, fork) for name in job.sinks}
    problems = [*matched.problems, *(p for sink in sinks.values() for p in sink.problems)]
    problems += [] if fork else _shared(sinks)
    source_logs = {
        source: Layout(taken.origin.root).source_log(stage.report.stage, source, taken.attempt)
        for stage in taken.manifest.stages
        for source in stage.report.positions
    }
    for source, position in matched.positions.items():
        copies = source_logs[source]
        since = copies_since(files, Layout(taken.origin.root), source, taken.attempt)
        gone = unreadable(spark, files, job.frames[source], position, copies, since)
        problems += [
            f"source {source!r} cannot go on at {position}: {what}; choose a newer checkpoint, or "
            "bring back what is gone"
            for what in gone
        ]
    return RestorePlan(
        origin=taken.origin,
        attempt=start.attempt,
        fork=fork,
        stages=matched.stages,
        positions=matched.positions,
        source_logs=source_logs,
        sinks=sinks,
        tables={name: described["table"] for name, described in taken.described.items()},
        keys={n: [k for k, _ in described["key"]] for n, described in taken.described.items()},
        taken_in=taken.attempt,
        cut=taken.cut,
        published=taken.published,
        differences=matched.differences,
        problems=tuple(problems),
    )


def _plan_sink(
    spark: SparkSession, job: JobSpec, name: str, taken: FoundCheckpoint, fork: bool
) -> SinkRestore:
    sink, there = job.sinks[name], taken.sinks
    place, version = sink.position(spark)
    # By their places: a sink that has another name now writes the table that it wrote then.
    begun = {path: began_at for path, began_at in there.values() if path}
    if fork:
        shared = place in begun
        problem = (
            f"sink {name!r} is {place!r}, which the job under {taken.origin.root!r} writes; give "
            "the fork a sink of its own"
        )
        return SinkRestore(place, version, new=True, problems=(problem,) if shared else ())
    if place not in begun if place else name not in there:
        return SinkRestore(
            place, version, new=True, note="new: it gets the rows after the checkpoint only"
        )
    cut = SinkCut(job.graph.job, taken.attempt, taken.cut, begun.get(place))
    return sink.plan_restore(spark, cut)


def _shared(sinks: Mapping[str, SinkRestore]) -> list[str]:
    """What forbids to put back a table that several stages write: they do so in no common order."""
    problems = []
    for place in dict.fromkeys(sink.place for sink in sinks.values() if sink.place):
        names = [name for name, sink in sinks.items() if sink.place == place]
        if len(names) > 1:
            problems.append(
                f"sinks {', '.join(map(repr, names))} all write {place!r}, and no version of it "
                "lies at the checkpoint for each of them; give every sink a table of its own"
            )
    return problems
