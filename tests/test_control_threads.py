"""The threads beside that of a job, which ask the storage so that it need not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from absflow.errors import FencedError, StorageError
from absflow.facts.requests import SavepointRequest
from absflow.protocol.checkpoints import FailureReason, Manifest, StageManifest, StageReport
from absflow.protocol.coordinator.messages import CheckpointFailed
from absflow.protocol.load import Load
from absflow.spark.control import lookout
from absflow.spark.control.finaliser import Finaliser, ManifestReady
from absflow.spark.control.lookout import Lookout
from absflow.spark.control.occupation import EventTimes, Occupation, ThreadLoad

LONG_S = 30


class Outside:
    """What a lookout looks at, as fence and requests."""

    def __init__(self) -> None:
        self.looks, self.newer = 0, threading.Event()
        self.asked: queue.SimpleQueue[SavepointRequest] = queue.SimpleQueue()
        self.broken = True

    def check(self) -> None:
        self.looks += 1
        if self.newer.is_set():
            raise FencedError("a newer one")
        if self.broken:
            raise StorageError("no storage")

    def poll(self) -> list[SavepointRequest]:
        if self.broken:
            self.broken = False
            raise RuntimeError("no Spark")
        return [self.asked.get()] if not self.asked.empty() else []


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    monkeypatch.setattr(lookout, "_EVERY_S", 0.001)
    return Outside()


@pytest.fixture
def posted() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@pytest.fixture
def looking(outside: Outside, posted: queue.SimpleQueue[Any]) -> Iterator[Lookout]:
    made = Lookout(outside, outside, posted.put)  # type: ignore[arg-type]
    made.start()
    yield made
    made.close()


def test_b_a_lookout_posts_what_it_finds(
    outside: Outside, posted: queue.SimpleQueue[Any], looking: Lookout
) -> None:
    """Also after a look that failed; a newer driver is the last that it finds."""
    asked = SavepointRequest("request-1")
    outside.asked.put(asked)
    assert posted.get(timeout=LONG_S) == asked
    outside.newer.set()
    assert isinstance(posted.get(timeout=LONG_S), FencedError)
    looking.close()
    looks = outside.looks
    assert (posted.empty(), looks) == (True, outside.looks)


def test_b_the_last_look_is_made_when_the_thread_is_gone(
    outside: Outside, posted: queue.SimpleQueue[Any], looking: Lookout
) -> None:
    """A job that stops finds who has asked until then, and nobody twice."""
    outside.broken = False
    looking.close()
    while not posted.empty():
        posted.get()
    outside.asked.put(SavepointRequest("request-2"))
    looking.look_for_requests()
    assert posted.get(timeout=LONG_S) == SavepointRequest("request-2")


def manifest(number: int) -> Manifest:
    return Manifest(number, 0, 0, (StageManifest(StageReport("a", number, 0), ()),))


def test_b_a_finaliser_answers_each_manifest(posted: queue.SimpleQueue[Any]) -> None:
    """Whole, or with why it cannot be; what is no fault of the storage is for the job to raise."""
    load = Load(busy=0.5)

    def with_channel_state(given: Manifest) -> Manifest:
        if given.checkpoint_id == 2:
            raise StorageError("the log ends")
        if given.checkpoint_id == 3:
            raise ValueError("a fault of ours")
        return given

    made = Finaliser(with_channel_state, lambda stage: load, posted.put)
    for number in (1, 2, 3, 4):
        made.submit(manifest(number))
    made.close()
    first, second, third, fourth = (posted.get(timeout=LONG_S) for _ in range(4))
    assert isinstance(first, ManifestReady)
    assert first.manifest.stages[0].load == load
    assert second == CheckpointFailed(2, FailureReason.FINALIZE_FAILED, "the log ends")
    assert isinstance(third, ValueError)
    assert fourth.manifest.checkpoint_id == 4


def test_b_a_job_knows_where_the_time_of_its_thread_goes() -> None:
    """By kind of event, and the share of the last minute; what is older has been forgotten."""
    watched = Occupation(100.0)
    assert watched.load(100.0, 0) == ThreadLoad()
    watched.took("Tick", 100.0, 101.0, 3)
    watched.took("Tick", 104.0, 104.5, 1)
    watched.took("QueryDied", 105.0, 105.5, 2)
    load = watched.load(110.0, 1)
    assert (load.busy, load.waiting, load.most_waiting) == (pytest.approx(0.2), 1, 3)
    assert load.events == {"Tick": EventTimes(2, 1500, 1000), "QueryDied": EventTimes(1, 500, 500)}
    assert watched.load(163.0, 7).busy == pytest.approx(1 / 60)
    assert watched.load(163.0, 7).most_waiting == 7
    assert watched.load(400.0, 0).busy == 0
