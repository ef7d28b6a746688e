"""The kill loop: all jobs under SIGKILL, until the answer is known.

``python tests/chaos/chaos.py --kills 120 --seed 7`` kills drivers 120 times in all, at every named
point and at random moments (see :mod:`points` and :mod:`lives`). In rounds: a job on a fresh
storage root is killed and started again by the same command, then runs to its end, and its sink and
every completed checkpoint are compared with what plain pandas makes of its input.

The seed gives the order of the deaths, not what the machine does between them; so a failure is
repeated by the printed command with good luck, and its whole root is kept for bad luck.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import evidence
from anomalies import Anomaly, Kind, Life
from destinations import OUTSIDE, Outside
from generator import SINK_MODES
from lives import ChaosError, Death, End, deal, live
from modes import CHECKPOINT_MODES
from places import STORES, Place, Stores
from points import ALL_POINTS
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from victims import Clock, Findings, Flights, Generator, Victim

__all__ = ["Round", "met", "play"]

JOBS = ("generator", "flights", "clock")
KILLS_OF_A_ROUND = 18
_SHOWN = 20
# How far a life without an order goes, and how many of them there may be in a round.
_CALM_POINTS, _CALM_LIVES = 400, 8


@dataclass(frozen=True, slots=True)
class Round:
    """A job's lives on one storage root, and what came of them.

    Attributes:
        lives: in order; the last ended by itself.
        deaths: those of the others; None for one that came late, without having met its point.
        findings: what it left.
    """

    lives: Sequence[Life]
    deaths: Sequence[Death | None]
    findings: Findings


def play(
    victim: Victim,
    folder: Path,
    orders: Iterable[Death],
    report: Callable[[Life], None] = lambda _: None,
) -> Round:
    """Kill a job as ordered, let it end, and judge it.

    Args:
        victim: the job.
        folder: for the logs of its lives; created.
        orders: how its lives are to end; a job that is not endless may end before.
        report: called with each kill.

    Raises:
        ChaosError: a life failed.
    """
    folder.mkdir()
    lives: list[Life] = []
    died: list[Death | None] = []
    for order in _when_possible(orders, victim):
        meanwhile = victim.feed if order else victim.finish
        life, end = live(victim.command, folder, len(lives) + 1, order, meanwhile)
        lives.append(life)
        if end is End.BY_ITSELF and victim.endless and order:
            raise ChaosError(f"life {life.number} ended by itself, though nobody asked it to")
        if end is End.BY_ITSELF:
            _fetch_all(victim.place)
            return Round(lives, died, victim.judge(lives))
        died.append(order if end is End.AS_ORDERED else None)
        report(life)
    raise ChaosError(f"life {life.number} was to finish, but was {life.end}")


def _fetch_all(place: Place) -> None:
    """All tables; Spark's own folders and the state's files are no evidence."""
    sinks = [name for name in place.names("") if name != "job"]
    for path in [*sinks, *(f"job/{name}" for name in place.names("job") if name != "work")]:
        place.fetch(path)


def met(rounds: Iterable[Round]) -> Counter[str]:
    """How often a driver died at each named point."""
    return Counter(
        death.point for round_ in rounds for death in round_.deaths if death and death.point
    )


def _when_possible(orders: Iterable[Death], victim: Victim) -> Iterator[Death | None]:
    """The orders, each once enough checkpoints have completed; None, for the last life, behind.

    Lives without an order of their own go on for a while, so that some do complete.
    """
    waiting: list[Death] = []
    left = iter(orders)
    calm = 0
    while (order := next(left, None)) or waiting:
        waiting += [order] if order else []
        victim.place.fetch("job/checkpoints")
        completed = sum(fact["kind"] == "COMPLETED" for fact in evidence.facts(victim.storage))
        ready = [death for death in waiting if death.completed <= completed]
        waiting = [death for death in waiting if death.completed > completed]
        if order is None and not ready:
            calm += 1
            if calm > _CALM_LIVES:
                raise ChaosError(f"{completed} checkpoints have completed: too few for {waiting}")
            ready = [Death(None, _CALM_POINTS)]
        yield from ready
    yield None


def main() -> int:
    """Play rounds until there were enough kills; the exit code."""
    parser = argparse.ArgumentParser(description="Kill the driver many times; nothing may be lost.")
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--job", choices=JOBS, action="append", help="only this job")
    parser.add_argument("--store", choices=STORES, default="disk", help="what it writes to")
    parser.add_argument("--sink", choices=OUTSIDE, help="a sink outside; only the generator job")
    asked = parser.parse_args()
    jobs = ["generator"] if asked.sink else asked.job
    # So that a driver is buried whatever ends this program: its session would outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(highlight=False, soft_wrap=True)
    root = Path(tempfile.mkdtemp(prefix="absflow-chaos-"))
    repeat = f"make chaos SEED={asked.seed} KILLS={asked.kills}"
    repeat += f" JOB={asked.job[0]}" if asked.job else ""
    repeat += f" STORE={asked.store}" if asked.store != "disk" else ""
    repeat += f" SINK={asked.sink}" if asked.sink else ""
    console.print(f"seed {asked.seed}; the same again: {repeat}")
    failure = None
    for name in ("server", "outside"):
        (root / name).mkdir()
    outside = OUTSIDE[asked.sink](root / "outside") if asked.sink else nullcontext()
    stores = STORES[asked.store](root / "server")
    with _progress(console) as progress, stores as places, outside as destination:
        loop = Loop(root, asked.seed, progress, places, destination)
        try:
            loop.run(_shares(asked.kills, jobs or JOBS))
        except ChaosError as error:
            failure = error
    console.print(*_summary(loop.rounds), sep="\n")
    unmet = ALL_POINTS.keys() - met(loop.all_rounds())
    console.print(f"named points met: {len(ALL_POINTS) - len(unmet)} of {len(ALL_POINTS)}")
    anomalies = [a for round_ in loop.all_rounds() for a in round_.findings.anomalies]
    for anomaly in anomalies[:_SHOWN]:
        console.print(str(anomaly), style="red", markup=False)
    if failure is not None:
        console.print(str(failure), style="red", markup=False)
    if not anomalies and failure is None:
        shutil.rmtree(root)
        console.print("nothing lost, nothing twice, nothing out of order", style="green")
        return 0
    console.print(f"{len(anomalies)} anomalies; kept: {root}; the same again: {repeat}")
    return 1


def _shares(kills: int, jobs: Sequence[str]) -> dict[str, int]:
    """Half of the kills are the generator's, whose job is the harder one."""
    if len(jobs) == 1:
        return {jobs[0]: kills}
    others = kills // 4
    return {"generator": kills - 2 * others, "flights": others, "clock": others}


