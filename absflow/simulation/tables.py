"""What survives a crash: the job's tables and Spark's checkpoint directories, simulated.

Writes are atomic. As with Delta's transaction ids, a write that is there already is skipped; a
replay that brings other rows than it has written before is noted as a mismatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from absflow.protocol.alignment import AbortArrived, OvertakeArrived
from absflow.protocol.checkpoints import Fact, FactKind, FailureReason, Manifest
from absflow.protocol.coordinator.messages import RootInput, Triggered
from absflow.simulation.batch import Memory
from absflow.simulation.expiry import Clocks
from absflow.simulation.items import Item, Output, Sent, Value
from absflow.simulation.job import Graph, Row
from absflow.simulation.stage import fresh

__all__ = ["Channel", "History", "Plan", "Request", "Run", "StageFiles", "Tables"]


@dataclass(slots=True)
class Channel:
    """A stage's output: items in order, and which of the stage's writes they belong to."""

    items: list[Output] = field(default_factory=list)
    writes: dict[int, tuple[Output, ...]] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    def append(self, version: int, items: Iterable[Output]) -> bool:
        """Append unless write ``version`` is there; whether anything was appended."""
        given = tuple(items)
        if version in self.writes:
            if self.writes[version] != given:
                self.mismatches.append(f"write {version} of a channel was replayed with other rows")
            return False
        self.writes[version] = given
        self.items.extend(given)
        return True


@dataclass(slots=True)
class History:
    """A stage's state history: one set per snapshot that changed anything."""

    sets: dict[int, Mapping[str, Value | None]] = field(default_factory=dict)
    newest: int = 0

    def append(self, set_id: int, changes: Mapping[str, Value | None]) -> None:
        """Append a set; Delta skips it silently if a later one is there."""
        if set_id > self.newest:
            self.sets[set_id] = changes
            self.newest = set_id


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the inputs of one micro-batch begin and end; fixed before it runs, kept for replays.

    Attributes:
        spans: per input (and for the tables of barriers and overtakes), start and end.
        idle: per root input whose idle partitions change, those that are idle from then on.
        wall_ms: what the wall clock showed.
    """

    spans: Mapping[str, tuple[int, int]]
    idle: Mapping[str, frozenset[str]] = field(default_factory=dict)
    wall_ms: int = 0


@dataclass(slots=True)
class StageFiles:
    """Spark's checkpoint directory of one stage: offsets, commits, state per batch.

    ``seen`` is for the checkers: how many rows of each way the batches up to one have processed.
    """

    memories: dict[int, Memory]
    offsets: dict[int, Plan] = field(default_factory=dict)
    committed: int = -1
    seen: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def commit(self, batch_id: int, memory: Memory) -> None:
        """The batch is done; only the newest two states are kept."""
        self.memories[batch_id] = memory
        self.seen[batch_id] = memory.seen
        self.memories.pop(batch_id - 2, None)
        self.committed = batch_id

    @property
    def memory(self) -> Memory:
        """The state after the newest committed batch."""
        return self.memories[self.committed]

    def end_of(self, name: str) -> int:
        """How far the committed batches have read an input; -1 is what the attempt began with."""
        plan = self.offsets.get(self.committed)
        return plan.spans.get(name, (0, 0))[1] if plan else 0


@dataclass(frozen=True, slots=True)
class Request:
    """A row of ``requests``: a savepoint that a person wants, maybe to stop the job."""

    request: str
    stop: bool


@dataclass(slots=True)
class Run:
    """One life of the driver.

    Attributes:
        began: how many facts there were.
        stopped: how many there were when it stopped by itself; None if it was killed.
        why: what stopped it but for the savepoint of a stop.
    """

    began: int
    stopped: int | None = None
    why: str = ""


@dataclass(slots=True, repr=False)
class Tables:
    """Everything under the storage root.

    Attributes:
        rows: what each source has to give, in order.
        arrivals: when each row of a source becomes readable, ms.
        barriers: the ``barriers`` table: triggers and END rows.
        overtakes: the ABORT and OVERTAKE rows, which every stage reads by itself.
        facts: the ``checkpoints`` table.
        manifests: the manifests in it.
        requests: the ``requests`` table.
        refusals: requests that were refused.
        runs: the lives of the driver.
        channels: per stage.
        histories: per stage.
        stages: per stage.
        missed: rows that were on time at their source, and came behind a stage's watermark.
        idles: a partition has been idle, so watermarks may be ahead of the positions.
        began: what each stage's watermark was when the attempt was restored.
        clocks: what its stages go by.
    """

    rows: Mapping[str, tuple[Row, ...]]
    arrivals: Mapping[str, tuple[int, ...]]
    barriers: list[Triggered | RootInput] = field(default_factory=list)
    overtakes: list[AbortArrived | OvertakeArrived] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    channels: dict[str, Channel] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    stages: dict[str, StageFiles] = field(default_factory=dict)
    missed: list[Row] = field(default_factory=list)
    idles: bool = False
    began: dict[str, int | None] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=lambda: Clocks({}))

    @classmethod
    def of(
        cls,
        graph: Graph,
        rows: Mapping[str, tuple[Row, ...]],
        arrivals: Mapping[str, tuple[int, ...]],
    ) -> Tables:
        """Empty tables for ``graph``."""
        tables = cls(rows, arrivals)
        for stage in graph.stages:
            tables.channels[stage.name] = Channel()
            tables.histories[stage.name] = History()
            tables.stages[stage.name] = StageFiles({-1: fresh(stage)})
        return tables

    def write_completion(self, manifest: Manifest) -> None:
        """The one commit that makes a checkpoint exist."""
        fact = Fact(manifest.checkpoint_id, FactKind.COMPLETED, None, manifest.request)
        self.facts.append(fact)
        self.manifests[manifest.checkpoint_id] = manifest

    def write_abort_fact(
        self, checkpoint_id: int, reason: FailureReason, request: str = ""
    ) -> None:
        """State that a checkpoint has been given up."""
        self.facts.append(Fact(checkpoint_id, FactKind.ABORTED, reason, request))

    @property
    def stops(self) -> set[str]:
        """The requests that are to stop the job."""
        return {request.request for request in self.requests if request.stop}

    def unanswered(self) -> list[Request]:
        """The requests that neither a fact nor a refusal answers."""
        answered = {*self.refusals, *(fact.request for fact in self.facts)}
        return [request for request in self.requests if request.request not in answered]

    def in_flight(self, manifest: Manifest) -> dict[tuple[str, str], list[Row]]:
        """Per stage and channel that a checkpoint has overtaken: the rows of its channel state."""
        return {
            (part.report.stage, name): [
                item.row
                for item in self.log_of(name)[int(position) :]
                if isinstance(item, Sent) and item.epoch <= manifest.checkpoint_id
            ]
            for part in manifest.stages
            for name, position in part.report.in_flight.items()
        }

    def log_of(self, name: str) -> list[Output]:
        """The items of the channel that ``name`` writes."""
        return self.channels[name].items

    def slice_of(self, name: str, span: tuple[int, int]) -> tuple[Item, ...]:
        """Items of a source or channel."""
        log = self.rows[name] if name in self.rows else self.log_of(name)
        return tuple(log[span[0] : span[1]])
