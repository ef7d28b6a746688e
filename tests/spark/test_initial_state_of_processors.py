"""Initial state: what a StatefulProcessor makes of it on Spark and on absflow, and that only once.

Each call of ``handleInitialState`` leaves a line in a file, so that they can be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from reading import assert_same_rows, completed, rows_of
from session import settings, spark_conf
from test_moved_processors import conf

import absflow
from absflow.errors import GraphError, ProcessError
from absflow.spark.control import loop
from absflow.storage.delta import transactions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OUTPUT = "account string, what string, total bigint, names string"
NAMES = [column.split()[0] for column in OUTPUT.split(", ")]
FORMS = {True: "stateful-processor-in-pandas", False: "stateful-processor"}
# Of "cy" no row comes; "ada" has several; of "dan" nothing is kept.
INITIAL = [("ada", 100, "A"), ("bob", 20, "B"), ("cy", 3, "C"), ("dan", 0, "D"), ("ada", 50, "a")]


class Killed(BaseException):
    """As if the process were gone."""


class Accounts(StatefulProcessor):
    """Totals by account, and the names that an account began with."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total bigint")
        self.names = handle.getListState("names", "name string")

    def begins(self, key: Any, rows: list[tuple[int, str]]) -> None:
        with self.calls.open("a") as file:
            file.write(f"{key[0]}\n")
        rows = [row for row in rows if row[0]]
        if rows:
            (before,) = self.total.get() or (0,)
            self.total.update((before + sum(total for total, _ in rows),))
            self.names.appendList([(name,) for _, name in rows])

    def adds(self, key: Any, amounts: list[int]) -> tuple[Any, ...]:
        (before,) = self.total.get() or (0,)
        self.total.update((before + sum(amounts),))
        names = ",".join(sorted(name for (name,) in self.names.get()))
        return (key[0], "rows", before + sum(amounts), names)


class OfRows(Accounts):
    """For transformWithState."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.begins(key, [(initialState.total, initialState.name)])

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(*NAMES)(*self.adds(key, [row.amount for row in rows]))


class OfFrames(Accounts):
    """For transformWithStateInPandas."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert list(initialState.columns) == ["account", "total", "name"]
        self.begins(key, list(zip(initialState["total"], initialState["name"], strict=True)))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        amounts = pd.concat(list(rows))["amount"].tolist()
        yield pd.DataFrame([self.adds(key, amounts)], columns=NAMES)


