"""Servers of the destinations outside Spark in the kill loop, and what they hold in the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import sqlalchemy as sa

sys.path.append(str(Path(__file__).parents[1] / "spark"))
from kafka_broker import CONNECTOR, broker, jars
from kafka_client import consumed, make_topic
from outside import state_table
from postgres_server import postgres

__all__ = ["OUTSIDE", "Outside"]


@dataclass(frozen=True, slots=True)
class Outside:
    """A destination that runs.

    Attributes:
        kind: as :func:`outside.outside_sink` takes it.
        where: its address.
        make: makes a new place of this name.
        rows: what such a place holds, those of a key in the order in which a reader sees them.
        class_path: jars that a driver needs for it.
        state: the table of a state beside such a place; None if there is none.
    """

    kind: str
    where: str
    make: Callable[[str], None]
    rows: Callable[[str], pd.DataFrame]
    class_path: str = ""
    state: Callable[[str], pd.DataFrame] | None = None

    def argument(self, name: str) -> str:
        """What the job's program is given, for a place of this name."""
        return f"outside={self.kind},{self.where},{name}"


@contextmanager
def _kafka(folder: Path, kind: str = "kafka") -> Iterator[Outside]:
    connector = jars(CONNECTOR, folder) if kind == "spark-kafka" else []
    with broker(folder) as running:
        servers = running.servers

        def rows(name: str) -> pd.DataFrame:
            return pd.DataFrame(json.loads(record.value()) for record in consumed(servers, name))

        path = os.pathsep.join(connector)
        yield Outside(kind, servers, partial(make_topic, servers), rows, path)


@contextmanager
def _postgres(_: Path) -> Iterator[Outside]:
    with postgres() as server:
        engine = sa.create_engine(server.url)

        def make(name: str) -> None:
            # A row's number in the order of writing: rows of a table lie where there is room.
            columns = "id BIGINT, via TEXT, k TEXT, g BIGINT, seq BIGINT, nth BIGINT, v BIGINT"
            with engine.begin() as connection:
                connection.execute(sa.text(f"CREATE TABLE {name} ({columns}, nr BIGSERIAL)"))

        def rows(name: str) -> pd.DataFrame:
            with engine.connect() as connection:
                return pd.read_sql_query(sa.text(f"SELECT * FROM {name} ORDER BY nr"), connection)

        def state(name: str) -> pd.DataFrame:
            with engine.connect() as connection:
                return pd.read_sql_query(sa.text(f"SELECT * FROM {state_table(name)}"), connection)

        yield Outside("postgres", server.url, make, rows, state=state)


# By the name that `make chaos SINK=` takes: runs it, with its files in a folder.
OUTSIDE: Mapping[str, Callable[[Path], AbstractContextManager[Outside]]] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "spark-kafka": partial(_kafka, kind="spark-kafka"),
}
