"""The chain's output into a database and a topic, too, in several lanes, whichever process runs it.

Where they are, the environment says, so that drivers in processes of their own find them. They are
slow on one worker of a cluster, as a machine can be, and note there how often a task has run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from kafka_client import consumed, frame_of, make_topic, topic_name
from postgres_server import postgres, table_rows
from pyspark import TaskContext
from reading import assert_same_rows

import absflow

__all__ = ["Outside", "add_outside", "outside"]

_URL, _SERVERS = "ABSFLOW_TESTS_SQL", "ABSFLOW_TESTS_KAFKA"
_TOPIC, _NOTES = "ABSFLOW_TESTS_TOPIC", "ABSFLOW_TESTS_NOTES"
STRAGGLER, _STRAGGLES_S = "worker-0", 1.5
_TABLE, _ORDER = "outside", ["id", "g", "v"]


def _note(lane: str) -> None:
    """A line for each task that opens a lane: which, and how often it was begun before."""
    context = TaskContext.get()
    if context is None:  # the driver
        return
    with Path(os.environ[_NOTES]).open("a") as notes:
        notes.write(f"{lane} {context.attemptNumber()}\n")
    if STRAGGLER in os.getcwd():
        time.sleep(_STRAGGLES_S)


class _Noted(absflow.TransactionalSink):
    def open(self, lane: str) -> absflow.Lane:
        opened = super().open(lane)
        _note(lane)
        return opened


class _Sql(_Noted, absflow.SqlSink):
    pass


class _Kafka(_Noted, absflow.KafkaSink):
    pass


def add_outside(job: absflow.Job) -> None:
    """Give the chain these sinks, if the environment names them."""
    if _URL in os.environ:
        job.sink("sql", "tally", _Sql(os.environ[_URL], _TABLE, lanes=4))
        topic = _Kafka(os.environ[_SERVERS], os.environ[_TOPIC], lanes=2)
        job.sink("topic", "tally", topic)


class Outside:
    """What came of them."""

    def __init__(self, url: str, servers: str, topic: str, notes: Path) -> None:
        self._url, self._servers, self._topic, self._notes = url, servers, topic, notes

    def check(self, due: pd.DataFrame) -> None:
        """Both have these rows, each once."""
        assert_same_rows(table_rows(self._url, _TABLE, _ORDER), due, _ORDER)
        assert_same_rows(frame_of(consumed(self._servers, self._topic), _ORDER), due, _ORDER)

    def begun_again(self) -> int:
        """How many tasks that had been begun before have opened a lane."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return sum(not line.endswith(" 0") for line in lines)


@contextmanager
def outside(
    servers: str, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "outside"
) -> Iterator[Outside]:
    """A database for the time of a block, and a new topic of this name, as far as it can be."""
    topic = topic_name(name)
    make_topic(servers, topic)
    with postgres() as database:
        given = {_URL: database.url, _SERVERS: servers, _TOPIC: topic, _NOTES: f"{folder}/notes"}
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        yield Outside(database.url, servers, topic, folder / "notes")