class Expires(OfRows):
    """Sets a timer for a time that has come, for each account that it begins with."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        super().handleInitialState(key, initialState, timerValues)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(*NAMES)(key[0], "timer", 0, "")


def write(root: Path, number: int, *rows: tuple[str, int]) -> None:
    folder = root / "payments"
    folder.mkdir(exist_ok=True)
    accounts, amounts = zip(*rows, strict=True)
    table = pa.table({"account": accounts, "amount": pa.array(amounts, pa.int64())})
    pq.write_table(table, folder / f"{number}.parquet")


def frames(spark: SparkSession, root: Path) -> tuple[DataFrame, DataFrame]:
    reader = spark.readStream.schema("account string, amount bigint")
    rows = reader.option("maxFilesPerTrigger", 1).parquet(str(root / "payments"))
    return rows, spark.createDataFrame(INITIAL, "account string, total int, name string")


def on_spark(spark: SparkSession, root: Path, processor: Accounts, in_pandas: bool) -> pd.DataFrame:
    rows, initial = frames(spark, root)
    grouped = rows.groupBy("account")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    begun = initial.groupBy("account")
    with spark_conf(spark, conf()):
        made = transform(processor, OUTPUT, "append", "None", begun)
        writer = made.writeStream.format("delta").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(root / "work"))
        assert writer.start(str(root / "spark")).awaitTermination(400)
    return rows_of(root / "spark").to_pandas()


def start(
    spark: SparkSession,
    root: Path,
    processor: Accounts,
    *,
    initial: DataFrame | None = None,
    in_pandas: bool = False,
    time_mode: str = "None",
    **more: str,
) -> pd.DataFrame:
    given = {"storage.path": str(root / "job"), "key-groups": "3"}
    with settings(spark, given | {name.replace("_", "."): more[name] for name in more}):
        job = absflow.Job("accounts", spark)
        rows, begins = frames(spark, root)
        stage = job.stage(
            "accounts",
            job.source("payments", rows, bounded=True),
            key="account",
            output=OUTPUT,
            process=processor,
            form=FORMS[in_pandas],
            time_mode=time_mode,
            initial_state=begins if initial is None else initial,
        )
        job.sink("rows", stage, absflow.DeltaSink(str(root / "absflow")))
        assert job.start().await_termination(timeout=400)
    return rows_of(root / "absflow").to_pandas()


def calls(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []


@pytest.mark.soak
@pytest.mark.parametrize("in_pandas", [False, True])
def test_it_is_what_it_is_on_spark_and_only_once(
    spark: SparkSession, tmp_path: Path, in_pandas: bool
) -> None:
    """Also for an account of which no row comes; no later start calls it again."""
    write(tmp_path, 0, ("ada", 1), ("eve", 5), ("ada", 2))
    write(tmp_path, 1, ("ada", 10), ("bob", -1), ("dan", 7))
    kind = OfFrames if in_pandas else OfRows
    due = on_spark(spark, tmp_path, kind(tmp_path / "calls of spark"), in_pandas)
    assert {*due["names"]} == {"", "A,a", "B"}
    file = tmp_path / "calls"
    found = start(spark, tmp_path, kind(file), in_pandas=in_pandas)
    # Of a bounded source absflow may read both files in one micro-batch; the last row is the same.
    assert_same_rows(found, due, ["account", "total"])
    called = calls(file)
    assert called == calls(tmp_path / "calls of spark")
    assert called == sorted(["ada"] * (1 if in_pandas else 2) + ["bob", "cy", "dan"])
    history = absflow.history(spark, str(tmp_path / "job"))
    begun = {row.account: row.names for row in history.state("accounts", 1).collect()}
    assert {a: sorted(n.name for n in names) for a, names in begun.items()} == {
        "ada": ["A", "a"],
        "bob": ["B"],
        "cy": ["C"],
    }
    write(tmp_path, 2, ("cy", 4))
    start(spark, tmp_path, kind(file), in_pandas=in_pandas)
    again = start(spark, tmp_path, kind(file), in_pandas=in_pandas, restore_from="1")
    assert calls(file) == called
    (cy,) = again[again["account"] == "cy"].to_dict("records")
    assert (cy["total"], cy["names"]) == (7, "C")
    assert len(again) == len(due) + 1


@pytest.mark.soak
def test_kills_before_and_after_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its savepoint has completed it is made anew; after that it is not made again."""
    write(tmp_path, 0, ("ada", 1), ("cy", 1))
    file, append = tmp_path / "calls", transactions.append_once

    def dying(frame: Any, path: str, *args: Any, **named: Any) -> None:
        if path.endswith("/checkpoints"):
            raise Killed
        append(frame, path, *args, **named)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "append_once", dying)
        with pytest.raises(Killed):
            start(spark, tmp_path, OfRows(file))
    once = calls(file)
    assert completed(spark, tmp_path / "job") == []
    with monkeypatch.context() as patch:
        patch.setattr(loop, "prepare_attempt", killed)
        with pytest.raises(Killed):
            start(spark, tmp_path, OfRows(file))
    assert calls(file) == sorted([*once, *once])
    (savepoint,) = completed(spark, tmp_path / "job")
    assert (savepoint["type"], savepoint["stages"][0]["keys_total"]) == ("SAVEPOINT", 3)
    found = start(spark, tmp_path, OfRows(file))
    assert calls(file) == sorted([*once, *once])
    assert found.set_index("account")["total"].to_dict() == {"ada": 151, "cy": 4}


def test_its_timers_fire_in_the_first_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, 0, ("ada", 1))
    processor = Expires(tmp_path / "calls")
    found = start(spark, tmp_path, processor, time_mode="ProcessingTime", restore_from="latest")
    fired = found[found["what"] == "timer"]["account"]
    assert sorted({*fired}) == ["ada", "bob", "cy", "dan"]
    assert len(found[found["what"] == "rows"]) == 1


def test_what_it_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is written, but for an error of the handler, which leaves no savepoint."""
    write(tmp_path, 0, ("ada", 1))
    rows, begins = frames(spark, tmp_path)
    file = tmp_path / "calls"
    for frame, words in (
        (rows, "is a streaming DataFrame"),
        (begins.drop("account"), "the key column 'account' is expected, once"),
        (begins.selectExpr("total AS account", "name"), "is int, which string does not hold"),
    ):
        with pytest.raises(GraphError, match=f"stage 'accounts': .*initial_state.*{words}"):
            start(spark, tmp_path, OfRows(file), initial=frame)
    assert not (tmp_path / "job").exists()
    with pytest.raises(ProcessError, match=r"input 'initial state', .*PySparkAttributeError"):
        start(spark, tmp_path, OfRows(file), initial=begins.drop("total"))
    assert completed(spark, tmp_path / "job") == []
