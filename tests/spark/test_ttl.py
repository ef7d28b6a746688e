"""State that expires, end to end: in batches, at checkpoints, in SQL, after restores."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import advanced, assert_same_rows, completed, files_read, rows_of, stage_of
from session import settings
from windows import DELAY_S, EVENTS, SETTINGS, on_time, reached, write_events

import absflow
from absflow.cli.reader import Reader
from absflow.columnar.expiry import TOUCHED, Expiry
from absflow.columnar.spec import StageSpec
from absflow.columnar.timers import Domain
from absflow.protocol.lineage import Compacted
from absflow.spark.control.compaction import write_compacted_set
from absflow.spark.control.state_rows import state_rows
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FILES, ROWS, USERS = 14, 60, 20
TTL = absflow.Ttl("1h", domain="event")


def count(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Rows of each user since its state began, and the time of the newest of the call."""
    now = np.bincount(context.key_of_row, minlength=state.num_rows)
    counted = state.set_column(1, "n", pa.array(state["n"].fill_null(0).to_numpy() + now))
    times = rows["ts"].cast(pa.int64()).to_numpy()
    newest = np.zeros(state.num_rows, dtype=np.int64)
    np.maximum.at(newest, context.key_of_row, times)
    output = counted.append_column("at", pa.array(newest).cast(pa.timestamp("us", tz="UTC")))
    return absflow.Result(output=output, state=counted)


