"""How the stages of a graph get their state from a checkpoint of another graph.

Rules of this file: plain functions over manifests and descriptions.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from absflow.protocol.checkpoints import ChannelState, Manifest, SetDigest, StageManifest
from absflow.protocol.event_time import EventTime
from absflow.protocol.recovery.columns import columns_changed, widens

__all__ = ["Declared", "Fit", "StageFit", "fit", "table_of"]


@dataclass(frozen=True, slots=True)
class StageFit:
    """How a stage of the job gets its state.

    Attributes:
        stage: its name.
        source: the stage in the checkpoint; None if it begins empty.
        lineage: the sets to read, oldest first.
        keys: how many keys they hold.
        changed: the state's columns, its key or its name are not what they were.
        migrate: a declared migration gives the new state.
        key_groups: then and now.
        in_flight: rows on their way to the stage, each with the name of its input now.
        sets: the digests of the sets, as far as they are known.
        expired_upto: state that was touched last up to then had expired, microseconds; None if none
            had.
        other_expiry: its state expires by another rule than it did.
        time: its event time in the checkpoint, by the names that its inputs have now; None if it
            had none.
    """

    stage: str
    source: str | None
    lineage: tuple[int, ...] = ()
    keys: int = 0
    changed: bool = False
    migrate: bool = False
    key_groups: tuple[int, int] = (0, 0)
    in_flight: tuple[tuple[str, ChannelState], ...] = ()
    sets: tuple[SetDigest, ...] = ()
    expired_upto: int | None = None
    other_expiry: bool = False
    time: EventTime | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """How a checkpoint fits a graph.

    Attributes:
        stages: in topological order.
        positions: where each root input goes on, by source; a source without one begins anew.
        sources: what each of these was called in the checkpoint.
        differences: what has changed, in words.
        problems: what forbids the restore, in words.
    """

    stages: tuple[StageFit, ...]
    positions: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """What the author of the job has declared about its earlier forms.

    Attributes:
        renamed: the earlier name of a stage or source, by its name.
        defaults: the state columns of a stage for which a default is declared.
        migrated: the stages with a migration.
        allow_dropped: ``restore.allow-dropped-state``.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Collection[str]] = field(default_factory=dict)
    migrated: Collection[str] = ()
    allow_dropped: bool = False


# A stage, or a whole graph, as :func:`absflow.graph.description.describe` says it.
Described = Mapping[str, Any]


def fit(manifest: Manifest, before: Described, now: Described, declared: Declared) -> Fit:
    """Match the stages of a checkpoint with those of a graph.

    Args:
        manifest: the checkpoint.
        before: the graph that wrote it, described.
        now: the graph to restore, described.
        declared: what its author says of the difference.
    """
    fitting = _Fitting(manifest, before, declared)
    stages = tuple(fitting.stage(name, described) for name, described in now.items())
    for name in before:
        fitting.dropped(name)
    there = fitting.positions()
    sources = fitting.sources(now, there)
    positions = {name: there[old] for name, old in sources.items()}
    return Fit(stages, positions, sources, tuple(fitting.differences), tuple(fitting.problems))


