"""The jobs of the kill loop: how each is started, fed and judged."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import evidence
import generator
import pandas as pd
from anomalies import Anomaly, Commit, Kind, Life, Named, check_facts, check_rows
from destinations import Outside
from lives import CHECKOUT, HERE, Command
from modes import CHECKPOINT_MODES
from places import Place
from points import MAX_SETS, RETAINED

sys.path.append(str(CHECKOUT / "jobs"))
sys.path.append(str(HERE.parent / "spark"))
import flights_data
import flights_oracle
import windows

__all__ = ["Clock", "Findings", "Flights", "Generator", "Victim"]

_CONF = {
    "spark.absflow.checkpoint.interval": "1s",
    "spark.absflow.checkpoint.retained": str(RETAINED),
    "spark.absflow.lineage.max-sets": str(MAX_SETS),
}


# Of the events of the job with event time.
_CLOCK_FILES = 40


@dataclass(frozen=True, slots=True)
class Findings:
    """What a job that was killed many times has left.

    Attributes:
        rows: in the sink.
        completed: checkpoints.
        aborted: checkpoints.
        in_flight: rows, in the checkpoints that were compared.
        anomalies: what is wrong.
    """

    rows: int
    completed: int
    aborted: int
    in_flight: int
    anomalies: Sequence[Anomaly]


def _conf(place: Place, mode: str) -> dict[str, str]:
    more = {f"spark.absflow.{name}": value for name, value in CHECKPOINT_MODES[mode].items()}
    own = {
        "spark.absflow.storage.path": f"{place.uri}/job",
        "spark.absflow.key-groups": "4",
        "spark.absflow.state.max-inline": "0B",  # so that all state lies in files
    }
    return {**_CONF, **own, **more, **place.conf()}


class Victim(Protocol):
    """A job under a folder of its own.

    Attributes:
        command: what starts it, and starts it again.
        place: where its storage root and sinks lie.
        storage: its storage root, or what was fetched of it.
        endless: it takes what it is fed until it is asked to finish; else it ends by itself.
    """

    command: Command
    place: Place
    storage: Path
    endless: bool

    def feed(self) -> None:
        """Called again and again while it lives."""

    def finish(self) -> None:
        """As :meth:`feed`, in its last life: have it end once it has done everything."""

    def judge(self, lives: Sequence[Life]) -> Findings:
        """Compare what it has left with what plain pandas makes of its input."""


class Generator:
    """The job of :mod:`generator`; its sources stay some files ahead of it."""

    endless = True
    named = Named(id=["id", "via"], lane=["via", "k"], order="seq")
    # Per source: rows of a file, and how many files it is to be ahead.
    _feeds: Mapping[str, tuple[int, int]] = {"a": (60, 4), "b": (20, 3)}
    _readers: Mapping[str, tuple[str, int]] = {"a": ("a", 0), "b": ("right", 1)}

    def __init__(
        self,
        place: Place,
        seed: int,
        sink_mode: str = "immediate",
        mode: str = "aligned",
        outside: Outside | None = None,
    ) -> None:
        root = place.root
        self.place, self._root, self.storage = place, root, root / "job"
        self._outside = outside
        conf = _conf(place, mode)
        arguments = [str(root), place.uri, sink_mode]
        if outside is not None:
            self._name = f"t{uuid.uuid4().hex[:12]}"
            outside.make(self._name)
            arguments.append(outside.argument(self._name))
        self._keys = {"left": "k", "right": "k", "join": "g"}
        if "edges" in CHECKPOINT_MODES[mode]:
            arguments.append("tail")
            self._keys["tail"] = "via"
        jars = (place.class_path, outside.class_path if outside else "")
        class_path = os.pathsep.join(filter(None, jars))
        self.command = Command(HERE / "generator.py", conf, arguments, class_path)
        self._writers: dict[str, Iterator[Path]] = {
            name: generator.source_files(root / name, seed + number, rows, first_id=number)
            for number, (name, (rows, _)) in enumerate(self._feeds.items())
        }
        self._written = dict.fromkeys(self._feeds, 0)
        self._seen_facts = -1
        self.feed()

    def feed(self) -> None:
        for name, (_, ahead) in self._feeds.items():
            while self._written[name] < self._taken(name) + ahead:
                next(self._writers[name])
                self._written[name] += 1

    def _taken(self, name: str) -> int:
        """How many files of a source Spark has noted, in any attempt."""
        stage, place = self._readers[name]
        logs = (
            log
            for attempt in self.place.names("job/work")
            for log in self.place.names(f"job/work/{attempt}/{stage}/spark/sources/{place}")
        )
        return max((int(Path(log).stem) for log in logs if log[0].isdigit()), default=-1) + 1

    def finish(self) -> None:
        number = len(self.place.names("job/checkpoints/_delta_log"))
        if number != self._seen_facts:
            self._seen_facts = number
            self.place.fetch("job/checkpoints")
            if any(map(self._holds_all, evidence.completed(self.storage))):
                (self._root / "finish").touch()

    def _holds_all(self, fact: Mapping[str, Any]) -> bool:
        """Whether every row has been processed; one in flight has been read, and is in no sink."""
        flying = any(stage["in_flight"] for stage in fact["stages"])
        return self._positions(fact) == self._written and not flying

    def _positions(self, fact: Mapping[str, Any]) -> dict[str, int]:
        return {
            name: evidence.files_read(fact, stage, name)
            for name, (stage, _) in self._readers.items()
        }

    def judge(self, lives: Sequence[Life]) -> Findings:
        commits = evidence.commits(self._root / "sink")
        due_rows = generator.expected_sink(self._root)
        found = check_rows(due_rows, commits, self.named, lives)
        if self._outside is not None:
            there = [Commit(0, 0, {"published": "outside"}, self._outside.rows(self._name))]
            found += check_rows(due_rows, there, self.named, lives)
        history = {stage: evidence.state_history(self.storage, stage) for stage in self._keys}
        late = 0
        for fact in evidence.completed(self.storage):
            positions = self._positions(fact)
            flying = {s: evidence.in_flight(self.storage, fact, s, "id") for s in history}
            late += sum(len(rows) for each in flying.values() for rows in each.values())
            due = generator.expected_sink(self._root, **positions, in_flight=flying)
            found += _at_cut(fact, check_rows(due, _up_to(fact, commits), self.named, lives))
            due_states = generator.expected_states(self._root, **positions, in_flight=flying)
            for stage, key in self._keys.items():
                state = evidence.state_at(history[stage], fact, stage, key)
                said = flights_oracle.differences(state, due_states[stage], key)
                found += _wrong_state(fact, stage, said)
        if self._outside is not None and self._outside.state is not None:
            said = flights_oracle.differences(
                self._outside.state(self._name), due_states["join"], "g"
            )
            found += _wrong_state(fact, "join outside", said)
        return _findings(self.storage, commits, found, late)


class Flights:
    """The flights job as it is, over the first weeks of the year, with a file for each day."""

    endless = False
    named = Named(id=["leg_id"], lane=["origin", "tailnum"], order="leg_id")
    _of_hours = Named(id=["origin", "hour"], lane=["origin", "hour"], order="departures")

    def __init__(self, place: Place, sink_mode: str = "immediate", mode: str = "aligned") -> None:
        root = place.root
        self.place, self._root, self.storage, self._data = place, root, root / "job", root / "data"
        conf = {
            **_conf(place, mode),
            "spark.flights.data": str(self._data),
            "spark.flights.sink": f"{place.uri}/sink",
            "spark.flights.hourly": f"{place.uri}/hourly",
            "spark.flights.sink.mode": sink_mode,
        }
        self.command = Command(CHECKOUT / "jobs" / "flights.py", conf, (), place.class_path)
        flights_data.prepare(self._data, days=1, until=dt.date(2013, 2, 15))

    def feed(self) -> None:
        """Its files are all there."""

    def finish(self) -> None:
        """It ends by itself."""

    def judge(self, lives: Sequence[Life]) -> Findings:
        commits = evidence.commits(self._root / "sink")
        due = flights_oracle.expected(self._data)
        found = check_rows(due.resolved, commits, self.named, lives)
        hours = evidence.commits(self._root / "hourly")
        due_hours = flights_oracle.expected_hours(self._data)
        found += check_rows(due_hours.hours, hours, self._of_hours, lives)
        rows = evidence.late_rows(self.storage, "departures")[due_hours.late.columns]
        wrong = flights_oracle.differences(rows, due_hours.late, ["leg_id"])
        found += [Anomaly(Kind.CHANGED, f"late departures: {text}") for text in wrong]
        history = {
            stage: evidence.state_history(self.storage, stage)
            for stage in ("aircraft", "airports", "hourly")
        }
        late = 0
        for fact in evidence.completed(self.storage):
            flying = evidence.in_flight(self.storage, fact, "airports", "leg_id")
            late += sum(map(len, flying.values()))
            due = flights_oracle.expected(
                self._data,
                evidence.files_read(fact, "aircraft", "legs"),
                evidence.files_read(fact, "airports", "weather"),
                flying.get("aircraft", ()),
            )
            at_cut = check_rows(due.resolved, _up_to(fact, commits), self.named, lives)
            found += _at_cut(fact, at_cut)
            aircraft = evidence.state_at(history["aircraft"], fact, "aircraft", "tailnum")
            airports = evidence.state_at(history["airports"], fact, "airports", "origin")
            for stage, state, due_rows, key in (
                ("aircraft", aircraft, due.aircraft, ["tailnum"]),
                ("airports", _inlined(airports, "totals"), due.totals, ["origin", "condition"]),
                ("airports", _inlined(airports, "waiting"), due.waiting, ["leg_id"]),
            ):
                said = flights_oracle.differences(state[due_rows.columns], due_rows, key)
                found += _wrong_state(fact, stage, said)
            found += self._hours_at(fact, history["hourly"])
        return _findings(self.storage, [*commits, *hours], found, late)

    def _hours_at(self, fact: Mapping[str, Any], history: pd.DataFrame) -> Iterator[Anomaly]:
        """What is wrong with stage ``hourly`` at a checkpoint."""
        files = evidence.files_read(fact, "hourly", "departures")
        due, said = (
            flights_oracle.expected_hours(self._data, files),
            evidence.watermark(fact, "hourly"),
        )
        if said != due.watermark:
            text = f"the watermark is {said}, but its positions say {due.watermark}"
            yield from _wrong_state(fact, "hourly", [text])
        if files < len(flights_data.files(self._data / "legs")):  # else all timers have fired
            state = evidence.state_at(history, fact, "hourly", ["origin", "hour"])
            wrong = flights_oracle.differences(
                state[due.open.columns], due.open, ["origin", "hour"]
            )
            yield from _wrong_state(fact, "hourly", wrong)


class Clock:
    """The job of :mod:`clock`, over files that are all there."""

    endless = False
    _named: Mapping[str, Named] = {
        "windows": Named(id=["k", "w"], lane=["k", "w"], order="n"),
        "days": Named(id=["k", "d"], lane=["k", "d"], order="n"),
    }

    def __init__(
        self, place: Place, seed: int, sink_mode: str = "immediate", mode: str = "aligned"
    ) -> None:
        root = place.root
        self.place, self._root, self.storage = place, root, root / "job"
        self._overtakes = mode != "aligned"
        conf = {**_conf(place, mode), "spark.sql.session.timeZone": "UTC"}
        arguments = [str(root), place.uri, sink_mode]
        self.command = Command(HERE / "clock.py", conf, arguments, place.class_path)
        self._events = windows.write_events(root / "events", _CLOCK_FILES, 200, seed)

    def feed(self) -> None:
        """Its files are all there."""

    def finish(self) -> None:
        """It ends by itself."""

    def judge(self, lives: Sequence[Life]) -> Findings:
        golden = windows.expected(self._events, windows.DELAY_S)
        found: list[Anomaly] = []
        commits: list[Commit] = []
        for (sink, named), due_rows in zip(self._named.items(), golden, strict=True):
            mine = evidence.commits(self._root / sink)
            found += check_rows(due_rows, mine, named, lives)
            commits += mine
        history, memory = (
            evidence.state_history(self.storage, name) for name in ("windows", "memory")
        )
        for fact in evidence.completed(self.storage):
            files = evidence.files_read(fact, "windows", "events")
            due, said = windows.reached(self._events, files), evidence.watermark(fact, "windows")
            if said != due:
                text = f"the watermark is {said}, but its positions say {due}"
                found += _wrong_state(fact, "windows", [text])
            if files < _CLOCK_FILES:  # when the sources have ended, all timers have fired
                state = evidence.state_at(history, fact, "windows", ["k", "w"])
                open_now = windows.open_windows(self._events, files)
                wrong = flights_oracle.differences(state[open_now.columns], open_now, ["k", "w"])
                found += _wrong_state(fact, "windows", wrong)
                found += self._judge_memory(memory, fact, files)
        return _findings(self.storage, commits, found, 0)

    def _judge_memory(
        self, memory: pd.DataFrame, fact: Mapping[str, Any], files: int
    ) -> Iterator[Anomaly]:
        """The stage that forgets, at a checkpoint with no rows in flight to it."""
        if evidence.stage_of(fact, "memory")["in_flight"]:
            return
        sent, mine = (evidence.watermark(fact, name) for name in ("windows", "memory"))
        # What a checkpoint overtakes may be a barrier, which brings a watermark and no row.
        behind = mine is None or (sent is not None and mine < sent)
        if mine != sent and not (self._overtakes and behind):
            text = f"the watermark is {mine}, but the stage before it has sent {sent}"
            yield from _wrong_state(fact, "memory", [text])
        state = evidence.state_at(memory, fact, "memory", "w")
        kept = evidence.alive(state, fact, "memory")
        nothing_ends = pd.Timestamp(0, tz="UTC")
        due_rows = windows.remembered(self._events, files, nothing_ends if mine is None else mine)
        wrong = flights_oracle.differences(kept[due_rows.columns], due_rows, ["w"])
        yield from _wrong_state(fact, "memory", wrong)


def _inlined(state: pd.DataFrame, column: str) -> pd.DataFrame:
    """The elements of a column of lists of structs, with the origin of each."""
    records = [
        {"origin": origin, **element}
        for origin, elements in state[["origin", column]].itertuples(index=False, name=None)
        for element in (elements if elements is not None else ())
    ]
    names = {
        "totals": ["origin", "condition", "legs", "cancelled", "delay", "inherited"],
        "waiting": ["origin", "leg_id", "tailnum", "hour", "dep_delay", "inherited"],
    }
    return pd.DataFrame.from_records(records, columns=names[column])


def _up_to(fact: Mapping[str, Any], commits: Iterable[Commit]) -> list[Commit]:
    """The commits to the sink that lie before a checkpoint's cut."""
    brings = ((c, c.note.get("published", c.note.get("epoch", 0))) for c in commits)
    return [commit for commit, upto in brings if upto <= fact["checkpoint_id"]]


def _at_cut(fact: Mapping[str, Any], found: Iterable[Anomaly]) -> Iterator[Anomaly]:
    for anomaly in found:
        yield Anomaly(
            anomaly.kind, f"in the sink at checkpoint {fact['checkpoint_id']}: {anomaly.text}"
        )


def _wrong_state(fact: Mapping[str, Any], stage: str, said: Iterable[str]) -> Iterator[Anomaly]:
    for text in said:
        what = f"stage {stage} at checkpoint {fact['checkpoint_id']}"
        yield Anomaly(Kind.STATE, f"{what}: {text}")


def _findings(
    storage: Path, commits: Sequence[Commit], found: Sequence[Anomaly], in_flight: int
) -> Findings:
    facts = evidence.facts(storage)
    return Findings(
        rows=sum(len(commit.rows) for commit in commits),
        completed=sum(fact["kind"] == "COMPLETED" for fact in facts),
        aborted=sum(fact["kind"] == "ABORTED" for fact in facts),
        in_flight=in_flight,
        anomalies=[*itertools.chain(found, check_facts(evidence.triggered(storage), facts))],
    )
