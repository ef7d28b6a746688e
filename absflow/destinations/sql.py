"""A table of a database, written in transactions that hold the lane's marker, too."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import csv
from pyspark.sql import SparkSession
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from absflow.destinations.sql_tables import check_columns, lanes_table, make_table, sql_table
from absflow.errors import FencedError, GraphError, StorageError
from absflow.transactional import Lane, TransactionalSink

__all__ = ["SqlSink"]

# How long the database waits for one who has changed a marker and does not commit.
_ALIVE_S = 60


@dataclass(frozen=True)
class SqlSink(TransactionalSink):
    """Appends rows to a table of a database, or keeps one row per key, each row exactly once.

    Any database that SQLAlchemy speaks to and that has transactions; PostgreSQL (which loads in
    bulk, by COPY) and SQLite are tested. The markers are in a table ``absflow_lanes`` beside the
    table; both are made if they are not there.

    Attributes:
        url: of the database, as SQLAlchemy has it: ``postgresql+psycopg://user:password@host/db``,
            ``sqlite:////path/file.db``.
        table: ``table`` or ``schema.table``.
        key: its key columns. Without, rows are appended; with them, a row takes the place of the
            one that has its key.
        deleted: with a key: a boolean column of the output which is not in the table; where it is
            true, the row of the key goes.
        lanes: so many connections write at a time.
    """

    url: str = field(repr=False)
    table: str
    key: str | Sequence[str] = ()
    deleted: str | None = None
    lanes: int = 1
    packages: ClassVar[tuple[str, ...]] = ("sqlalchemy",)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    def of_state(self, name: str, keys: Sequence[str], deleted: str) -> SqlSink:
        """The same with these key columns; errors as of the interface."""
        if self.lanes != 1:
            raise GraphError(f"sink {name!r}: a table of a state has one lane; leave out lanes=")
        if self.keys not in ((), tuple(keys)) or self.deleted is not None:
            raise GraphError(
                f"sink {name!r}: the key of a table of a state is that of the stage, "
                f"{list(keys)}; leave out key= and deleted="
            )
        return replace(self, key=tuple(keys), deleted=deleted)

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that no table takes; errors as of the interface."""
        check_columns(name, schema, self.keys, self.deleted)

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Make the tables, or see that they are of this shape.

        Raises:
            GraphError: the table has other columns.
            sqlalchemy.exc.SQLAlchemyError: the database does not answer, or forbids it.
        """
        written = [f for f in schema if f.name != self.deleted]
        with self._engine().begin() as connection:
            make_table(connection, self.table, self.table, pa.schema(written), self.keys)
            lanes_table(self.table).create(connection, checkfirst=True)

    def describe(self) -> str:
        """The table, and where the database is; without the password."""
        url = sa.make_url(self.url).render_as_string(hide_password=True)
        return f"table {self.table!r} of {url}"

    def marker(self, lane: str) -> str | None:
        """The marker of a lane; None if there is none."""
        lanes = lanes_table(self.table)
        with self._engine().connect() as connection:
            if not sa.inspect(connection).has_table(lanes.name, lanes.schema):
                return None
            return _marker(connection, lanes, lane)

    def open(self, lane: str) -> Lane:
        """Open a lane, by a connection of its own."""
        return _SqlLane(self, self._engine(), lane)

    def _engine(self) -> sa.Engine:
        url = sa.make_url(self.url)
        # One who is locked out waits as long as Postgres does.
        waits = {"timeout": _ALIVE_S} if url.get_backend_name() == "sqlite" else {}
        return sa.create_engine(url, poolclass=NullPool, connect_args=waits)


class _SqlLane:
    """A lane that this process has opened last."""

    def __init__(self, sink: SqlSink, engine: sa.Engine, lane: str) -> None:
        self._sink = sink
        self._lane = lane
        self._lanes = lanes_table(sink.table)
        self._me = uuid.uuid4().hex
        self._connection = engine.connect()
        try:
            self._postgres = engine.dialect.name == "postgresql"
            self._take()
        except BaseException:
            self._connection.close()
            raise
        self._table: sa.Table | None = None
        self._staged: dict[str, sa.Table] = {}

    def _take(self) -> None:
        """Fence whoever has opened the lane before; what that one is committing is decided then."""
        connection, lanes = self._connection, self._lanes
        if self._postgres:
            self._end_others()
        with connection.begin():
            mine = sa.update(lanes).where(lanes.c.lane == self._lane).values(opened_by=self._me)
            taken = connection.execute(mine).rowcount
        if not taken:
            try:
                with connection.begin():
                    values = {"lane": self._lane, "opened_by": self._me}
                    connection.execute(sa.insert(lanes).values(values))
            except IntegrityError:  # another one who opens it for the first time, just now
                with connection.begin():
                    connection.execute(mine)

    def _end_others(self) -> None:
        """End connections of whoever opened it before: one that hangs would keep its row locks."""
        name = f"absflow-{hashlib.sha256(self._lane.encode()).hexdigest()[:32]}"
        with self._connection.begin():
            self._connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = :name AND usename = current_user "
                    "AND datname = current_database() AND pid <> pg_backend_pid()"
                ),
                {"name": name},
            )
            self._connection.execute(
                sa.text("SELECT set_config('application_name', :name, false)"), {"name": name}
            )

    def marker(self) -> str | None:
        with self._connection.begin():
            return _marker(self._connection, self._lanes, self._lane)

    def begin(self) -> None:
        self._connection.begin()
        self._staged = {}

    def clear(self, *, first: bool) -> None:
        table = sql_table(self._sink.table, pa.schema([]))
        if first:
            there = sa.select(sa.literal(1)).select_from(table).limit(1)
            if self._connection.execute(there).first() is not None:
                raise StorageError(
                    f"{self._sink.describe()} has rows, and none of them is of lane "
                    f"{self._lane!r}: a table of a state has no others. Empty it, or name another"
                )
        self._connection.execute(sa.delete(table))

    def write(self, rows: pa.RecordBatch) -> None:
        sink = self._sink
        if self._table is None:
            written = pa.schema([f for f in rows.schema if f.name != sink.deleted])
            self._table = sql_table(sink.table, written)
        if not sink.keys:
            self._insert(self._table, rows)
            return
        rows = _newest(rows, sink.keys)
        if sink.deleted is not None:
            gone = pc.fill_null(rows.column(sink.deleted), False)
            rows = rows.drop_columns([sink.deleted])
            self._delete(self._table, rows.filter(gone).select(sink.keys))
            rows = rows.filter(pc.invert(gone))
        self._upsert(self._table, rows)

    def commit(self, marker: str) -> None:
        connection, lanes = self._connection, self._lanes
        if self._postgres:  # from here on others would wait for us
            connection.execute(
                sa.text(f"SET LOCAL idle_in_transaction_session_timeout = '{_ALIVE_S}s'")
            )
        committed = connection.execute(
            sa.update(lanes)
            .where((lanes.c.lane == self._lane) & (lanes.c.opened_by == self._me))
            .values(marker=marker)
        )
        if committed.rowcount != 1:
            connection.rollback()
            raise FencedError(f"lane {self._lane!r} was opened by another task meanwhile")
        connection.commit()

    def close(self) -> None:
        self._connection.close()  # which rolls back

    # -- rows ---------------------------------------------------------------------------------

    def _insert(self, table: sa.Table, rows: pa.RecordBatch) -> None:
        if self._postgres:
            self._copy(table, rows)
        elif rows.num_rows:
            self._connection.execute(sa.insert(table), rows.to_pylist())

    def _upsert(self, table: sa.Table, rows: pa.RecordBatch) -> None:
        keys, names = self._sink.keys, rows.schema.names
        if not self._postgres:
            self._delete(table, rows.select(keys))
            self._insert(table, rows)
            return
        new = self._stage(table, rows)
        insert = postgresql.insert(table).from_select(names, sa.select(*(new.c[n] for n in names)))
        others = {name: insert.excluded[name] for name in names if name not in keys}
        if others:
            insert = insert.on_conflict_do_update(index_elements=keys, set_=others)
        else:
            insert = insert.on_conflict_do_nothing(index_elements=keys)
        self._connection.execute(insert)

    def _delete(self, table: sa.Table, keys: pa.RecordBatch) -> None:
        names = keys.schema.names
        if self._postgres:
            gone = self._stage(table, keys)
            same = [table.c[name] == gone.c[name] for name in names]
            self._connection.execute(sa.delete(table).where(*same))
        elif keys.num_rows:
            same = [table.c[name] == sa.bindparam(f"key_{at}") for at, name in enumerate(names)]
            values = [
                {f"key_{at}": row[name] for at, name in enumerate(names)}
                for row in keys.to_pylist()
            ]
            self._connection.execute(sa.delete(table).where(*same), values)

    def _stage(self, table: sa.Table, rows: pa.RecordBatch) -> sa.Table:
        """A table of this transaction only, with these rows."""
        names = rows.schema.names
        name = f"absflow_{'keys' if tuple(names) == self._sink.keys else 'rows'}"
        if name not in self._staged:
            empty = sa.select(*(table.c[column] for column in names)).where(sa.false())
            shape = empty.compile(self._connection, compile_kwargs={"literal_binds": True})
            self._connection.execute(
                sa.text(f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {shape}")
            )
            columns = (sa.Column(column, table.c[column].type) for column in names)
            self._staged[name] = sa.Table(name, sa.MetaData(), *columns)
        else:
            self._connection.execute(sa.text(f"TRUNCATE {name}"))
        self._copy(self._staged[name], rows)
        return self._staged[name]

    def _copy(self, table: sa.Table, rows: pa.RecordBatch) -> None:
        """Load in bulk: the database reads CSV, which Arrow writes."""
        preparer = self._connection.dialect.identifier_preparer
        columns = ", ".join(preparer.quote(name) for name in rows.schema.names)
        into = f"{preparer.format_table(table)} ({columns})"
        text = io.BytesIO()
        csv.write_csv(_as_text(rows), text, csv.WriteOptions(include_header=False))
        dialect = self._connection.dialect
        statement = f"COPY {into} FROM STDIN (FORMAT csv)"
        cursor = self._connection.connection.cursor()
        try:
            with cursor.copy(statement) as copy:
                copy.write(text.getbuffer())
        except dialect.loaded_dbapi.Error as error:
            # As for a statement of its own: who rolls back a connection that is gone must know it,
            # else that error hides this one.
            if dialect.is_disconnect(
                error, cast(Any, self._connection.connection.dbapi_connection), cursor
            ):
                self._connection.invalidate(error)
            raise DBAPIError.instance(
                statement, None, error, dialect.loaded_dbapi.Error, dialect=dialect
            ) from error


def _marker(connection: sa.Connection, lanes: sa.Table, lane: str) -> str | None:
    found = connection.execute(sa.select(lanes.c.marker).where(lanes.c.lane == lane)).scalar()
    return None if found is None else str(found)


def _newest(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The last row of each key."""
    at = pa.table(
        [*(rows.column(key) for key in keys), pa.array(range(rows.num_rows))],
        [*map(str, range(len(keys))), "at"],
    )
    last = at.group_by(at.schema.names[:-1]).aggregate([("at", "max")])
    return rows.take(last["at_max"].combine_chunks().sort())


def _as_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What Postgres reads as these rows: bytes in hexadecimal digits.

    Raises:
        StorageError: a text has a character that Postgres takes in none.
    """
    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        text = column
        if pa.types.is_string(column.type):
            odd = pc.index(pc.fill_null(pc.match_substring(column, "\x00"), False), True).as_py()
            if odd >= 0:
                raise StorageError(
                    f"column {name!r} has a zero character, which PostgreSQL takes in no text, in "
                    f"the row {rows.slice(odd, 1).to_pylist()[0]!r}; emit it without"
                )
        elif pa.types.is_binary(column.type):
            digits = [None if of is None else f"\\x{of.hex()}" for of in column.to_pylist()]
            text = pa.array(digits, pa.string())
        columns.append(text)
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)
