"""Retention: what a job keeps, what may go, and which lineages are made shorter.

Rules of this file: no Spark, no clock, no I/O. An inventory says what there is, and :func:`plan`
what to do about it, in order; one caller at a time carries a plan out.

Theory of operation. What stays has a reason, what has none goes: :func:`plan` and :func:`explain`
ask for the same reasons. They follow from facts alone, top down. Checkpoints are kept because they
are among the newest, because a person wants them, or because the job goes on from them. A set of
state history is kept because a kept checkpoint reads it, or one that is pending may; an epoch of a
channel, because a stage, a sink or a checkpoint still has to read it.

A DELETED fact is committed before anything of its checkpoint goes, so nobody finds a checkpoint
half gone; oldest first, so what is left is always the newest. Every action may be repeated, and
none takes away a reason that a later one needs: after a kill anywhere, the plan that is made from
the facts then leads to the same end. What comes too late (the set of an aborted checkpoint) has no
reason either and goes with the next plan.

Compaction writes what several sets of a lineage add up to as one set, then the fact COMPACTED
(:mod:`absflow.protocol.retention.compaction` says which). Lineages are read with that set in their
place (:func:`lineage_of`); a manifest is never changed. Those that have only some of them still
name them, and they stay. A retry writes the same rows under the same id, so a compacted set that is
there is whole and needs only its fact, and one that is not wanted any more is an orphan. (Its
writer must not rely on Delta's transaction ids, which only rise.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator

from absflow.errors import ProtocolViolation
from absflow.protocol.lineage import Compacted
from absflow.protocol.retention.compaction import choose, readable
from absflow.protocol.retention.inventory import (
    Action,
    Channel,
    Compact,
    Completed,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
    Inventory,
    Pending,
    RetentionPolicy,
    Sink,
)

__all__ = ["compact", "explain", "needed", "plan"]


def plan(
    there: Inventory, policy: RetentionPolicy, failed: Collection[Compacted] = ()
) -> tuple[Action, ...]:
    """What to do now, in this order; nothing if all that is there has a reason.

    The sets that a compaction replaces go in the same plan, so a compaction that fails changes it
    (:func:`compact`).

    Args:
        there: what there is.
        policy: what is to be kept.
        failed: compactions that were tried in vain, and are not to be tried now.

    Raises:
        ProtocolViolation: if the inventory lacks a fact that others refer to: rather than what
            that fact would keep, nothing goes.
    """
    kept = _kept(there, policy)
    compacted = choose(there, _only(there, kept), policy, failed)
    sets = _set_reasons(there, kept, compacted, failed)
    ids = sorted(c.checkpoint_id for c in there.completed)
    positions = there.positions - _position_reasons(there, kept).keys()
    return (
        *(DeleteManifest(n) for n in ids if n not in kept and n not in there.deleted),
        *(Compact(fact) for fact in compacted),
        *(
            DeleteSets(stage, surplus)
            for stage, there_are in sorted(there.sets.items())
            if (surplus := tuple(sorted(s for s in there_are if (stage, s) not in sets)))
        ),
        *_channel_actions(there, kept),
        *(DropWorkingDirectory(a) for a in sorted(there.working - _working_reasons(there).keys())),
        *(DropPositions(a) for a in sorted(positions)),
    )


def compact(
    there: Inventory, policy: RetentionPolicy, make: Callable[[Compact], bool]
) -> tuple[Action, ...]:
    """Make the compactions of a plan; the actions behind them, with what failed left as it is.

    Without a compaction that failed, those behind it would be others: they may be made of its set.

    Args:
        there: what there was before.
        policy: what is to be kept.
        make: makes a compaction; whether it is there with its fact.
    """
    made: dict[Compacted, bool] = {}
    while True:
        actions = plan(there, policy, [fact for fact, done in made.items() if not done])
        due = [a for a in actions if isinstance(a, Compact) and a.fact not in made]
        if not due:
            return tuple(a for a in actions if not isinstance(a, Compact | DeleteManifest))
        for action in due:
            made[action.fact] = make(action)
            if not made[action.fact]:
                break


def explain(there: Inventory, policy: RetentionPolicy) -> tuple[str, ...]:
    """For each thing that stays once :func:`plan` is carried out, one line that says why.

    Raises:
        ProtocolViolation: as :func:`plan`.
    """
    kept = _kept(there, policy)
    compacted = choose(there, _only(there, kept), policy)
    sets = _set_reasons(there, kept, compacted)
    lines = [f"checkpoint {n}: {', '.join(why)}" for n, why in sorted(kept.items())]
    lines += [f"set {n} of stage {stage}: {why}" for (stage, n), why in sorted(sets.items())]
    for channel in there.channels:
        needs = _needs(there, kept, channel)
        epochs = sorted(e for e in channel.epochs if e >= _first(needs))
        if epochs:
            which = f"epochs {epochs[0]} to {epochs[-1]} of channel {channel.stage}"
            why = ", ".join(dict.fromkeys(why for _, why in needs))
            lines.append(f"{which}, attempt {channel.attempt}: {why}")
    working = _working_reasons(there)
    lines += [
        f"working directory of attempt {attempt}: {working[attempt]}"
        for attempt in sorted(there.working & working.keys())
    ]
    positions = _position_reasons(there, kept)
    lines += [
        f"positions of attempt {attempt}: {positions[attempt]}"
        for attempt in sorted(there.positions & positions.keys())
    ]
    return tuple(lines)


_Kept = dict[int, list[str]]  # why a checkpoint stays, by id


def needed(there: Inventory) -> _Kept:
    """Why the job needs a checkpoint, whoever wants it gone; by id.

    Raises:
        ProtocolViolation: as :func:`plan`.
    """
    _check(there)
    reasons: _Kept = {n: [f"attempt {there.attempt} goes on from it"] for n in _bases(there)}
    for pending in there.pending:
        # Which of these it will be laid on is known when it completes.
        low, high = pending.base_id, pending.checkpoint_id
        for checkpoint_id in (n for n in _branch(there) if 0 < low <= n < high):
            reasons.setdefault(checkpoint_id, []).append(f"base of pending checkpoint {high}")
    return reasons


def _kept(there: Inventory, policy: RetentionPolicy) -> _Kept:
    """The checkpoints that stay; a deleted one too, while the job goes on from it."""
    if policy.retained < 1 or policy.tiers.max_sets < 1:
        raise ProtocolViolation(f"{policy} would keep nothing; both numbers start at 1")
    kept: _Kept = {}

    def keep(ids: Iterable[int], *why: str) -> None:
        for checkpoint_id in ids:
            kept.setdefault(checkpoint_id, []).extend(why)

    ids = sorted(c.checkpoint_id for c in there.completed)
    periodic = [n for n in ids if n not in there.savepoints and n not in there.deleted]
    keep(periodic[-policy.retained :], f"one of the newest {policy.retained}")
    keep((n for n in ids if n in there.savepoints - there.deleted), "a savepoint")
    for checkpoint_id, why in needed(there).items():
        keep([checkpoint_id], *why)
    return kept


def _check(there: Inventory) -> None:
    known = {0, *(c.checkpoint_id for c in there.completed)}
    named = {*there.attempts.values(), *(p.base_id for p in there.pending)}
    if not named <= known:
        raise ProtocolViolation(
            f"checkpoints {sorted(named - known)} were restored or are built upon, but their "
            "COMPLETED facts are not given; without them what they need would be deleted"
        )


def _branch(there: Inventory) -> list[int]:
    """Completed checkpoints that an increment of the current attempt may be laid on."""
    taken = (c for c in there.completed if c.checkpoint_id not in there.written)
    own = sorted(c.checkpoint_id for c in taken if c.attempt == there.attempt)
    return [there.restored, *own] if there.restored else own


def _bases(there: Inventory) -> set[int]:
    """What the next increment is laid on, whether or not savepoints count for that."""
    branch = _branch(there)
    periodic = [n for n in branch if n == there.restored or n not in there.savepoints]
    return {*branch[-1:], *periodic[-1:]}


def _only(there: Inventory, kept: _Kept) -> list[Completed]:
    return sorted(
        (c for c in there.completed if c.checkpoint_id in kept), key=lambda c: c.checkpoint_id
    )


def _set_reasons(
    there: Inventory,
    kept: _Kept,
    made: Iterable[Compacted],
    failed: Collection[Compacted] = (),
) -> dict[tuple[str, int], str]:
    """Why a set stays, for all that do once these compactions are made."""
    compacted = (*there.compacted, *made)
    namers: dict[tuple[str, int], list[int]] = {}
    for completed in _only(there, kept):
        for stage, manifest in completed.lineages.items():
            for set_id in readable(stage, manifest, compacted, failed):
                namers.setdefault((stage, set_id), []).append(completed.checkpoint_id)
    pending = {p.checkpoint_id for p in there.pending}
    reasons: dict[tuple[str, int], str] = {}
    for stage, ids in there.sets.items():
        for set_id in ids:
            if (stage, set_id) in namers:
                reasons[stage, set_id] = f"named by {_several(namers[stage, set_id])}"
            elif set_id in pending:
                reasons[stage, set_id] = f"checkpoint {set_id} is pending"
            elif set_id > there.ended_id:
                reasons[stage, set_id] = "no checkpoint as new as this has ended"
    return reasons


def _several(ids: list[int]) -> str:
    """A few ids in words.

    >>> _several([45]), _several([45, 46, 47, 48])
    ('checkpoint 45', 'checkpoints 45, 46 and 2 more')
    """
    if len(ids) == 1:
        return f"checkpoint {ids[0]}"
    more = f" and {len(ids) - 2} more" if len(ids) > 3 else ""
    shown = ", ".join(str(n) for n in (ids[:2] if more else ids))
    return f"checkpoints {shown}{more}"


def _channel_actions(there: Inventory, kept: _Kept) -> list[DeleteEpochs | DropChannels]:
    needs = {(c.stage, c.attempt): _needs(there, kept, c) for c in there.channels}
    # The current attempt is always among them, for its stages read on.
    alive = {attempt for (_, attempt), some in needs.items() if some}
    actions: list[DeleteEpochs | DropChannels] = []
    for channel in sorted(there.channels, key=lambda c: (c.stage, c.attempt)):
        first = _first(needs[channel.stage, channel.attempt])
        surplus = [e for e in channel.epochs if e < first]
        if surplus and channel.attempt in alive:
            actions.append(DeleteEpochs(channel.stage, channel.attempt, max(surplus)))
    over = {c.attempt for c in there.channels} - alive
    return [*actions, *(DropChannels(attempt) for attempt in sorted(over))]


_Needs = list[tuple[int, str]]


def _needs(there: Inventory, kept: _Kept, channel: Channel) -> _Needs:
    """From which epoch on the channel has still to be read, and why."""
    needs: _Needs = []
    if channel.attempt == there.attempt:
        committed = channel.committed
        needs.append((committed + 1, f"stages have committed up to epoch {committed}"))
    holders: list[Completed | Pending] = [*_only(there, kept), *there.pending]
    flying = [
        (rows.epoch, holder.checkpoint_id)
        for holder in holders
        for rows in holder.in_flight
        if (rows.stage, rows.attempt) == (channel.stage, channel.attempt)
    ]
    if flying:
        ids = sorted({n for _, n in flying})
        needs.append((min(flying)[0], f"in flight in {_several(ids)}"))
    for sink in there.sinks:
        first = _unpublished(there, kept, sink).get(channel.attempt)
        if sink.stage == channel.stage and first is not None:
            needs.append((first, f"sink {sink.name} has published up to epoch {first - 1}"))
    return needs


def _first(needs: _Needs) -> float:
    return min((epoch for epoch, _ in needs), default=math.inf)


def _unpublished(there: Inventory, kept: _Kept, sink: Sink) -> dict[int, int]:
    """The first epoch, per attempt, of rows that the sink has still to publish, or may have to.

    The job goes on from the current attempt, and a restore may go on from any checkpoint that is
    kept. What led to either lies in the channels of its attempt and, up to the checkpoint that
    this was restored from, of the one before, and so on.
    """
    published: dict[int, float] = {}
    for end in sink.published.items():
        for attempt, last in _descent(there, *end):
            published[attempt] = max(last, published.get(attempt, 0))
    first: dict[int, int] = {}
    ends = [(c.attempt, c.checkpoint_id) for c in _only(there, kept)]
    for ending in [*ends, (there.attempt, math.inf)]:
        for attempt, last in _descent(there, *ending):
            if published.get(attempt, 0) < last:
                first[attempt] = int(published.get(attempt, 0)) + 1
    return first


def _descent(there: Inventory, attempt: int, last: float) -> Iterator[tuple[int, float]]:
    """The attempt and those it descends from, each with the checkpoint at which it was left."""
    attempt_of = {c.checkpoint_id: c.attempt for c in there.completed}
    while attempt:
        yield attempt, last
        restored = there.attempts.get(attempt, 0)
        attempt, last = attempt_of.get(restored, 0), restored


def _working_reasons(there: Inventory) -> dict[int, str]:
    reasons: dict[int, str] = {}
    if not there.ready and there.restored:
        restored = there.restored
        (source,) = (c.attempt for c in there.completed if c.checkpoint_id == restored)
        reasons[source] = f"attempt {there.attempt} is being restored from checkpoint {restored}"
    return {**reasons, there.attempt: "the current attempt"}


def _position_reasons(there: Inventory, kept: _Kept) -> dict[int, str]:
    takers: dict[int, list[int]] = {}
    for completed in _only(there, kept):
        takers.setdefault(completed.attempt, []).append(completed.checkpoint_id)
    reasons = {attempt: f"named by {_several(ids)}" for attempt, ids in takers.items()}
    return {**reasons, there.attempt: "the current attempt"}