def keep(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The greatest count that a user's rows have had since its state began."""
    most = state["n"].fill_null(0).to_numpy().copy()
    np.maximum.at(most, context.key_of_row, rows["n"].to_numpy())
    return absflow.Result(state=state.set_column(1, "n", pa.array(most)))


def run(spark: SparkSession, root: Path, ttl: absflow.Ttl = TTL, **more: str) -> None:
    """The job to its end: a user's rows, then behind a channel the most of them, then by clock."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    with settings(spark, {"storage.path": str(root / "job"), **SETTINGS, **given}):
        job = absflow.Job("users", spark)
        frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        user = (F.floor(F.unix_timestamp("ts") / 600) % USERS).alias("user")
        events = frame.parquet(str(root / "events")).select("p", "ts", user)
        declared = absflow.Watermark(delay="1h", by="p", late="drop")
        source = job.source("events", events, bounded=True, event_time="ts", watermark=declared)
        users = job.stage(
            "users", source, key="user", state="n long", process=count, ttl=ttl,
            output="user long, n long, at timestamp", output_time="at",
        )  # fmt: skip
        job.stage(
            "most", users, key="user", state="n long", process=keep, output="user long", ttl=ttl
        )
        job.stage(
            "moments", users, key="user", state="n long", process=keep, output="user long",
            ttl=absflow.Ttl("1ms"),
        )  # fmt: skip
        job.sink("out", users, absflow.DeltaSink(str(root / "out")))
        assert job.start().await_termination(timeout=300)


State = dict[int, tuple[int, pd.Timestamp]]


def expected(
    events: pd.DataFrame, ttl: str, begin: int = 0, state: State | None = None
) -> tuple[pd.DataFrame, list[State]]:
    """What is emitted, and the state behind each number of files, expired or not: a file a batch.

    Args:
        events: all rows.
        ttl: for pandas.
        begin: the first file that is read.
        state: before it.
    """
    after, emitted = pd.Timedelta(ttl), []
    rows = events[on_time(events, DELAY_S)]
    rows = rows.assign(user=rows["ts"].astype("int64") // 10**9 // 600 % USERS)
    states = [dict(state or {})]
    for number in range(begin, FILES):
        now, border = dict(states[-1]), reached(events, number)
        for user, mine in rows[rows["file"] == number].groupby("user"):
            n, touched = now.get(user, (0, None))
            if touched is not None and border is not None and touched + after <= border:
                n, touched = 0, None
            newest = mine["ts"].max()
            now[user] = (n + len(mine), newest if touched is None else max(touched, newest))
            emitted.append((user, now[user][0], newest))
        states.append(now)
    return pd.DataFrame(emitted, columns=["user", "n", "at"]), states


def visible(events: pd.DataFrame, state: State, files: int, ttl: str) -> pd.DataFrame:
    border = reached(events, files)
    there = [
        (user, n)
        for user, (n, touched) in state.items()
        if border is None or touched + pd.Timedelta(ttl) > border
    ]
    return pd.DataFrame(there, columns=["user", "n"])


Finished = tuple[Path, pd.DataFrame]


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("ttl")
    events = write_events(root / "events", FILES, ROWS, seed=3)
    run(spark, root, checkpoint__interval="300ms")
    return root, events


def read_until(row: dict[str, Any]) -> int:
    return files_read(row, "users", "events")


def test_a_user_whose_state_has_expired_begins_anew(finished: Finished) -> None:
    root, events = finished
    emitted, _ = expected(events, "1h")
    # The test is of use if some users come back in time, and some do not.
    assert (emitted["n"] > emitted.groupby("user")["n"].transform("first")).any()
    without, _ = expected(events, "1000d")
    assert not emitted.equals(without)
    assert_same_rows(rows_of(root / "out").to_pandas(), emitted, ["user", "at", "n"])


def test_state_at_every_checkpoint_is_what_had_not_expired(
    finished: Finished, spark: SparkSession
) -> None:
    """In DataFrames, in the SQL view, and on the command line; of a stage behind a channel, too."""
    root, events = finished
    _, states = expected(events, "1h")
    history = absflow.history(spark, str(root / "job"))
    history.create_views("ttl_")
    view = spark.table("ttl_users_state").toPandas()
    rows = completed(spark, root / "job")
    lost, moments = 0, []
    for row in rows:
        n, files = row["checkpoint_id"], read_until(row)
        due = visible(events, states[files], files, "1h")
        lost += len(states[files]) - len(due)
        assert_same_rows(history.state("users", n).toPandas(), due, ["user"])
        assert_same_rows(view[view["at_checkpoint"] == n], due, ["user"])
        table = Reader(str(root / "job")).state("users", n).rows
        assert_same_rows(table.to_pandas(), due, ["user"])
        # Behind the channel the rows of several batches come at once, so the numbers may be others.
        assert_same_rows(history.state("most", n).toPandas(), due[["user"]], ["user"])
        # Nothing but what the micro-batch that came to the barrier has touched itself.
        moments.append(history.state("moments", n).toPandas()["_touched"].nunique())
    assert set(moments) <= {0, 1} and 0 in moments
    assert lost > 10
    # What expires costs no row of a snapshot: as many were written as users had rows, at most.
    wrote = sum(stage_of(row, "users")["rows_changed"] for row in rows)
    emitted, _ = expected(events, "1h")
    assert wrote <= len(emitted)


@pytest.mark.soak
def test_a_restore_goes_on_as_if_nothing_had_been(finished: Finished, spark: SparkSession) -> None:
    """With other key groups; then with another time to live, from the same checkpoint."""
    root, events = finished
    rows = completed(spark, root / "job")
    middle = next(r for r in rows if read_until(r) >= FILES // 2)
    files, origin = read_until(middle), str(middle["checkpoint_id"])
    run(spark, root, restore__from=origin, key_groups="7")
    emitted, states = expected(events, "1h")
    assert_same_rows(rows_of(root / "out").to_pandas(), emitted, ["user", "at", "n"])

    longer = absflow.Ttl("5h", domain="event")
    run(spark, root, longer, restore__from=origin)
    before, _ = expected(events, "1h")
    before = before.head(len(before) - len(expected(events, "1h", files)[0]))
    kept = visible(events, states[files], files, "1h")["user"]
    alive = {user: value for user, value in states[files].items() if user in set(kept)}
    behind, after = expected(events, "5h", files, alive)
    due = pd.concat([before, behind], ignore_index=True)
    assert not due.equals(emitted)
    assert_same_rows(rows_of(root / "out").to_pandas(), due, ["user", "at", "n"])
    # What had expired by the old rule does not come back by the new one, in SQL neither.
    last = completed(spark, root / "job")[-1]
    history = absflow.history(spark, str(root / "job"))
    state = history.state("users", last["checkpoint_id"]).toPandas()
    assert_same_rows(state, visible(events, after[-1], FILES, "5h"), ["user"])


def test_a_compacted_set_leaves_out_what_had_expired(spark: SparkSession, tmp_path: Path) -> None:
    at = pa.array([10, 20, 30, None], pa.timestamp("us", tz="UTC"))
    columns = {
        "set_id": pa.array([1, 1, 2, 2]),
        "checkpoint_id": pa.array([1, 1, 2, 2]),
        "key_group": pa.array([0, 0, 0, 0], pa.int32()),
        "op": ["upsert", "upsert", "upsert", "delete"],
        "k": ["a", "b", "c", "d"],
        "_touched": at,
    }
    path = str(tmp_path / "history")
    frame = spark.createDataFrame(pa.table(columns).to_pandas())
    frame = frame.withColumn("key_group", F.col("key_group").cast("int"))
    frame.write.format("delta").partitionBy("set_id").save(path)
    fact = Compacted(2, "users", -1_000_000_002, (1, 2))
    write_compacted_set(spark, path, ["k"], fact, [1, 2], expired_upto=20)
    found = rows_of(tmp_path / "history")
    left = found.filter(pc.equal(found["set_id"], fact.set_id))
    assert sorted(left["k"].to_pylist()) == ["c", "d"]


def test_what_has_expired_leaves_a_sink_of_state(finished: Finished, spark: SparkSession) -> None:
    """Though no row of the state history says so."""
    root, _ = finished
    spec = StageSpec(
        name="users",
        inputs=(),
        keys=pa.schema([("user", pa.int64())]),
        state=pa.schema([("n", pa.int64()), TOUCHED]),
        output=pa.schema([]),
        process={},
        key_groups=4,
        expiry=Expiry(Domain.EVENT, 3_600_000_000),
    )
    history = absflow.history(spark, str(root / "job"))
    ids = [row["checkpoint_id"] for row in completed(spark, root / "job")]
    states = {n: history.state("users", n).select("user", "n").toPandas() for n in ids}
    shrinks = [
        (base, n)
        for base, n in combinations(ids, 2)
        if set(states[base]["user"]) - set(states[n]["user"])
    ]
    place = StorageRoot.open(spark, str(root / "job"))
    for base, n in (shrinks[0], shrinks[-1], (ids[0], ids[-1])):
        found = state_rows(place, spec, "users", n, base)
        assert found is not None
        rows = found.frame.toPandas()
        assert_same_rows(advanced(states[base], rows, "user"), states[n], ["user"])
