"""Where a start begins: over every small history of attempts, and over graphs that have changed."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.facts.records import attempt_record, attempts_of, written_savepoints
from absflow.protocol.recovery.attempts import (
    Attempt,
    Begin,
    GoOn,
    Origin,
    Restore,
    RestoreTarget,
    decide,
    parse_target,
)
from absflow.protocol.recovery.branch import branch_ids, latest
from absflow.protocol.recovery.publication import unpublished
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint, cut_of

ROOT, OTHER = "file:/data/job", "file:/data/other"


# -- a job's life: starts, kills, checkpoints ---------------------------------------------------

# How a start ends: killed before its STARTED fact; killed, or failed with an error, before any sink
# was put back; killed, or failed, behind that; ready.
ENDS = ("unstarted", "killed", "failed", "killed late", "failed late", "ready")
# The facts that it has written by then.
WRITTEN = {
    "killed": ("STARTED",),
    "failed": ("STARTED", "FAILED"),
    "killed late": ("STARTED", "RESTORED"),
    "failed late": ("STARTED", "RESTORED", "FAILED"),
    "ready": ("STARTED", "RESTORED", "READY"),
}


@dataclass(frozen=True)
class Life:
    """The facts of a job, and beside them what must be true of it, kept without them.

    Attributes:
        rows: the ``attempts`` table: (attempt, kind, restored_from, incarnation).
        completed: the ``checkpoints`` table: (id, attempt, derived_from, incarnation).
        past: the checkpoints that lie behind the job as it runs now, newest first.
        past_of: those that lay behind it when each checkpoint completed, itself the first.
        runs: its attempt; 0 before the first.
        wanted: what will lie behind it once the attempt that was begun last is ready; None if it
            is, if there is none, or if it is over and the one that ran goes on.
        touched: a sink may have been put back since it ran.
        by_writer: the savepoint that was written since the job last did anything; 0 if none was.
        clock: counts the drivers.
    """

    rows: tuple[tuple[int, str, str | None, int], ...] = ()
    completed: tuple[tuple[int, int, int | None, int], ...] = ()
    past: tuple[Origin, ...] = ()
    past_of: tuple[tuple[Origin, ...], ...] = ()
    runs: int = 0
    wanted: tuple[Origin, ...] | None = None
    touched: bool = False
    by_writer: int = 0
    clock: int = 0

    @property
    def attempts(self):
        names = ("attempt", "kind", "restored_from", "incarnation")
        rows = (dict(zip(names, row, strict=True)) for row in self.rows)
        return attempts_of(attempt_record(row, ROOT) for row in rows)

    @property
    def written(self):
        names = ("checkpoint_id", "attempt", "derived_from", "incarnation")
        return written_savepoints(dict(zip(names, row, strict=True)) for row in self.completed)

    def complete(self):
        """A checkpoint of the attempt that runs completes."""
        origin = Origin(ROOT, len(self.completed) + 1)
        past = (origin, *self.past)
        return replace(
            self,
            completed=(*self.completed, (origin.checkpoint_id, self.runs, None, self.clock)),
            past=past,
            past_of=(*self.past_of, past),
            by_writer=0,
        )

    def write(self, base):
        """A savepoint is written from the checkpoint ``base``; 0: from nothing."""
        origin = Origin(ROOT, len(self.completed) + 1)
        attempt = self.completed[base - 1][1] if base else 0
        fact = (origin.checkpoint_id, attempt, base, self.clock + 1)
        past = (origin, *(self.past_of[base - 1] if base else ()))
        return replace(
            self,
            completed=(*self.completed, fact),
            past_of=(*self.past_of, past),
            by_writer=origin.checkpoint_id,
            clock=self.clock + 1,
        )

    def start(self, target, end):
        """A start that asks for ``target`` and comes to this end; None if it is refused."""
        decided = decide(self.attempts, target, self.written)
        clock = self.clock + 1
        if isinstance(decided, GoOn):
            assert target is None
            assert decided.attempt == self.runs
            assert self.wanted is None
            assert not self.touched  # its output is where it left it
            return self
        numbers = {a for a, *_ in self.rows}
        if isinstance(decided, Begin):
            assert not self.runs
            assert not self.completed
            restored_from, past = None, ()
            if end not in ("unstarted", "killed", "ready"):
                return None  # nothing is restored
        else:
            assert decided.attempt not in numbers
            origin = self.meant(decided.target)
            if origin is None:
                return None
            restored_from = str(origin)
            past = self.past_of[origin.checkpoint_id - 1] if origin.root == ROOT else (origin,)
            ready = {a for a, kind, *_ in self.rows if kind == "READY"}
            assert set(decided.discard) == numbers - ready
        if end == "unstarted":
            return self
        facts = WRITTEN[end]
        rows = (
            *self.rows,
            *(
                (decided.attempt, kind, restored_from if kind == "STARTED" else None, clock)
                for kind in facts
                if (kind != "STARTED" or decided.attempt not in numbers)
                and (kind != "RESTORED" or restored_from)
            ),
        )
        if end != "ready":
            touched = self.touched or "RESTORED" in facts
            over = "FAILED" in facts and self.runs and not touched
            return replace(
                self, rows=rows, wanted=None if over else past, touched=touched, clock=clock
            )
        return replace(
            self,
            rows=rows,
            past=past,
            runs=decided.attempt,
            wanted=None,
            touched=False,
            by_writer=0,
            clock=clock,
        )

    def meant(self, target):
        """What a target means, by what is kept beside the facts."""
        if target.root not in (None, ROOT):
            return Origin(target.root, target.checkpoint_id)
        if target.checkpoint_id is None:
            return self.newest
        known = target.checkpoint_id <= len(self.completed)
        return Origin(ROOT, target.checkpoint_id) if known else None

    @property
    def newest(self):
        """What ``latest`` is to mean."""
        if self.by_writer:
            return Origin(ROOT, self.by_writer)
        return self.past[0] if self.past else None


def targets(life):
    """Everything that can be asked of it."""
    ids = [RestoreTarget(None, n) for n, *_ in life.completed]
    return [None, RestoreTarget(), RestoreTarget(OTHER, 7), *ids]


def check_life(life):
    """What must hold after each step."""
    completed, written = {n: attempt for n, attempt, *_ in life.completed}, life.written
    ids, beyond = branch_ids(ROOT, life.attempts, completed, written)
    assert [Origin(ROOT, n) for n in ids] + [beyond] * (beyond is not None) == list(life.past)
    assert latest(ROOT, life.attempts, completed, written) == life.newest
    ready = {a.attempt for a in life.attempts if a.ready}
    assert {completed[n] for n in ids if cut_of(n, written)} <= ready
    for n, attempt in completed.items():
        # The sinks are put back to a checkpoint that the attempt of the savepoint has taken.
        cut = cut_of(n, written)
        assert cut not in written
        assert completed.get(cut, 0) == attempt
    # What is published is what was taken, each behind the one that it went on from.
    published = unpublished(ROOT, life.attempts, completed, written, 0)
    assert [p.checkpoint_id for p in published] == sorted(n for n in ids if n not in written)
    for p in published:
        behind = [*ids, *([beyond.checkpoint_id] if beyond else [])]
        behind = behind[behind.index(p.checkpoint_id) + 1 :]
        assert p.after == (behind[0] if behind else 0)
    # Whatever has happened: a start that asks for nothing, and ends well, has it running.
    begun = life.start(None, "ready")
    assert decide(begun.attempts, None) == GoOn(begun.runs)
    if life.wanted is not None:
        assert begun.past == life.wanted
    elif life.runs:
        assert begun.past == life.past
    else:  # it begins with what was written, if anything was
        assert begun.past == (life.past_of[-1] if life.past_of else ())


def steps(life, ends=ENDS):
    """Every life that this one can become by one thing that happens."""
    starts = (life.start(target, end) for target, end in product(targets(life), ends))
    lives = [after for after in starts if after is not None]
    running = bool(life.runs) and life.wanted is None
    if life.rows and not running:
        return lives
    # What came to an end can be written from; a root without anything, from nothing.
    bases = [n for n, *_ in life.completed] if life.rows or life.completed else [0]
    return [*lives, *map(life.write, bases), *([life.complete()] if running else [])]


@pytest.mark.parametrize(("length", "ends"), [(5, ENDS), (6, ("unstarted", "killed", "ready"))])
def test_every_short_life_comes_to_an_attempt_that_is_ready(length, ends):
    """All sequences of so many starts, kills, errors, checkpoints and written savepoints."""
    seen, front = {Life()}, [Life()]
    for _ in range(length):
        front = list(dict.fromkeys(after for life in front for after in steps(life, ends)))
        front = [life for life in front if life not in seen]
        seen.update(front)
    for life in seen:
        check_life(life)
    assert len(seen) > 5000
    assert any(life.runs >= 3 and len(life.completed) >= length - 3 for life in seen)
    assert any(len(life.past) == 2 and life.past[1].root == OTHER for life in seen)
    assert any(len(life.past) < len(life.completed) for life in seen)
    back = [life for life in seen if life.rows and life.rows[-1][1] == "FAILED"]
    if "failed" in ends:
        assert any(life.wanted is None for life in back)
        assert any(life.wanted and life.runs and not life.touched for life in seen)
        assert any(life.wanted and life.touched for life in back)


@settings(max_examples=60)
@given(st.data())
def test_long_lives_do_so_too(data):
    """Up to forty steps, with more checkpoints to choose from."""
    life = Life()
    for _ in range(data.draw(st.integers(10, 40))):
        life = data.draw(st.sampled_from(steps(life)))
        check_life(life)


def test_a_start_that_asks_for_a_checkpoint_restores_each_time():
    """A target that stays in the conf makes a new attempt at every start."""
    ready = [Attempt(1, ready=True), Attempt(2, Origin(ROOT, 4), ready=True)]
    assert decide(ready, RestoreTarget()) == Restore(3, RestoreTarget())
    assert decide([], RestoreTarget(None, 4)) == Restore(1, RestoreTarget(None, 4))


def test_a_restore_that_was_never_ready_is_made_again_and_named():
    """The next start takes the same checkpoint, of another root too, under the next number."""
    attempts = [Attempt(1, ready=True), Attempt(2, Origin(OTHER, 4)), Attempt(3, Origin(OTHER, 4))]
    assert decide(attempts, None) == Restore(4, RestoreTarget(OTHER, 4), (2, 3))
    assert decide(attempts, RestoreTarget(None, 9)) == Restore(4, RestoreTarget(None, 9), (2, 3))


def test_after_a_restore_that_failed_the_attempt_before_goes_on():
    """Unless a sink was put back since it ran, by whichever restore; a killed one is made again."""
    ran = Attempt(1, ready=True)
    begun = Attempt(2, Origin(ROOT, 4))
    failed = replace(begun, failed=True)
    again = Restore(3, RestoreTarget(ROOT, 4), (2,))
    assert decide([ran, begun], None) == again
    assert decide([ran, failed], None) == GoOn(1)
    assert decide([ran, failed], RestoreTarget(None, 4)) == Restore(3, RestoreTarget(None, 4), (2,))
    assert decide([ran, replace(failed, restored=True)], None) == again
    assert decide([failed], None) == again  # there is none before
    late = replace(failed, attempt=3)
    assert decide([ran, begun, late], None) == GoOn(1)
    touched = replace(begun, restored=True)
    assert decide([ran, touched, late], None) == Restore(4, RestoreTarget(ROOT, 4), (2, 3))
    # What was put back before it ran is of its past, and its own end says nothing.
    assert decide([touched, Attempt(3, ready=True, failed=True)], None) == GoOn(3)


def test_a_beginning_with_nothing_is_finished_under_its_own_number():
    """There is no state that a half of it could have got wrong."""
    assert decide([Attempt(1)], None) == Begin(1)
    assert decide([], None) == Begin(1)


def test_the_branch_ends_at_a_deleted_checkpoint():
    """What lay before it is not known any more; what came after it stays."""
    attempts = [Attempt(1, ready=True), Attempt(2, Origin(ROOT, 2), ready=True)]
    assert branch_ids(ROOT, attempts, {1: 1, 2: 1, 3: 1, 4: 2}, {}) == ([4, 2, 1], None)
    assert branch_ids(ROOT, attempts, {1: 1, 3: 1, 4: 2}, {}) == ([4], None)
    assert latest(ROOT, attempts, {1: 1, 3: 1}, {}) is None
    assert latest(ROOT, attempts, {1: 1, 2: 1, 3: 1, 4: 2}, {}, {4}) == Origin(ROOT, 2)


def test_a_written_savepoint_is_the_latest_until_the_job_does_something():
    """It counts until a newer checkpoint, or a restore from another one; then by its id only."""
    ready, again = Attempt(1, None, True, 1), Attempt(2, Origin(ROOT, 1), True, 4)
    written = {3: WrittenSavepoint(1, 3)}
    assert latest(ROOT, [ready], {1: 1, 2: 1, 3: 1}, written) == Origin(ROOT, 3)
    assert latest(ROOT, [ready], {1: 1, 2: 1, 3: 1, 4: 1}, written) == Origin(ROOT, 4)
    assert latest(ROOT, [ready, again], {1: 1, 2: 1, 3: 1}, written) == Origin(ROOT, 1)
    taken = Attempt(2, Origin(ROOT, 3), True, 4)
    assert latest(ROOT, [ready, taken], {1: 1, 2: 1, 3: 1}, written) == Origin(ROOT, 3)
    assert branch_ids(ROOT, [ready, taken], {1: 1, 2: 1, 3: 1, 4: 2}, written) == ([4, 3, 1], None)


def test_attempts_are_read_from_their_facts():
    """Facts in any order, drivers' and others' among them; a path may hold the sign."""
    rows = [
        {"attempt": 2, "kind": "STARTED", "restored_from": "s3a://b/a#b#12", "incarnation": 4},
        {"attempt": 1, "kind": "READY", "restored_from": None, "incarnation": 1},
        {"attempt": 1, "kind": "DRIVER", "restored_from": None, "incarnation": 3},
        {"attempt": 1, "kind": "STARTED", "restored_from": None, "incarnation": 1},
        {"attempt": 1, "kind": "FAILED", "restored_from": None, "incarnation": 1},
        {"attempt": 2, "kind": "RESTORED", "restored_from": None, "incarnation": 4},
        {"attempt": 0, "kind": "WRITTEN", "restored_from": None, "incarnation": 2},
        {"attempt": 2, "kind": "of a later version", "restored_from": None, "incarnation": 4},
    ]
    assert attempts_of(attempt_record(row, ROOT) for row in rows) == [
        Attempt(1, None, True, 1, failed=True),
        Attempt(2, Origin("s3a://b/a#b", 12), False, 4, restored=True),
    ]
    assert str(attempt_record(rows[0], ROOT).origin) == "s3a://b/a#b#12"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("latest", RestoreTarget()),
        (" 42 ", RestoreTarget(None, 42)),
        ("/data/job#42", RestoreTarget("/data/job", 42)),
        ("s3a://bucket/job/#latest", RestoreTarget("s3a://bucket/job")),
        ("a#b#7", RestoreTarget("a#b", 7)),
        ("relative#7", RestoreTarget("relative", 7)),
        ("/#7", RestoreTarget("/", 7)),
        ("9" * 18, RestoreTarget(None, int("9" * 18))),
    ],
)
def test_a_target_is_read(text, target):
    """All four forms; the path is kept but for its last slash."""
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "07",
        "newest",
        "LATEST",
        "#4",
        "#latest",
        "/data/job",
        "/data#",
        "4#",
        "1" * 19,
    ],
)
def test_what_is_no_target_is_refused(text):
    """With the forms that there are."""
    with pytest.raises(ValueError, match=r"latest, a checkpoint's id, PATH#ID or PATH#latest"):
        parse_target(text)


@given(st.builds(Origin, st.text(min_size=1), st.integers(1, 10**18 - 1)))
def test_an_origin_is_read_as_it_is_written(origin):
    """Whatever its path is; one of the same root goes where the root goes."""
    row = {"attempt": 1, "kind": "STARTED", "incarnation": 0}
    written = {**row, "restored_from": origin.written(ROOT)}
    assert attempts_of([attempt_record(written, ROOT)]) == [Attempt(1, origin)]
    written = {**row, "restored_from": origin.written(origin.root)}
    moved = Origin(OTHER, origin.checkpoint_id)
    assert attempts_of([attempt_record(written, OTHER)]) == [Attempt(1, moved)]