class Loop:
    """Rounds of all jobs, shown as they go."""

    def __init__(
        self, root: Path, seed: int, progress: Progress, stores: Stores, outside: Outside | None
    ) -> None:
        self._root, self._seed, self._progress, self._stores = root, seed, progress, stores
        self._outside = outside
        self._chance = random.Random(seed)
        self.rounds: dict[str, list[Round]] = {}

    def all_rounds(self) -> Iterator[Round]:
        return itertools.chain.from_iterable(self.rounds.values())

    def run(self, shares: dict[str, int]) -> None:
        """Kill each job as often as its share says; stop at the first round with an anomaly."""
        task = self._progress.add_task("kills", total=sum(shares.values()))
        for job, kills in shares.items():
            # Neighbours differ in both, so that few rounds are unlike each other.
            modes = [
                (mode, SINK_MODES[(place + shift) % len(SINK_MODES)])
                for shift in range(len(SINK_MODES))
                for place, mode in enumerate(CHECKPOINT_MODES)
            ]
            rounds = self.rounds.setdefault(job, [])
            turn = itertools.cycle(modes)
            while (left := kills - sum(len(r.deaths) for r in rounds)) > 0:
                folder = self._root / f"{job}-{len(rounds) + 1}"
                folder.mkdir()
                mode, sink = next(turn)
                victim = self._victim(job, folder, sink, mode)
                kills_now = min(left, KILLS_OF_A_ROUND, -(-kills // len(modes)))
                known, outside = met(self.all_rounds()), self._outside is not None
                orders = deal(self._chance, kills_now, known, sink, mode, outside=outside)

                def report(life: Life, job: str = job, how: str = f"{mode}, {sink}") -> None:
                    self._progress.advance(task)
                    text = f"{job:<9} {how:<36} life {life.number:>3} {life.end}"
                    self._progress.console.print(text)

                round_ = play(victim, folder / "lives", orders, report)
                rounds.append(round_)
                if round_.findings.anomalies:
                    return

    def _victim(self, job: str, folder: Path, sink_mode: str, mode: str) -> Victim:
        place = self._stores(folder.name, folder)
        if job == "generator":
            return Generator(place, self._seed, sink_mode, mode, self._outside)
        if job == "clock":
            return Clock(place, self._seed, sink_mode, mode)
        return Flights(place, sink_mode, mode)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _summary(rounds: dict[str, list[Round]]) -> list[Table]:
    """What was done, and what came of it."""
    jobs = list(rounds)
    kills = Table("killed", *jobs, box=SIMPLE_HEAD)
    counted = {
        job: Counter(_word(death) for round_ in rounds[job] for death in round_.deaths)
        for job in jobs
    }
    seen = set(ALL_POINTS).union(*counted.values())
    for point in sorted(seen, key=lambda point: point.split(" ", 1)[::-1]):
        kills.add_row(point, *(str(counted[job][point]) for job in jobs))
    kills.add_section()
    kills.add_row("in all", *(str(counted[job].total()) for job in jobs))
    came = Table("", *jobs, box=SIMPLE_HEAD)
    facts: dict[str, Callable[[Findings], int]] = {
        "rows in the sinks": lambda f: f.rows,
        "checkpoints completed": lambda f: f.completed,
        "checkpoints aborted": lambda f: f.aborted,
        "rows in flight in them": lambda f: f.in_flight,
    }
    for kind in Kind:
        facts[kind.value] = lambda f, kind=kind: _count(f.anomalies, kind)  # type: ignore[misc]
    came.add_row("rounds", *(str(len(rounds[job])) for job in jobs))
    for name, count in facts.items():
        came.add_row(name, *(f"{sum(count(r.findings) for r in rounds[j]):,}" for j in jobs))
    return [kills, came]


def _word(death: Death | None) -> str:
    if death is None:
        return "late, its point not met"
    return death.point or "at random moments"


def _count(anomalies: Sequence[Anomaly], kind: Kind) -> int:
    return sum(anomaly.kind is kind for anomaly in anomalies)


if __name__ == "__main__":
    sys.exit(main())
