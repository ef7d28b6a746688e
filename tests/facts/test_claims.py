"""Drivers that start together on a store without a lock: one goes on, whatever comes first.

The claim is the real one; the store is a model of a Delta log with put-if-absent. Each driver runs
in a thread, and one thread runs at a time: a schedule says who makes the next read or write.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from model_log import ModelLog
from py4j.protocol import Py4JError

from absflow.errors import FencedError, StorageError
from absflow.facts import driver_table, fence
from absflow.facts.claim import Claim, begin_on
from absflow.facts.fence import LOOK_STANDS_MS
from absflow.facts.lock import RootLock
from absflow.facts.records import AttemptRecord
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.restarts import RestartPolicy

PATIENCE_S = 60
NEVER = RestartPolicy(attempts=0, initial_ms=0, max_ms=0, multiplier=1, reset_after_ms=1)


@dataclass(frozen=True)
class Decision:
    """What a start rests on."""

    version: int
    facts: tuple[str, ...]
    incarnations: tuple[int, ...]


class Store(ModelLog):
    """The log of ``attempts``; ``step`` is called before each read or write of it."""

    def decide(self) -> Decision:
        """Look at the version, then at the rows."""
        self.step()
        version = len(self.log) - 1
        self.step()
        facts = [f"{c['note']['driver']} {kind}" for c in self.log for kind in c["kinds"]]
        return Decision(version, tuple(facts), tuple(c["txn"] >> 32 for c in self.log))


class Driver:
    """One driver's start, up to its READY fact."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.said: list[str] = []
        self.decisions: list[Decision] = []
        self.fenced = False
        self.claim: Claim | None = None
        self.error: BaseException | None = None

    def decide(self) -> Decision:
        self.decisions.append(self.store.decide())
        return self.decisions[-1]

    def run(self) -> None:
        try:
            self.start()
        except FencedError:
            self.fenced = True
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        decision = self.decide()
        files = SimpleNamespace(
            read=self.store.read, names=lambda path: [], is_bucket=lambda path: True
        )
        root: Any = SimpleNamespace(
            files=files, layout=SimpleNamespace(attempts="attempts"), spark=None
        )
        rows = [AttemptRecord(1, n, AttemptFact.DRIVER) for n in decision.incarnations]
        self.claim = claim = Claim(root, "job", "", RootLock("", None), rows, NEVER)
        begin_on(claim, decision, lambda _: self.record(AttemptFact.STARTED), self.decide)
        self.record(AttemptFact.READY)

    def record(self, kind: AttemptFact) -> None:
        assert self.claim is not None
        self.claim.record(1, kind)
        self.said.append(kind.value)

    @property
    def name(self) -> str | None:
        return self.claim and self.claim.driver


class Schedule:
    """Runs functions in threads, one at a time; ``choices`` says which goes on, then the first."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = choices
        self.open: list[tuple[int, list[int]]] = []
        self._turns: dict[int, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._me = threading.local()

    def step(self) -> None:
        """Wait for the next turn; called by the threads."""
        self._back.release()
        assert self._turns[self._me.number].acquire(timeout=PATIENCE_S)

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run them all to their end."""
        alive = dict(enumerate(functions))

        def whole(number: int) -> None:
            self._me.number = number
            assert self._turns[number].acquire(timeout=PATIENCE_S)
            functions[number]()
            del alive[number]
            self._back.release()

        self._turns = {number: threading.Semaphore(0) for number in alive}
        threads = [threading.Thread(target=whole, args=(number,)) for number in alive]
        for thread in threads:
            thread.start()
        while alive:
            able = sorted(alive)
            at = len(self.open)
            chosen = self.choices[at] if at < len(self.choices) else able[0]
            chosen = chosen if chosen in able else able[chosen % len(able)]
            self.open.append((chosen, [n for n in able if n != chosen]))
            self._turns[chosen].release()
            assert self._back.acquire(timeout=PATIENCE_S)
        for thread in threads:
            thread.join()


@pytest.fixture(params=[0, LOOK_STANDS_MS], ids=["time stands still", "time goes on"])
def passing_ms(request: pytest.FixtureRequest) -> int:
    """What passes between two looks at the clock: they are all old, or none is."""
    return int(request.param)


