"""One life of a driver: a process started, fed, and killed with all that belongs to it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pyspark
from anomalies import Life
from outside import LANE_POINTS
from points import (
    ALL_POINTS,
    OUTSIDE_POINTS,
    OVERTAKE_POINTS,
    POINTS,
    PUBLICATION_POINTS,
    RESTORE_POINTS,
    RETENTION_POINTS,
)

sys.path.append(str(Path(__file__).parents[1] / "spark"))
import class_archive

__all__ = ["STARTS", "ChaosError", "Command", "Death", "End", "deal", "live"]

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
# A driver that has not come to its point by then is killed all the same.
LONGEST_S = 150
_POLL_S = 0.05
# Of a driver with a sink outside, beside those of the sink.
_AROUND_PUBLICATION = (
    "before checkpoints commit",
    "after checkpoints commit",
    "before claim of the storage root",
    "after claim of the storage root",
    "after seeding of a stage",
)
_CLASS_PATH = "spark.driver.extraClassPath"


class ChaosError(Exception):
    """A driver ended as it must not: by itself, with an error."""


class End(Enum):
    """How a life ended."""

    BY_ITSELF = "by itself"
    AS_ORDERED = "as ordered"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Death:
    """How a life is to end.

    Attributes:
        point: the one of :data:`points.POINTS` where the driver kills itself; None if it is killed
            from outside.
        number: at which time that it comes to that point; or behind how many points of any name it
            is killed from outside.
        delay_ms: how long behind that.
        start: the one of :data:`STARTS` by which the life begins.
        wound: where, and at which time, a Python worker is killed before that.
    """

    point: str | None
    number: int
    delay_ms: int = 0
    start: str = "go on"
    wound: str = ""

    @property
    def completed(self) -> int:
        """How many checkpoints must have completed before such a life."""
        return ALL_POINTS[self.point].completed if self.point else 0

    def __str__(self) -> str:
        if self.point is not None:
            text = f"{self.point}, time {self.number}"
        else:
            text = f"{self.delay_ms} ms behind its point {self.number}"
        text += f", a worker at {self.wound}" if self.wound else ""
        return text if self.start == "go on" else f"{text} ({self.start})"


# What a life adds to the conf of all.
STARTS: dict[str, dict[str, str]] = {
    "go on": {},
    "restore": {"spark.absflow.restore.from": "latest"},
}


def deal(
    chance: random.Random,
    number: int,
    met: Mapping[str, int],
    sink_mode: str,
    mode: str,
    *,
    outside: bool = False,
) -> list[Death]:
    """Deaths for one round, in a random order: the named points met least so far, and moments.

    Args:
        chance: of the loop.
        number: of deaths.
        met: how often a driver has died at a named point, in any round.
        sink_mode: of the round; some points are met in one only.
        mode: one of the checkpoint modes, likewise.
        outside: it has a sink outside, of which it is about; workers die as well.
    """
    everywhere = POINTS | RETENTION_POINTS | RESTORE_POINTS
    if outside:
        everywhere = OUTSIDE_POINTS | PUBLICATION_POINTS
        everywhere |= {name: ALL_POINTS[name] for name in _AROUND_PUBLICATION}
    points = dict(everywhere)
    if sink_mode == "on-checkpoint" and not outside:
        points |= PUBLICATION_POINTS
    if mode.startswith("unaligned") and not outside:
        points |= OVERTAKE_POINTS
    moments = number // 5
    # Of equals first the one that not every round can meet: its next occasion may be far.
    names = sorted(points, key=lambda p: (met.get(p, 0), p in everywhere, chance.random()))
    orders = [_at(chance, name) for name in names[: number - moments]]
    orders += [_moment(chance) for _ in range(number - len(orders))]
    if outside:
        orders = [replace(o, wound=_wound(chance)) if o.point is None else o for o in orders]
    chance.shuffle(orders)
    return orders


def _at(chance: random.Random, name: str) -> Death:
    number = chance.randint(1, ALL_POINTS[name].often)
    return Death(name, number, start="restore" if name in RESTORE_POINTS else "go on")


def _wound(chance: random.Random) -> str:
    return f"{chance.randint(1, 4)} {chance.choice(LANE_POINTS)}"


def _moment(chance: random.Random) -> Death:
    """While it starts and recovers, or anywhere in its work."""
    moments = [
        Death(None, 1, chance.randint(0, 15_000)),
        Death(None, chance.randint(2, 150), chance.randint(0, 1_000)),
    ]
    return chance.choices(moments, weights=(1, 3))[0]


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a job, and starts it again, in one small JVM, its points watched.

    Attributes:
        program: the job's program.
        conf: its Spark conf, beside that of the flights job.
        arguments: of the program.
        class_path: jars that it needs besides.
    """

    program: Path
    conf: Mapping[str, str]
    arguments: Sequence[str] = ()
    class_path: str = ""

    def line(self, start: str) -> list[str]:
        """The command line of a life that begins by ``start``."""
        small = {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": class_archive.JAVA,
            **class_archive.kept(),
            # Nor does it to write and compile code for a few hundred rows.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.streaming.pollingDelay": "50ms",
        }
        paths = (small.get(_CLASS_PATH), self.class_path)
        small[_CLASS_PATH] = os.pathsep.join(filter(None, paths))
        line = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
        line += ["--properties-file", str(CHECKOUT / "conf" / "flights.conf")]
        for key, value in {**small, **self.conf, **STARTS[start]}.items():
            line += ["--conf", f"{key}={value}"]
        return [*line, str(HERE / "points.py"), str(self.program), *self.arguments]