@dataclass(slots=True)
class _Fitting:
    """A fit under way."""

    manifest: Manifest
    before: Described
    declared: Declared
    taken: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def stage(self, name: str, described: Described) -> StageFit:
        """How the stage ``name`` gets its state."""
        source = self._then(name, self.before)
        if source != name and source not in self.before:
            self.problems.append(
                f"stage {name!r} is declared as renamed from {source!r}, but the checkpoint has "
                f"{sorted(self.before)}"
            )
        if source in self.taken:
            self.problems.append(
                f"stages {self.taken[source]!r} and {name!r} both take the state of {source!r}"
            )
        reported = self.manifest.stage(source)
        if source not in self.before or reported is None:
            self.differences.append(f"stage {name!r} is new: it begins without state")
            return StageFit(name, None, key_groups=(0, described["key-groups"]))
        self.taken[source] = name
        old = self.before[source]
        title = f"stage {name!r}"
        if source != name:
            title += f" (was {source!r})"
            self.differences.append(f"stage {source!r} is now {name!r}")
        groups = (old["key-groups"], described["key-groups"])
        if groups[0] != groups[1]:
            self.differences.append(f"{title}: {groups[0]} key groups become {groups[1]}")
        other = (old["key"], old["state"]) != (described["key"], described["state"])
        migrate = other and name in self.declared.migrated
        if migrate:
            self.differences.append(f"{title}: its state is migrated by its own function")
        elif other:
            self._columns(title, name, old, described)
        self._output(title, old, described)
        self._expiry(title, old, described)
        keys = reported.report.keys_total
        changed = other or source != name
        in_flight = self._in_flight(title, reported, old, described)
        return StageFit(
            name,
            source,
            reported.lineage,
            keys,
            changed,
            migrate,
            groups,
            tuple(in_flight),
            reported.sets,
            reported.report.expired_upto,
            old.get("ttl") != described.get("ttl"),
            self._time(reported, described),
        )

    def _time(self, reported: StageManifest, described: Described) -> EventTime | None:
        time = reported.report.time
        if time is None:
            return None
        read, known = _sources(self.before), time.stage.inputs
        inputs, sources, quiet = {}, {}, {}
        for name, _, root, _ in described["inputs"]:
            old = self._then(name, read if root else self.before)
            if old in known:
                inputs[name] = known[old]
            if old in time.sources:
                sources[name] = time.sources[old]
            if old in time.quiet_ms:
                quiet[name] = time.quiet_ms[old]
        return EventTime(replace(time.stage, inputs=inputs), sources, quiet)

    def _in_flight(
        self, title: str, reported: StageManifest, old: Described, new: Described
    ) -> Iterator[tuple[str, ChannelState]]:
        """Rows that the checkpoint has overtaken need the input that they were on their way to."""
        columns = {name: text for name, text, root, _ in old["inputs"] if not root}
        now = {
            self._then(name, self.before): (name, text)
            for name, text, root, _ in new["inputs"]
            if not root
        }
        for state in reported.in_flight:
            name, text = now.get(state.input, (state.input, None))
            if text == columns[state.input]:
                yield name, state
                continue
            is_ = "does not read any more" if text is None else f"reads as {_columns(text)}"
            self.problems.append(
                f"{title}: {state.rows} rows from {state.input!r} were in flight, "
                f"{_columns(columns[state.input])}, which it {is_} now; restore a savepoint "
                "or an aligned checkpoint, which have nothing in flight"
            )

    def _columns(self, title: str, name: str, old: Described, new: Described) -> None:
        """Say how key and state columns differ, and what of that cannot be."""
        if old["key"] != new["key"]:
            self.problems.append(
                f"{title}: the key was {_columns(old['key'])}, is {_columns(new['key'])}; give the "
                "stage a migration (migrate=...) that makes the new key, or the old key"
            )
        was, now = dict(map(tuple, old["state"])), dict(map(tuple, new["state"]))
        for column, type_ in now.items():
            if column not in was:
                self.differences.append(f"{title}: state column {column!r} ({type_}) is added")
                if column not in self.declared.defaults.get(name, ()):
                    self.problems.append(
                        f"{title}: state column {column!r} is new and has no default; declare one "
                        f"(defaults={{{column!r}: ...}}), or a migration"
                    )
            elif was[column] != type_ and widens(was[column], type_):
                self.differences.append(
                    f"{title}: state column {column!r} is widened from {was[column]} to {type_}"
                )
            elif was[column] != type_:
                self.problems.append(
                    f"{title}: state column {column!r} was {was[column]}, is {type_}, which does "
                    "not hold every value of it; declare a migration (migrate=...), or keep the "
                    "type"
                )
        for column in was:
            if column not in now:
                self.differences.append(f"{title}: state column {column!r} is dropped")
        if was == now and list(was) != list(now):
            self.differences.append(f"{title}: its state columns stand in another order")

    def _output(self, title: str, old: Described, new: Described) -> None:
        """Say how output columns differ; what that means for sinks is asked elsewhere."""
        changed = columns_changed("output column", old["output"], new["output"])
        self.differences.extend(f"{title}: {difference}" for difference in changed)

    def _expiry(self, title: str, old: Described, new: Described) -> None:
        """Say how the expiry of state differs; it counts from the restore on."""
        was, now = (each.get("ttl", "never") for each in (old, new))
        if was != now:
            self.differences.append(f"{title}: its state expired after {was}, now after {now}")

    def dropped(self, name: str) -> None:
        """Say so if ``name`` is a stage of the checkpoint that no stage of now takes."""
        reported = self.manifest.stage(name)
        if name in self.taken or reported is None:
            return
        keys = reported.report.keys_total
        self.differences.append(f"stage {name!r} is gone" + (f": {keys} keys" if keys else ""))
        rows = sum(state.rows for state in reported.in_flight)
        if rows and not self.declared.allow_dropped:
            self.problems.append(
                f"{rows} rows were in flight to stage {name!r}, which the job does not have; if "
                "they may go, set spark.absflow.restore.allow-dropped-state to true, else restore "
                "a savepoint or an aligned checkpoint"
            )
        if keys and not self.declared.allow_dropped:
            self.problems.append(
                f"the checkpoint has {keys} keys of stage {name!r}, which the job does not have; "
                "if it was renamed, declare that (renamed_from=...), and if its state may go, set "
                "spark.absflow.restore.allow-dropped-state to true"
            )

    def positions(self) -> dict[str, str]:
        """Where sources were: by their names, for another stage may read them now."""
        return {
            source: position
            for stage in self.manifest.stages
            for source, position in stage.report.positions.items()
        }

    def sources(self, now: Described, there: Mapping[str, str]) -> dict[str, str]:
        """What each source that goes on was called; says what else has become of sources."""
        read, wanted = _sources(self.before), _sources(now)
        taken: dict[str, str] = {}
        new = []
        for name, format_ in wanted.items():
            old = self._then(name, read)
            if old in taken:
                self.problems.append(f"sources {taken[old]!r} and {name!r} both go on from {old!r}")
            elif old in there:
                taken[old] = name
                self._goes_on(name, old, read.get(old, format_), format_)
            elif old == name:
                new.append(name)
            else:
                self.problems.append(
                    f"source {name!r} is declared as renamed from {old!r}, but the checkpoint has "
                    f"{sorted(there)}"
                )
        gone = [name for name in read if name not in wanted and name not in taken]
        self._new_and_gone(new, gone)
        return {name: old for old, name in taken.items()}

    def _goes_on(self, name: str, old: str, was: str, is_: str) -> None:
        """Say how a source that goes on differs, which was ``old`` and of another format."""
        if old != name:
            self.differences.append(f"source {old!r} is now {name!r}")
        if was != is_:
            self.problems.append(
                f"source {name!r} was {was}, is {is_}, and a position of the one says nothing "
                "about the other; give the new source another name, and let it begin by its own "
                "options where the old one ends"
            )

    def _new_and_gone(self, new: Sequence[str], gone: Sequence[str]) -> None:
        """Say which sources are new or no longer read; both at once may be a renaming."""
        self.differences += [
            *(f"source {name!r} is new: it begins where its options say" for name in new),
            *(f"source {name!r} is no longer read" for name in gone),
        ]
        if new and gone and not self.declared.allow_dropped:
            self.problems.append(
                f"source {gone[0]!r} is no longer read, and {new[0]!r} is new: if it is the same "
                "one, its rows would be read a second time; declare that (job.source(..., "
                f"renamed_from={gone[0]!r})), and if it is another, set "
                "spark.absflow.restore.allow-dropped-state to true"
            )

    def _then(self, name: str, there: Container[str]) -> str:
        """What a stage or source was called in the checkpoint, which has ``there``."""
        earlier = self.declared.renamed.get(name, name)
        # Also a checkpoint of after the renaming is restored with the code that declares it.
        return name if earlier not in there and name in there else earlier


def _columns(described: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in described) or "none"


def _sources(described: Described) -> dict[str, str]:
    """The format of each source."""
    return {
        name: format_
        for stage in described.values()
        for name, _, root, format_ in stage["inputs"]
        if root
    }


def table_of(
    stage: str, attempt: int, matched: StageFit | None, tables: Mapping[str, str], used: set[str]
) -> str:
    """The name of the state history that an attempt writes for a stage.

    State of another form goes to another table: a table has one schema for all its rows.

    Args:
        stage: the stage.
        attempt: the attempt.
        matched: how it gets its state; None if the job begins, or is a fork.
        tables: the names used by the attempt that wrote the checkpoint, by stage.
        used: every name that an attempt under this root has used.
    """
    if matched is not None and matched.source is not None and not matched.changed:
        return tables.get(matched.source, matched.source)
    return stage if stage not in used else f"{stage}.{attempt}"