@pytest.fixture
def started(
    passing_ms: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Schedule, list[Driver]]]:
    """Starts drivers by a schedule, and checks what must hold for any."""
    monkeypatch.setattr(driver_table.tables, "create", lambda *args, **named: None)
    clock = itertools.count(1, passing_ms)
    monkeypatch.setattr(fence.clock, "steady_ms", lambda: next(clock))

    def start(
        count: int, choices: Sequence[int], lost_answers: int = 0
    ) -> tuple[Schedule, list[Driver]]:
        schedule = Schedule(choices)
        store = Store(schedule.step)
        store.lost_answers = lost_answers
        monkeypatch.setattr(driver_table.transactions, "append_once", store.append_once)
        drivers = [Driver(store) for _ in range(count)]
        schedule.run([driver.run for driver in drivers])
        with monkeypatch.context() as later:
            later.setattr(fence.clock, "steady_ms", lambda: next(clock) + LOOK_STANDS_MS)
            check(store, drivers)
        return schedule, drivers

    return start


def check(store: Store, drivers: Sequence[Driver]) -> None:
    """One goes on, by all that the others have left; and nobody believes what is not there."""
    assert [driver.error for driver in drivers] == [None] * len(drivers)
    for driver in drivers:
        mine = [
            kind for c in store.log if c["note"]["driver"] == driver.name for kind in c["kinds"]
        ]
        assert driver.said == mine
    going_on = [driver for driver in drivers if not driver.fenced and not is_fenced(driver)]
    assert len(going_on) == 1
    last = going_on[0]
    others = [
        f"{c['note']['driver']} {kind}"
        for c in store.log
        if c["note"]["driver"] != last.name
        for kind in c["kinds"]
    ]
    assert [fact for fact in last.decisions[-1].facts if not fact.startswith(f"{last.name} ")] == (
        others
    )


def is_fenced(driver: Driver) -> bool:
    """Whether it stops at its next look."""
    assert driver.claim is not None
    try:
        driver.claim.fence.check()
    except FencedError:
        return True
    return False


def every_schedule(run: Callable[[Sequence[int]], Schedule]) -> Iterator[Schedule]:
    """Run each order of reads and writes once."""
    prefixes: list[list[int]] = [[]]
    while prefixes:
        prefix = prefixes.pop()
        schedule = run(prefix)
        taken = [chosen for chosen, _ in schedule.open]
        for at in range(len(prefix), len(taken)):
            prefixes += [[*taken[:at], other] for other in schedule.open[at][1]]
        yield schedule


def test_of_two_drivers_one_goes_on_in_every_order(started) -> None:
    """Every order of their reads and writes; in some the second takes over, in some it loses."""
    fenced = {True: 0, False: 0}
    again = 0

    def run(choices: Sequence[int]) -> Schedule:
        nonlocal again
        schedule, drivers = started(2, choices)
        fenced[any(driver.fenced for driver in drivers)] += 1
        again += any(len(driver.decisions) > 1 for driver in drivers)
        return schedule

    assert len(list(every_schedule(run))) > 500
    assert min(fenced.values()) > 0
    assert again > 0


@pytest.mark.parametrize("count", [3, 5])
def test_of_several_drivers_one_goes_on(started, count: int) -> None:
    """Random orders."""
    for seed in range(200):
        choose = random.Random(seed)
        started(count, [choose.randrange(count) for _ in range(12 * count)])


def test_of_drivers_that_decide_before_any_claims_the_first_goes_on(started) -> None:
    """All have the same incarnation, and the others learn it from their first commit."""
    _, drivers = started(4, [0, 1, 2, 3] * 3)
    assert [driver.fenced for driver in drivers] == [False, True, True, True]
    assert {driver.claim.incarnation for driver in drivers} == {1}


def test_a_commit_whose_answer_was_lost_is_there(started) -> None:
    """The storage raised, but the log has the commit under this driver's name."""
    _, (driver,) = started(1, [], lost_answers=1)
    assert driver.said == ["STARTED", "READY"]


def test_a_commit_that_failed_is_no_sign_of_another_driver(monkeypatch) -> None:
    """The error is the storage's."""
    monkeypatch.setattr(driver_table.tables, "create", lambda *args, **named: None)
    store = Store(lambda: None)

    def fails(*args: Any, **named: Any) -> None:
        raise Py4JError("no space left")

    monkeypatch.setattr(driver_table.transactions, "append_once", fails)
    with pytest.raises(StorageError, match="no space left"):
        Driver(store).start()
