"""Lanes of databases: once, in order, by key, fenced; on PostgreSQL and on SQLite."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from lane_cases import IDS, LANE, MADE, batch, prepared, run
from postgres_server import Postgres, postgres
from sqlalchemy.pool import NullPool

import absflow
from absflow.columnar.publishing import Lane, publish
from absflow.errors import FencedError, GraphError, StorageError
from absflow.protocol.recovery.marker import Marker


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def database(server: Postgres) -> Postgres:
    """The server, with nothing in it."""
    with engine(server.url).begin() as connection:
        for name in sa.inspect(connection).get_table_names():
            connection.execute(sa.text(f'DROP TABLE "{name}"'))
    return server


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'file.db'}"
    return str(request.getfixturevalue("database").url)


def engine(url: str) -> sa.Engine:
    return sa.create_engine(url, poolclass=NullPool)


def rows_of(url: str, table: str = "out") -> list[tuple[object, ...]]:
    with engine(url).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f'SELECT * FROM "{table}"'))]


def sql_sink(url: str, schema: pa.Schema = IDS, **more: object) -> absflow.SqlSink:
    return prepared(absflow.SqlSink(url, "out", **more), schema)


def test_appended_once(url: str) -> None:
    """Also if it is published again, with the same marker; the next checkpoint behind it."""
    sink = sql_sink(url)
    assert sink.marker(LANE) is None
    given = batch((1, "a"), (2, None), (3, "")), batch((1, 'of "two"\n lines, \\ and ü'))
    assert run(sink, *given) == 4
    assert run(sink, *given) == 0
    assert run(sink, batch((9, "z")), made=replace(MADE, checkpoint_id=8)) == 1
    expected = [(1, "a"), (2, None), (3, ""), (1, 'of "two"\n lines, \\ and ü'), (9, "z")]
    assert rows_of(url) == expected
    assert Marker.from_json(sink.marker(LANE)).published == {1: 8}


def test_all_kinds_of_values(url: str) -> None:
    schema = pa.schema(
        [
            ("b", pa.bool_()),
            ("i", pa.int8()),
            ("j", pa.int32()),
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("d", pa.decimal128(10, 2)),
            ("s", pa.string()),
            ("y", pa.binary()),
            ("t", pa.date32()),
            ("u", pa.timestamp("us")),
            ("group", pa.string()),
            ("with space", pa.int64()),
        ]
    )
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 789)
    row = (True, -8, 70_000, 0.5, 1 / 3, Decimal("-1.50"), "s", b"\x00\xff", at.date(), at, "g", 1)
    nulls = (None,) * len(schema)
    sink = sql_sink(url, schema)
    run(sink, batch(row, nulls, schema=schema))
    reflected = sa.Table("out", sa.MetaData(), autoload_with=engine(url))
    with engine(url).connect() as connection:
        assert [tuple(r) for r in connection.execute(sa.select(reflected))] == [row, nulls]


def test_times_with_a_zone(database: Postgres) -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="America/New_York"))])
    sink = absflow.SqlSink(database.url, "zoned")
    sink.prepare(None, schema)
    at = dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
    run(sink, batch((at,), schema=schema))
    assert rows_of(database.url, "zoned") == [(at,)]


@pytest.mark.parametrize("limit", [None, 20])
def test_one_row_per_key(url: str, limit: int | None) -> None:
    """The last one, also within a batch; deletions in their place among them."""
    schema = pa.schema([*IDS, ("gone", pa.bool_())])
    sink = sql_sink(url, schema, key="id", deleted="gone")
    given = (
        batch((1, "a", False), (2, "b", None), (1, "c", False), (3, "d", True), schema=schema),
        batch((2, "", True), (4, "e", False), (4, "f", True), (4, "g", False), schema=schema),
    )
    run(sink, *given, made=replace(MADE, limit=limit))
    assert sorted(rows_of(url)) == [(1, "c"), (4, "g")]
    run(sink, batch((2, "h", False), schema=schema), made=replace(MADE, checkpoint_id=8))
    assert sorted(rows_of(url)) == [(1, "c"), (2, "h"), (4, "g")]


def test_a_key_of_two_columns_and_nothing_else(url: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    sink = sql_sink(url, schema, key=["a", "b"])
    run(sink, batch((1, "x"), (1, "y"), (1, "x"), schema=schema))
    run(sink, batch((1, "y"), schema=schema), made=replace(MADE, checkpoint_id=8))
    assert sorted(rows_of(url)) == [(1, "x"), (1, "y")]


def test_who_opened_it_before_commits_nothing(url: str) -> None:
    """Its rows are not there, also if it was in the middle of them."""
    sink = sql_sink(url)
    with closing(sink.open(LANE)) as older:
        assert older.marker() is None
        with closing(sink.open(LANE)) as newer:
            write(newer, "new", "2")
        with pytest.raises((FencedError, sa.exc.DBAPIError)):
            write(older, "old", "1")
    assert (rows_of(url), sink.marker(LANE)) == ([(0, "new")], "2")


def write(lane: Lane, value: str, marker: str) -> None:
    lane.begin()
    lane.write(batch((0, value)))
    lane.commit(marker)


def test_who_hangs_in_a_transaction_holds_nobody_up(database: Postgres) -> None:
    """It has locked rows and its marker, and neither commits nor dies."""
    sink = absflow.SqlSink(database.url, "hung", key="id")
    sink.prepare(None, IDS)
    with closing(sink.open(LANE)) as older:
        older.begin()
        older.write(batch((0, "old")))
        with closing(sink.open(LANE)) as newer:
            write(newer, "new", "2")
        with pytest.raises(sa.exc.DBAPIError):
            older.commit("1")
    assert (rows_of(database.url, "hung"), sink.marker(LANE)) == ([(0, "new")], "2")


def test_lanes_at_once(url: str) -> None:
    """Four, each with a thread; no row is lost, and each has its marker."""
    sink = sql_sink(url)
    errors = []

    def lane(number: int) -> None:
        made = replace(MADE, lane=f"{LANE}{number}", limit=100)
        try:
            run(sink, *(batch((number, f"{n}")) for n in range(30)), made=made)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(rows_of(url)) == sorted((n, f"{v}") for n in range(4) for v in range(30))


def test_a_table_of_another_shape_is_refused(url: str) -> None:
    with engine(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE out (id BIGINT, v INTEGER)"))
    with pytest.raises(GraphError, match=r"column 'v' of table 'out' is INTEGER.*emits a text"):
        sql_sink(url)
    with pytest.raises(GraphError, match="has no column 'w'; it has"):
        sql_sink(url, pa.schema([("id", pa.int64()), ("w", pa.string())]))
    with pytest.raises(GraphError, match=r"no primary key or unique constraint over \['id'\]"):
        sql_sink(url, pa.schema([("id", pa.int64())]), key="id")
    with engine(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE must (id BIGINT, v INTEGER NOT NULL)"))
    with pytest.raises(GraphError, match=r"columns \['v'\] of table 'must' must have a value"):
        absflow.SqlSink(url, "must").prepare(None, pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize(
    ("more", "columns", "words"),
    [
        ({"key": "k"}, IDS, "'k' is none of the stage's output columns"),
        ({"deleted": "v"}, IDS, "needs key="),
        ({"key": "id", "deleted": "v"}, IDS, "is string, must be boolean"),
        ({}, pa.schema([("l", pa.list_(pa.int64()))]), "column 'l' is list<.*emit a text"),
    ],
)
def test_what_no_table_can_be_made_for(
    more: dict[str, str], columns: pa.Schema, words: str
) -> None:
    with pytest.raises(GraphError, match=f"(?s)sink 'out': .*{words}"):
        absflow.SqlSink("sqlite://", "out", **more).check("out", columns)


def test_a_row_that_cannot_be_is_named(database: Postgres) -> None:
    """And nothing of its transaction is there."""
    sink = absflow.SqlSink(database.url, "odd")
    sink.prepare(None, IDS)
    with pytest.raises(StorageError, match=r"column 'v' has a zero character.*\{'id': 2, 'v'"):
        run(sink, batch((1, "a"), (2, "b\x00")))
    assert (rows_of(database.url, "odd"), sink.marker(LANE)) == ([], None)


def test_the_password_is_nowhere_to_be_seen(database: Postgres) -> None:
    sink = absflow.SqlSink(database.url, "out")
    assert "secret" not in repr(sink) + sink.describe()
    assert "absflow:***@127.0.0.1" in sink.describe()


def test_a_crash_of_the_database(database: Postgres) -> None:
    """In the middle of a publication of several transactions; the rest comes behind it."""
    sink = absflow.SqlSink(database.url, "crashed")
    sink.prepare(None, IDS)

    def crashes() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            if number == 6:
                database.kill()
                database.start()
            yield batch((number, "v"))

    made = replace(MADE, lane=f"{LANE}-crash", limit=30)
    with pytest.raises(sa.exc.DBAPIError):
        publish(made, sink.open, sink.marker, crashes())
    there = len(rows_of(database.url, "crashed"))
    assert 0 < there < 7
    assert run(sink, *(batch((n, "v")) for n in range(10)), made=made) == 10 - there
    assert rows_of(database.url, "crashed") == [(n, "v") for n in range(10)]


def test_a_table_of_a_state(url: str) -> None:
    """All of it, then what differs; rows of somebody else are not taken over."""
    schema = pa.schema([*IDS, ("_deleted", pa.bool_())])
    sink = prepared(absflow.SqlSink(url, "out").of_state("out", ["id"], "_deleted"), schema)
    whole = replace(MADE, whole=True)
    run(sink, batch((1, "a", False), (2, "b", False), schema=schema), made=whole)
    rows = batch((1, "c", False), (2, None, True), (3, "d", False), schema=schema)
    run(sink, rows, made=replace(MADE, checkpoint_id=8))
    assert sorted(rows_of(url)) == [(1, "c"), (3, "d")]
    run(sink, batch((4, "e", False), schema=schema), made=replace(whole, attempt=2))
    assert rows_of(url) == [(4, "e")]
    run(sink, made=replace(whole, attempt=3))
    assert rows_of(url) == []
    run(sink, batch((5, "f", False), schema=schema), made=replace(MADE, attempt=3, checkpoint_id=8))
    other = replace(whole, lane=f"{LANE}-other")
    with pytest.raises(StorageError, match="has rows, and none of them is of lane"):
        run(sink, batch((6, "g", False), schema=schema), made=other)
    assert rows_of(url) == [(5, "f")]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lanes": 2}, "has one lane; leave out lanes="),
        ({"key": "v"}, r"is that of the stage, \['id'\]; leave out key="),
        ({"key": "id", "deleted": "gone"}, "leave out key= and deleted="),
    ],
)
def test_what_no_table_of_a_state_has(more: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        absflow.SqlSink("sqlite://", "out", **more).of_state("out", ["id"], "_deleted")
