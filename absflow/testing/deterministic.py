"""Whether a process function gives the same for the same: over and over, and however Spark cuts."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from absflow.columnar.whereabouts import line_of
from absflow.errors import ProcessError
from absflow.testing.clocks_and_dice import asked_for
from absflow.testing.compare import frozen, plain_rows
from absflow.testing.feeds import (
    expanded,
    halved,
    in_one,
    is_sign,
    one_by_one,
    points,
    randomly_cut,
    reordered,
    sizes,
)
from absflow.testing.outcome import Outcome, first_difference
from absflow.testing.signs import END, Fed, Wait
from absflow.testing.stage import Stage

__all__ = ["RUNS", "NotDeterministicError", "check_deterministic"]

# What is tried, in this order.
RUNS = ("again", "elsewhere", "order", "cuts", "restore", "key groups")
_OUTPUTS = ("all", "newest", "none")
_KEY_GROUPS = (1, 7)
_RANDOM_CUTS = 3

_WHY = {
    "again": (
        "it depends on something beside its rows, its state and its context: a clock, random "
        "numbers, a global or an object that changes",
        "take context.time_ms for a clock and context.random for random numbers, and keep in the "
        "state what is to be remembered",
    ),
    "elsewhere": (
        "it depends on something that it has kept outside of its state, and that another process "
        "does not have: a global, an attribute, a list around it",
        "keep that in the state",
    ),
    "order": (
        "it depends on the order of rows of different keys, which no run of Spark repeats",
        "work key by key: context.key_of_row says which rows are of one key",
    ),
    "cuts": (
        "it depends on which rows come in one micro-batch, and Spark cuts them as it likes",
        "make what it emits and keeps a matter of the rows and the state alone. If it is to emit "
        "a row for each key and micro-batch, compare only the last: check_deterministic(..., "
        'output="newest"), or "none"',
    ),
    "restore": (
        "it has kept something outside of its state, or another process has not what it needs: "
        "after a restore it goes on in another way",
        "keep that in the state",
    ),
    "key groups": (
        "it depends on which keys come together in one call: those of a key group, of which a job "
        "may have any number",
        "keep nothing from key to key but in the state of each",
    ),
}


class NotDeterministicError(AssertionError):
    """A function gave something else for the same rows.

    Attributes:
        run: which of :data:`RUNS` has shown it; "code" if only its code has.
    """

    def __init__(self, run: str, said: str) -> None:
        """The run, and what is said of it."""
        super().__init__(said)
        self.run = run


@dataclass(frozen=True, slots=True)
class _Run:
    """One of the runs that are compared with the first.

    Attributes:
        kind: of :data:`RUNS`.
        what: it in words.
        go: runs it; the stage as it is then.
        exact: the rows must also come in the same order and micro-batches.
    """

    kind: str
    what: str
    go: Callable[[], Stage]
    exact: bool = False


def check_deterministic(
    stage: Stage,
    feed: Iterable[Fed],
    *,
    runs: Sequence[str] = RUNS,
    output: str = "all",
    seed: int = 0,
    allow: Sequence[str] = (),
) -> tuple[str, ...]:
    """Run a stage's functions in many ways, and see that all give what the first has given.

    The same once more ("again"); with copies, as in another process ("elsewhere"); with the rows
    of different keys in another order ("order"); in other micro-batches ("cuts"); with a restore
    at several points, into other numbers of key groups ("restore"); and with these from the start
    ("key groups"). Compared are rows, state, timers and late rows.

    Args:
        stage: how it is declared; it is left as it is, and need not have read anything.
        feed: rows and signs, as of :meth:`Stage.run`. Give each key several rows, and several keys.
        runs: which of :data:`RUNS`.
        output: of the rows in other micro-batches: "all" must be the same; "newest": for each key
            the last one; "none".
        seed: of the cuts and the order.
        allow: clocks and random numbers that the code may ask for, as "time.time": it does not use
            them for what it returns.

    Returns:
        What was run, in words.

    Raises:
        NotDeterministicError: the first difference, where it was seen and what to do.
        ValueError: there is no such run.
    """
    if output not in _OUTPUTS or not {*runs} <= {*RUNS}:
        raise ValueError(f"output is one of {_OUTPUTS}, runs are of {RUNS}")
    fed = halved(expanded(feed))
    begun = stage.fresh()
    begun.run(fed)
    first = Outcome.of(begun)
    done: list[str] = []
    for run in _all_runs(stage, fed, seed):
        if run.kind not in runs:
            continue
        try:
            made = Outcome.of(run.go())
        except ProcessError as error:
            raise NotDeterministicError(
                run.kind,
                _said(stage, run, sizes(fed), f"  it raises, and did not at first:\n  {error}"),
            ) from error
        shown = output if run.kind == "cuts" else "all"
        if found := first_difference(first, made, exact=run.exact, output=shown):
            raise NotDeterministicError(run.kind, _said(stage, run, sizes(fed), found))
        done.append(run.what)
    _check_code(stage, allow)
    return tuple(done)


def _all_runs(stage: Stage, fed: list[Fed], seed: int) -> Iterator[_Run]:
    def plain(feed: list[Fed], **changes: object) -> Callable[[], Stage]:
        def go() -> Stage:
            made = stage.fresh(**changes)  # type: ignore[arg-type]
            made.run(feed)
            return made

        return go

    dice = random.Random(seed)
    yield _Run("again", "the same once more", plain(fed), exact=True)
    yield _Run("elsewhere", "the same in another process", plain(fed, elsewhere=True), exact=True)
    if not _late_by_order(stage):  # there a row is late by the rows before it, whatever their keys
        for number in (1, 2):
            other = reordered(fed, partial(_key_of, stage), dice)
            yield _Run("order", f"rows of different keys in another order ({number})", plain(other))
    cuts = [in_one(fed), one_by_one(fed), *(randomly_cut(fed, dice) for _ in range(_RANDOM_CUTS))]
    for other in cuts:
        yield _Run("cuts", f"in micro-batches of {sizes(other)} rows", plain(other))
    for number, point in enumerate(points(fed)):
        groups = _KEY_GROUPS[number % len(_KEY_GROUPS)]
        what = f"a checkpoint behind {point.what}, and later a restore with {groups} key groups"
        yield _Run("restore", what, _restored(stage, point.before, point.behind, groups))
    for groups in _KEY_GROUPS:
        yield _Run("key groups", f"{groups} key groups", plain(fed, key_groups=groups))


def _restored(
    stage: Stage, before: list[Fed], behind: list[Fed], key_groups: int
) -> Callable[[], Stage]:
    """Run up to a point, take a checkpoint, go on, die, and go on from the checkpoint."""

    def go() -> Stage:
        made = stage.fresh()
        made.run(before)
        made.checkpoint()
        until = next((n for n, each in enumerate(behind) if _moves_on(each)), len(behind))
        made.run(behind[:until])
        made.restore(key_groups=key_groups)
        made.run(behind)
        return made

    return go


def _moves_on(fed: Fed) -> bool:
    """What cannot be undone: the clock goes on while a job is down, and the end is the end."""
    return is_sign(fed) and (fed is END or isinstance(fed, Wait))


def _said(stage: Stage, run: _Run, first: str, found: str) -> str:
    why, remedy = _WHY[run.kind]
    if "late rows" in found.split("\n", 1)[0]:
        why = (
            "no fault of the function: which rows come late depends on the micro-batches of a "
            "source that has no order"
        )
        remedy = "feed rows that are late in no case, or declare Input(..., ordered=True)"
    lines = [
        f"stage {stage.declaration.name!r} is not deterministic: {_functions(stage)}",
        f"  run: {run.what}; the first was in micro-batches of {first} rows",
        found,
        f"  why: {why}",
        f"  what to do: {remedy}",
    ]
    if asked := asked_for(stage.functions):
        lines.append(f"  it asks for {', '.join(asked)}")
    return "\n".join(lines)


def _check_code(stage: Stage, allow: Sequence[str]) -> None:
    """Refuse a clock or dice that no run has shown, for all were over within a second."""
    asked = [each for each in asked_for(stage.functions) if each.split(" ")[0] not in allow]
    if not asked:
        return
    names = [each.split(" ")[0] for each in asked]
    raise NotDeterministicError(
        "code",
        f"stage {stage.declaration.name!r} gave the same in all runs, but {_functions(stage)} asks "
        f"for {', '.join(asked)}, which may be other tomorrow or in another process\n"
        f"  what to do: {_WHY['again'][1]}. If nothing of it gets into what is returned: "
        f"check_deterministic(..., allow={names})",
    )


def _functions(stage: Stage) -> str:
    """Where its functions are, in words."""
    spec = stage.spec
    called = [*spec.process.values(), *filter(None, [spec.on_timer])]
    return ", ".join(dict.fromkeys(map(line_of, called)))


def _late_by_order(stage: Stage) -> bool:
    """Whether a row is late or not by the rows before it."""
    times = (given.event_time for given in stage.spec.inputs)
    return any(time is not None and time.ordered for time in times)


def _key_of(stage: Stage, fed: Fed) -> Hashable:
    """The key of a row that is fed."""
    inputs = stage.spec.inputs
    name, row = (inputs[0].name, fed) if len(inputs) == 1 else fed
    (values,) = plain_rows([row], stage.spec.input(name).schema.names)
    return frozen([values.get(column) for column in stage.spec.keys.names])