def live(
    command: Command,
    folder: Path,
    number: int,
    death: Death | None,
    meanwhile: Callable[[], None],
) -> tuple[Life, End]:
    """Start a driver and see it through to its end.

    Args:
        command: of the job.
        folder: for its log and its progress.
        number: of this life.
        death: how it is to end; None if it is to end by itself.
        meanwhile: called again and again while it lives.

    Returns:
        The life, and how it ended.

    Raises:
        ChaosError: it failed.
    """
    progress = folder / f"{number:04d}.progress"
    began_ms = time.time_ns() // 1_000_000
    with (folder / f"{number:04d}.log").open("wb") as log:
        process = subprocess.Popen(
            command.line(death.start if death else "go on"),
            cwd=folder,
            env=_environment(progress, death),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            end = _watch(process, progress, death, meanwhile)
        finally:
            _bury(process)
    # A lane is claimed by the driver, so a wound may be its own; its JVM ends with Python's code.
    wounded = bool(death and death.wound) and process.returncode == 128 + signal.SIGKILL
    if process.returncode not in (0, -signal.SIGKILL) and not wounded:
        raise ChaosError(
            f"life {number} failed with code {process.returncode}, where it was to die: {death}. "
            f"Its log:\n{Path(log.name).read_text(errors='replace')[-5000:]}"
        )
    if process.returncode == 0:
        end = End.BY_ITSELF
    words = {
        End.BY_ITSELF: "by itself",
        End.AS_ORDERED: f"killed {death}",
        End.LATE: f"killed after {LONGEST_S} s, not having met: {death}",
    }
    return Life(number, began_ms, words[end]), end


def _environment(progress: Path, death: Death | None) -> dict[str, str]:
    order = {"CHAOS_DIE": f"{death.number} {death.point}"} if death and death.point else {}
    order |= {"CHAOS_WOUND": death.wound} if death and death.wound else {}
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(HERE)]),
        "CHAOS_PROGRESS": str(progress),
        "CHAOS_LOOP": str(os.getpid()),
        **order,
    }


def _watch(
    process: subprocess.Popen[bytes],
    progress: Path,
    death: Death | None,
    meanwhile: Callable[[], None],
) -> End:
    """Wait for the end, or say when to bring it about, and why."""
    # The last life may have much to do.
    give_up = time.monotonic() + LONGEST_S * (1 if death else 5)
    while process.poll() is None:
        meanwhile()
        passed = progress.read_bytes().count(b"\n") if progress.exists() else 0
        if death and death.point is None and passed >= death.number:
            time.sleep(death.delay_ms / 1000)
            return End.AS_ORDERED
        if time.monotonic() > give_up:
            return End.LATE
        time.sleep(_POLL_S)
    return End.AS_ORDERED


def _bury(process: subprocess.Popen[bytes]) -> None:
    """Kill the group, wait for it, and see to it that no process of the session is left.

    Spark puts its Python workers into groups of their own; they end when their JVM is gone.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    give_up = time.monotonic() + 5
    while rest := _session(process.pid):
        if time.monotonic() > give_up:
            for pid in rest:
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _session(leader: int) -> list[int]:
    """The living processes of a session, where the system lists them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone in the meantime
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
