"""What events say of a query and what is seen of it count once."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from absflow.errors import JobFailedError, ResultError, StorageError
from absflow.protocol.coordinator.messages import InputExhausted, RootInput
from absflow.protocol.restarts import RestartPolicy, Restarts
from absflow.spark.batch.listener import BatchDone, QueryDied, QueryIdle, batch_done
from absflow.spark.control import queries
from absflow.spark.control.failures import QueryFailure, failure_of
from absflow.spark.control.progress import StageProgress
from absflow.spark.control.queries import Queries
from absflow.storage import clock
from absflow.storage.layout import Layout

POLICY = RestartPolicy(
    attempts=2, initial_ms=100, max_ms=100, multiplier=1, reset_after_ms=1_000_000
)
END = {"logOffset": 3}
LOOK = queries._LOOK_EVERY_MS


def progress(
    batch: int, *, ran: bool = True, start: object = None, run: str = ""
) -> dict[str, Any]:
    """As Spark has it of a query's newest trigger, over one source."""
    source = {"startOffset": start, "endOffset": END, "latestOffset": None, "numInputRows": 10}
    control = {"startOffset": END, "endOffset": END, "latestOffset": None, "numInputRows": 7}
    took = {"latestOffset": 1, "triggerExecution": 5} | ({"addBatch": 3} if ran else {})
    return {
        "runId": run,
        "batchId": batch,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": took,
        "sources": [source, control],
    }


def said(error):
    return QueryFailure(error, "mend it")


class Given:
    """An input of a stage."""

    name, bounded = "a", True


class Stage:
    """The query's first stage."""

    name, inputs = "left", (Given(),)


class Query:
    """A query, as :class:`Queries` sees one."""

    first, names, title = Stage(), ("left",), "stage 'left'"

    def __init__(self) -> None:
        self.progress = StageProgress()
        self.restarts, self.restart_at_ms = Restarts(), None
        self.silent, self.seen = True, None
        self.query = None
        self.run_id, self.started_ms, self.starts = "", 0, 0
        self.dead: str | None = None
        self.unreadable = 0
        self.newest: dict[str, Any] | None = None

    def rows_of(self, batch: BatchDone) -> int:
        return sum(batch.rows[: len(self.first.inputs)])

    def start(self) -> None:
        self.starts += 1
        if self.unreadable:
            self.unreadable -= 1
            raise StorageError("the bucket hung up")
        self.run_id, self.restart_at_ms, self.dead = f"run {self.starts}", None, None

    def death(self) -> QueryDied | None:
        return self.dead and QueryDied(self.run_id, self.dead)  # type: ignore[return-value]

    def last_progress(self) -> dict[str, Any] | None:
        return self.newest and self.newest | {"runId": self.run_id}


