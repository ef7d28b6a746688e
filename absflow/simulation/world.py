"""A seeded world: plays one job from its first row to its last checkpoint, with faults.

Everything that happens follows from the seed. Faults cease after a while, so a world that does not
come to its end is stuck. What the tables hold at the end is for the checkers to judge.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from absflow.errors import ProtocolViolation
from absflow.simulation import checkers
from absflow.simulation.clock import Life, Process
from absflow.simulation.driver import Driver
from absflow.simulation.expiry import draw_clocks
from absflow.simulation.faults import Rates
from absflow.simulation.job import Graph, StageSpec
from absflow.simulation.query import Appender, Query
from absflow.simulation.restore import restored
from absflow.simulation.scene import Scene, build, draw_knobs
from absflow.simulation.tables import Request, Tables

__all__ = ["Result", "go_back", "run"]

_LIMIT_MS = 60_000
_RESTART_MS = (50, 400)


@dataclass(frozen=True, slots=True)
class Result:
    """One world at its end.

    Attributes:
        seed: plays it again.
        graph: the job.
        finished: the job came to its end.
        story: one line per event.
        marks: how often each hard case was reached.
        violations: what the checkers found; empty if all is well.
        tables: what was left.
    """

    seed: int
    graph: Graph
    finished: bool
    story: tuple[str, ...]
    marks: Counter[str]
    violations: tuple[str, ...]
    tables: Tables

    def explain(self, lines: int = 40) -> str:
        """The seed, what is wrong, and the end of the story."""
        wrong = [f"  {violation}" for violation in self.violations] or ["  nothing"]
        shown = self.story[-lines:]
        head = f"seed {self.seed}: wrong is"
        return "\n".join([head, *wrong, f"the last {len(shown)} events:", *shown])


def run(seed: int, graph: Graph | None = None, rates: Rates | None = None) -> Result:
    """Play the world of ``seed``; ``graph`` and ``rates`` replace what the seed would draw."""
    dice = random.Random(seed)
    knobs = draw_knobs(dice, graph, rates)
    scene = build(seed, knobs, dice)
    scene.tables.clocks = draw_clocks(seed, knobs.graph)
    return _play(seed, scene)


def go_back(seed: int, result: Result, checkpoint_id: int) -> Result:
    """Play on from a checkpoint of a world at its end, with other settings and faults.

    Args:
        seed: plays it again.
        result: the world.
        checkpoint_id: a completed checkpoint of it.
    """
    dice = random.Random(seed)
    knobs = draw_knobs(dice, result.graph)
    old = result.tables
    tables = restored(result.graph, old, old.manifests[checkpoint_id])
    plans = (plan for files in old.stages.values() for plan in files.offsets.values())
    last_ms = max((plan.wall_ms for plan in plans), default=0)
    tables.clocks = draw_clocks(seed, result.graph, old.clocks, checkpoint_id, last_ms)
    return _play(seed, build(seed, knobs, dice, tables))


def _play(seed: int, scene: Scene) -> Result:
    knobs = scene.knobs
    world = World(scene)
    try:
        finished = world.play()
        violations = checkers.check(knobs.graph, scene.tables, finished)
    except ProtocolViolation as error:
        finished = False
        violations = [f"protocol violation: {error}"]
    marks = scene.story.marks
    story = tuple(scene.story.lines)
    return Result(seed, knobs.graph, finished, story, marks, tuple(violations), scene.tables)


class World:
    """Starts, kills and restarts the driver and its queries."""

    def __init__(self, scene: Scene) -> None:
        """Start the first driver at 0 ms."""
        self.scene = scene
        self._life = Life()
        self._queries: dict[str, Query] = {}
        self._appenders: dict[str, Appender] = {}
        self._driver = self._start()

    def play(self) -> bool:
        """Let it run to its end; False if it does not come to one."""
        clock = self.scene.clock
        while clock.now_ms < _LIMIT_MS:
            self._mishap()
            if not clock.step():
                return False
            driver = self._driver
            if not driver.life.alive:
                continue
            if driver.lost:
                self._kill("does not know what it has written")
            elif driver.stopped and driver.idle:
                if driver.listen():
                    continue  # who asked in the last moment is refused, not left waiting
                if driver.finished:
                    return True
                self.scene.story.mark("job stopped and started again")
                self._kill("is stopped")
        return False

    def _start(self) -> Driver:
        driver = Driver(self.scene, Life(self._life))
        for spec in self.scene.knobs.graph.stages:
            self._appenders[spec.name] = Appender(self.scene, spec.name, driver.life, driver.fail)
            self._start_query(driver, spec)
        return driver

    def _start_query(self, driver: Driver, spec: StageSpec) -> None:
        life = Life(driver.life)
        appender = self._appenders[spec.name]
        query = Query(self.scene, spec, life, appender, driver.report, driver.fail)
        self._queries[spec.name] = query
        self.scene.clock.spawn(query.run(), life, self.scene.dice.randint(0, 30))

    def _mishap(self) -> None:
        """Before each step of the world: does somebody die, stop the job, or request something?"""
        faults, driver = self.scene.faults, self._driver
        if faults.strike("savepoint"):
            self._request(stop=False)
        if faults.strike("stop_with_savepoint"):
            self._request(stop=True)
        if not driver.life.alive:
            return
        finalising = driver.finalising is not None and faults.strike("crash_finalising")
        if finalising or faults.strike("crash"):
            self._crash()
        elif faults.strike("stop") and not driver.state.stopping:
            self.scene.story.note("person", "stops the job")
            driver.stop()
        elif faults.strike("death"):
            self._die(self.scene.dice.choice(sorted(self._queries)))
        else:
            for name, query in self._queries.items():
                if query.step == "reporting" and faults.strike("death_reporting"):
                    self._die(name)

    def _request(self, *, stop: bool) -> None:
        """A person writes a request, whether the driver listens or not."""
        requests = self.scene.tables.requests
        request = Request(f"request {len(requests) + 1}", stop)
        what = "wants to stop" if stop else "wants savepoint"
        self.scene.story.note("person", what, None, request.request)
        requests.append(request)

    def _crash(self) -> None:
        story, checkpoint_id = self.scene.story, self._driver.finalising
        if checkpoint_id is not None:
            landed = checkpoint_id in self.scene.tables.manifests
            story.mark("crash after the manifest landed", landed)
            story.mark("crash before the manifest landed", not landed)
        for query in self._queries.values():
            if query.life.alive:
                story.mark(f"crash while a stage is {query.step}")
        self._kill("crashes")

    def _kill(self, what: str) -> None:
        self.scene.story.note("driver", what)
        self._driver.life.end()
        wait_ms = self.scene.between(_RESTART_MS)
        self.scene.clock.spawn(self._restart(), self._life, wait_ms)

    def _restart(self) -> Process:
        self._driver = self._start()
        yield from ()

    def _die(self, name: str) -> None:
        query = self._queries[name]
        if not query.life.alive:
            return
        self.scene.story.note(f"stage {name}", "dies", None, f"while {query.step}")
        self.scene.story.mark(f"death of a stage while {query.step}")
        query.life.end()
        wait_ms = self.scene.between(_RESTART_MS)
        self.scene.clock.spawn(self._revive(name, self._driver), self._driver.life, wait_ms)

    def _revive(self, name: str, driver: Driver) -> Process:
        self._start_query(driver, self.scene.knobs.graph.stage(name))
        yield from ()
