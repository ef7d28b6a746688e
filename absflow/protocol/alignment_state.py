"""What a stage knows of its alignment between two events, and what follows from it.

Rules of this file: a state is a small frozen value that can be written and compared; the functions
here only read it. :mod:`absflow.protocol.alignment` is what changes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from absflow.errors import ProtocolViolation

__all__ = [
    "Alignment",
    "Barrier",
    "InputState",
    "InputStatus",
    "brought",
    "from_json",
    "gate",
    "in_flight",
    "input_of",
    "status",
    "to_json",
    "validate",
]


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier as the coordinator triggered it; the same value travels on every input.

    Attributes:
        checkpoint_id: the checkpoint it belongs to, > 0.
        base_id: snapshots hold the changes since this completed checkpoint; 0 asks for a full one.
        completed_id: tombstones of keys deleted up to this completed checkpoint may go.
        triggered_ms: the coordinator's wall clock at the trigger, ms since 1970 (UTC); for people,
            nothing is due by it.
    """

    checkpoint_id: int
    base_id: int = 0
    completed_id: int = 0
    triggered_ms: int = 0


class InputStatus(Enum):
    """What an input is waiting for; derived by :func:`status`, never stored."""

    OPEN = "open"
    BLOCKED = "blocked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class InputState:
    """One input.

    Attributes:
        last: the newest barrier that was settled on this input; never falls.
        waiting: barriers that have arrived and are not settled, rising, all above ``last``.
        ended: END was read; the input still counts while barriers wait.
    """

    last: int = 0
    waiting: tuple[Barrier, ...] = ()
    ended: bool = False

    @property
    def newest(self) -> int:
        """The newest barrier id this input has brought."""
        return self.waiting[-1].checkpoint_id if self.waiting else self.last

    @property
    def live(self) -> bool:
        """Whether alignment must wait for this input."""
        return bool(self.waiting) or not self.ended


@dataclass(frozen=True, slots=True)
class Alignment:
    """Alignment of one stage between two micro-batches.

    Attributes:
        inputs: state per input name.
        snapshot: the newest checkpoint that this stage snapshotted and forwarded.
        dead: ids above ``snapshot`` that will not be snapshotted, while an input may bring them.
        ended: EndStage was said.
    """

    inputs: Mapping[str, InputState]
    snapshot: int = 0
    dead: frozenset[int] = frozenset()
    ended: bool = False

    @property
    def blocking(self) -> frozenset[int]:
        """The checkpoints whose barriers block an input; one, but while they are being settled."""
        return frozenset(i.waiting[0].checkpoint_id for i in self.inputs.values() if i.waiting)

    @property
    def epoch(self) -> int:
        """The epoch of whatever the stage changes or emits now: last forwarded barrier + 1."""
        return self.snapshot + 1


def status(state: Alignment, name: str) -> InputStatus:
    """What ``name`` is waiting for."""
    given = input_of(state, name)
    if given.waiting:
        return InputStatus.BLOCKED
    return InputStatus.ENDED if given.ended else InputStatus.OPEN


def gate(state: Alignment, name: str, *, early: bool = False) -> int | None:
    """The highest epoch that may be processed on ``name`` now; None means that all may.

    A blocked input admits what is before its first undecided barrier. An open one admits the rows
    behind its newest barrier, but none from behind a later one, though its barrier has not come:
    a batch that snapshots n emits rows of n and n + 1 in one commit and barrier n in the next, and
    a reader may stop between the two, or inside the first. Barriers that the stage has overtaken
    count as brought.

    ``early`` is for at-least-once checkpoints: a blocked input then admits what an open one does,
    so a snapshot has rows that a restore reads again.
    """
    given = input_of(state, name)
    if given.waiting and not early:
        return given.waiting[0].checkpoint_id
    return None if given.ended else brought(state, name) + 1


def brought(state: Alignment, name: str) -> int:
    """The newest barrier that ``name`` has brought, or that the stage has overtaken."""
    return max(input_of(state, name).newest, state.snapshot)


def in_flight(state: Alignment, name: str, checkpoint_id: int) -> bool:
    """Whether rows before barrier ``checkpoint_id`` may still come on ``name``."""
    given = input_of(state, name)
    return not given.ended and given.newest < checkpoint_id


def validate(state: Alignment) -> None:
    """Check what must always hold between two events; for tests and the simulator.

    Raises:
        ProtocolViolation: naming the first invariant that does not hold.
    """
    for name, given in state.inputs.items():
        ids = [given.last, *(b.checkpoint_id for b in given.waiting)]
        _hold(ids == sorted(set(ids)), f"barriers of {name!r} rise", state)
        _hold(all(n > state.snapshot for n in ids[1:]), f"{name!r} waits for what comes", state)
    live = [i for i in state.inputs.values() if i.live]
    heads = state.blocking
    _hold(len(heads) <= 1, "all blocked inputs wait for one id", state)
    _hold(not heads or any(not i.waiting for i in live), "an aligned id is settled", state)
    _hold(not heads & state.dead, "a dead id blocks nothing", state)
    past = max((i.last for i in state.inputs.values()), default=0)
    _hold(all(past <= n for n in heads), "nobody waits for an id that another is past", state)
    _hold(all(n > state.snapshot for n in state.dead), "dead ids are above the snapshot", state)
    _hold(state.ended == (not live), "a stage ends with its last input", state)


def input_of(state: Alignment, name: str) -> InputState:
    """The state of an input."""
    if name not in state.inputs:
        raise ProtocolViolation(
            f"a control row names input {name!r}, but the stage has {sorted(state.inputs)}; "
            "the row was written by another graph"
        )
    return state.inputs[name]


def to_json(state: Alignment) -> str:
    """The state as one short JSON line, keys sorted, so that equal states give equal text."""
    return json.dumps(asdict(state), sort_keys=True, separators=(",", ":"), default=sorted)


def from_json(text: str) -> Alignment:
    """The inverse of :func:`to_json`."""

    def decoded(given: Mapping[str, Any]) -> InputState:
        waiting = tuple(Barrier(**fields) for fields in given["waiting"])
        return InputState(given["last"], waiting, given["ended"])

    value = json.loads(text)
    inputs = {name: decoded(given) for name, given in value["inputs"].items()}
    return Alignment(inputs, value["snapshot"], frozenset(value["dead"]), value["ended"])


def _hold(condition: bool, invariant: str, state: Alignment) -> None:
    if not condition:
        raise ProtocolViolation(f"invariant broken: {invariant}; state {state}")