class Nobody:
    """Is given how far queries are."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.deaths = 0

    def done(self, stage: str, event: BatchDone) -> None:
        self.batches.append(event.batch_id)

    def died(self, stage: str) -> None:
        self.deaths += 1


class Watched:
    """A query that is watched, and what has been posted."""

    def __init__(self) -> None:
        self.posted: list[object] = []
        self.query, self.backpressure = Query(), Nobody()
        self.watch = Queries("job", POLICY, said, self.backpressure, self.posted.append)  # type: ignore[arg-type]
        self.watch.start([self.query])  # type: ignore[list-item]
        self.now = LOOK

    def look(self) -> list[object]:
        """Look once more, after so long; what is posted."""
        self.posted.clear()
        self.now += LOOK
        self.watch.look(self.now)
        return self.posted


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(clock, "steady_ms", lambda: watched.now)
    return watched


def test_a8_a_death_by_event_and_by_look_leads_to_one_restart(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """In any order, and however often it comes; the restart is said."""
    caplog.set_level(logging.INFO, logger="absflow")
    for starts in (2, 3):
        watched.query.dead = "boom"
        event = QueryDied(watched.query.run_id, "boom")
        (seen,) = watched.look()
        assert seen == event
        for _ in range(3):
            watched.watch.died(event)
        watched.look()
        assert (watched.query.starts, watched.backpressure.deaths) == (starts, starts - 1)
        assert caplog.messages[-2:] == [
            "stage 'left' died, restart in 100 ms: boom",
            "stage 'left' restarted",
        ]
        watched.watch.died(event)
    watched.query.dead = "boom"
    (seen,) = watched.look()
    with pytest.raises(JobFailedError, match="after 2 restarts in a row"):
        watched.watch.died(seen)  # type: ignore[arg-type]


def test_a_restart_that_cannot_read_the_storage_is_made_again(watched: Watched) -> None:
    """As if the query had died once more: not for ever."""
    watched.query.unreadable = 1
    watched.watch.died(QueryDied(watched.query.run_id, "boom"))
    watched.look()
    assert watched.query.restart_at_ms is not None
    watched.look()
    assert (watched.query.starts, watched.query.restart_at_ms) == (3, None)
    watched.query.unreadable = 1
    watched.query.restarts = Restarts()
    watched.watch.died(QueryDied(watched.query.run_id, "boom"))
    watched.query.restarts = Restarts(POLICY.attempts)
    with pytest.raises(JobFailedError, match=r"after 2 restarts in a row.*the bucket hung up"):
        watched.look()


WRONG = "stage 'left', input 'a', function f at job.py:3 (key group 1): output is a list"


@pytest.mark.parametrize("kind", ["ProcessError", "ResultError"])
def test_a_wrong_result_is_not_tried_again(watched: Watched, kind: str) -> None:
    """What a function raised may pass; what it returned comes again for the same rows."""
    text = f"Job aborted\nabsflow.errors.{kind}: {WRONG}\n  File user's\n\tat org.Java"
    root: Any = SimpleNamespace(spark=None, layout=Layout("/job"))
    watched.watch._failure = partial(failure_of, root)
    event = QueryDied(watched.query.run_id, text)
    if kind == "ProcessError":
        watched.watch.died(event)
        assert watched.query.restart_at_ms is not None
        return
    with pytest.raises(JobFailedError) as failed:
        watched.watch.died(event)
    assert str(failed.value).startswith(f"job 'job' gave up: {WRONG}. The same rows would")
    assert isinstance(failed.value.__cause__, ResultError)
    assert str(failed.value.__cause__) == f"{WRONG}\n  File user's"


def test_a8_a_query_that_was_stopped_by_others_ends_the_job(watched: Watched) -> None:
    """Its death has no error."""
    with pytest.raises(JobFailedError, match="was stopped from outside"):
        watched.watch.died(QueryDied(watched.query.run_id, None))


def test_a8_a_query_with_events_is_not_looked_at(watched: Watched) -> None:
    """Until it has been silent from one look to the next."""
    watched.query.dead = "boom"
    watched.watch.done(batch_done(progress(0, run=watched.query.run_id)))
    assert watched.look() == []
    assert watched.look() == [QueryDied(watched.query.run_id, "boom")]


def test_a8_progress_that_was_seen_counts_once(watched: Watched) -> None:
    """If its event does not come until the next look; an event that comes still later is old."""
    watched.query.newest = progress(4)
    watched.look()
    assert watched.query.progress.batch_id == -1
    watched.query.newest = progress(6)
    watched.look()
    assert watched.query.progress == StageProgress(4, 10, 2000.0)
    watched.watch.done(batch_done(progress(4, run=watched.query.run_id)))
    assert watched.query.progress == StageProgress(4, 10, 2000.0)
    watched.watch.done(batch_done(progress(5, run=watched.query.run_id)))
    assert watched.query.progress == StageProgress(5, 20, 2000.0)
    assert watched.backpressure.batches == [4, 5]


def test_a_query_without_work_reads_no_rows_a_second(watched: Watched) -> None:
    """What it has read stays."""
    watched.watch.done(batch_done(progress(4, run=watched.query.run_id)))
    assert watched.query.progress == StageProgress(4, 10, 2000.0)
    watched.watch.idle(QueryIdle(watched.query.run_id))
    assert watched.query.progress == StageProgress(4, 10, 0.0)


@pytest.mark.parametrize("ran", [True, False])
def test_a8_a_bounded_input_ends_by_what_is_seen(watched: Watched, ran: bool) -> None:
    """Of the newest trigger, whether it made a batch or not."""
    end = [InputExhausted(RootInput("left", "a"))]
    watched.query.newest = progress(4, ran=ran)
    assert watched.look() == []
    watched.query.newest = progress(5, ran=ran, start=END)
    assert watched.look() == end
    watched.posted.clear()
    watched.watch.idle(QueryIdle(watched.query.run_id))
    assert watched.posted == end


def test_a8_a_trigger_without_a_batch_is_no_batch() -> None:
    """Spark gives it the id of the batch that comes next."""
    assert batch_done(progress(5, ran=False)).batch_id == 4
    assert batch_done(progress(5)).batch_id == 5
