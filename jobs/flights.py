"""How much of an aircraft's delay is inherited, and what the weather has to do with it.

::

    spark-submit --properties-file conf/flights.conf jobs/flights.py

A year of departures from New York and the weather there come in file by file::

    legs ----> [ aircraft ] ==channel==> [ airports ] ----> delays (a Delta table)
    weather ----------------------------------^

    departures ----> [ hourly ] ----> hours (another)

Stage ``aircraft`` follows each aircraft from leg to leg; stage ``airports`` gives each leg the
weather of its hour. Stage ``hourly`` counts departures by the hour in which they really left, in
event time: legs come in the order of the timetable, so some are late. While the stages run the
whole job is checkpointed every few seconds. At the end the sinks, the late rows and the state of
all stages are compared with what plain pandas makes of the same files, and the history of the
checkpoints is shown.

Killed at any moment and started again, the job goes on where it was. Started again after its end,
it has nothing left to read and only compares.

Its own settings, beside ``spark.absflow.*``:

- ``spark.flights.data`` (default ``data/flights``): where the Parquet files are, or will be written
- ``spark.flights.sink`` (default ``data/flights/delays``): the Delta table
- ``spark.flights.hourly`` (default ``data/flights/hourly``): the other Delta table
- ``spark.flights.sink.mode`` (default ``immediate``): or ``on-checkpoint``
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta import DeltaTable
from flights_data import LEGS, WEATHER, prepare
from flights_oracle import differences, expected, expected_hours
from flights_stages import (
    AIRCRAFT_OUTPUT,
    AIRCRAFT_STATE,
    AIRPORTS_OUTPUT,
    AIRPORTS_STATE,
    HOURLY_OUTPUT,
    HOURLY_STATE,
    count_departures,
    end_hour,
    legs_at_airport,
    rotate,
    weather_at_airport,
)
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import absflow

if TYPE_CHECKING:
    from absflow.spark.control.progress import Progress
    from absflow.spark.control.run import Run

EXAMPLE = "N14228"


def main() -> int:
    """Run the job to its end, and say whether its results are right; the exit code."""
    console = Console(highlight=False)
    spark = SparkSession.builder.appName("flights").getOrCreate()
    try:
        return show(spark, console)
    except absflow.AbsflowError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    finally:
        spark.stop()


def show(spark: SparkSession, console: Console) -> int:
    """The whole performance; the exit code."""
    data = spark.conf.get("spark.flights.data", "data/flights")
    sink = spark.conf.get("spark.flights.sink", "data/flights/delays")
    prepare(data)
    hourly = spark.conf.get("spark.flights.hourly", "data/flights/hourly")
    mode = spark.conf.get("spark.flights.sink.mode", "immediate")
    run = declare(spark, data, sink, hourly, mode).start()
    follow(run, console)

    storage = spark.conf.get("spark.absflow.storage.path")
    history = absflow.history(spark, storage)
    console.print(checkpoint_table(history.checkpoints().collect()))
    changes = history.changes("aircraft", key={"tailnum": EXAMPLE}).drop("op", "tailnum")
    title = f'history.changes("aircraft", key={{"tailnum": "{EXAMPLE}"}})'
    console.print(plain_table(title, changes.columns, changes.collect()))

    hours = spark.read.format("delta").load(hourly)
    worst = hours.orderBy(F.desc("minutes"), "hour", "origin").limit(3)
    console.print(plain_table("the worst hours, in sink hours", hours.columns, worst.collect()))

    failed = False
    for said, wrong in (
        verify(spark, history, run.finished_checkpoint, data, sink),
        verify_hours(spark, history, run.finished_checkpoint, data, hours, storage),
    ):
        console.print(said, style="red" if wrong else "green", soft_wrap=True)
        for line in wrong:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        failed |= bool(wrong)
    return 1 if failed else 0


def declare(spark: SparkSession, data: str, sink: str, hourly: str, mode: str) -> absflow.Job:
    """The job: three sources, three stages, two sinks."""
    # The workers have absflow installed, but not the folder of this script.
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("flights_stages.py")))

    def files(name: str, columns: str) -> DataFrame:
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return reader.parquet(f"{data}/{name}")

    job = absflow.Job("flights", spark)
    legs = job.source("legs", files("legs", LEGS), bounded=True)
    weather = job.source("weather", files("weather", WEATHER), bounded=True)
    aircraft = job.stage(
        "aircraft",
        legs,
        key="tailnum",
        state=AIRCRAFT_STATE,
        output=AIRCRAFT_OUTPUT,
        process=rotate,
    )
    airports = job.stage(
        "airports",
        [aircraft, weather],
        key="origin",
        state=AIRPORTS_STATE,
        output=AIRPORTS_OUTPUT,
        process={"aircraft": legs_at_airport, "weather": weather_at_airport},
    )
    job.sink("delays", airports, absflow.DeltaSink(sink), mode=mode)

    departures = job.source(
        "departures",
        departed(files("legs", LEGS)),
        bounded=True,
        event_time="at",
        watermark=absflow.Watermark(delay="6h", by="origin"),
    )
    hours = job.stage(
        "hourly",
        departures,
        key=["origin", "hour"],
        state=HOURLY_STATE,
        output=HOURLY_OUTPUT,
        process=count_departures,
        on_timer=end_hour,
    )
    job.sink("hours", hours, absflow.DeltaSink(hourly), mode=mode)
    return job


def departed(legs: DataFrame) -> DataFrame:
    """The legs that left, with the time and the hour in which they did."""
    at = F.expr("sched + make_interval(0, 0, 0, 0, 0, dep_delay)")
    left = legs.where("dep_delay IS NOT NULL").withColumn("at", at)
    hour = F.window("at", "1 hour")["start"]
    return left.select("leg_id", "origin", "dep_delay", "at", hour.alias("hour"))


def follow(run: Run, console: Console) -> None:
    """Wait for the end, with one line that changes, or a line every 5 s if that cannot be."""
    if console.is_terminal:
        with console.status("starting") as status:
            while not run.await_termination(timeout=0.5):
                status.update(progress_line(run.progress()))
    else:
        while not run.await_termination(timeout=5):
            console.print(progress_line(run.progress()), soft_wrap=True)
    console.print(progress_line(run.progress()), soft_wrap=True)


def progress_line(progress: Progress) -> str:
    """How far the job is."""
    parts = [f"checkpoint {progress.checkpoint_id or '-'} ({progress.completed} completed)"]
    for name, stage in progress.stages.items():
        behind = sum(backlog.rows for backlog in stage.load.backlogs or ())
        parts.append(
            f"{name}: batch {max(stage.batch_id, 0)}, {stage.total_rows:,} rows, "
            f"{stage.rows_per_second:,.0f}/s, busy {stage.load.busy:.0%}"
            + (f", {behind:,} rows behind" if behind else "")
        )
    return " | ".join(parts)


def verify(
    spark: SparkSession, history: absflow.History, checkpoint: int | None, data: str, sink: str
) -> tuple[str, list[str]]:
    """Compare sink and final state with plain pandas; the verdict, and what is wrong."""
    answer = expected(data)
    airports = history.state("airports", checkpoint)
    compared = [
        ("sink", spark.read.format("delta").load(sink), answer.resolved, ["leg_id"]),
        ("aircraft", history.state("aircraft", checkpoint), answer.aircraft, ["tailnum"]),
        (
            "airports, totals",
            airports.selectExpr("origin", "inline(totals)"),
            answer.totals,
            ["origin", "condition"],
        ),
        (
            "airports, waiting",
            airports.selectExpr("origin", "inline(waiting)"),
            answer.waiting,
            ["leg_id"],
        ),
    ]
    wrong = compare(compared)
    if wrong:
        return "sink and state are not what plain pandas makes of the same files:", wrong
    return (
        f"sink: {len(answer.resolved):,} rows, equal row for row to plain pandas; so is the state: "
        f"{len(answer.aircraft):,} aircraft, {len(answer.totals)} totals, "
        f"{len(answer.waiting):,} legs that wait for weather",
        [],
    )


def verify_hours(
    spark: SparkSession,
    history: absflow.History,
    checkpoint: int | None,
    data: str,
    hours: DataFrame,
    storage: str,
) -> tuple[str, list[str]]:
    """Compare the hours and the late departures likewise; at the end no hour is open."""
    answer = expected_hours(data)
    open_hours = history.state("hourly", checkpoint).select(hours.columns)
    compared = [
        ("hourly", hours, answer.hours, ["origin", "hour"]),
        ("hourly, open", open_hours, answer.hours[:0], ["origin", "hour"]),
    ]
    path = f"{storage}/late/departures"
    late = DeltaTable.isDeltaTable(spark, path)
    if late:
        # After a restore they were late again.
        rows = spark.read.format("delta").load(path).drop("_attempt", "_epoch").distinct()
        compared.append(("late departures", rows, answer.late, ["leg_id"]))
    wrong = compare(compared)
    if len(answer.late) and not late:
        wrong.append(f"late departures: there is no table {path}")
    if wrong:
        return "hours and late departures are not what plain pandas makes of the same files:", wrong
    return (
        f"hourly: {len(answer.hours):,} hours of airports, equal to plain pandas, and so are the "
        f"{len(answer.late):,} departures that came late",
        [],
    )


def compare(compared: Iterable[tuple[str, DataFrame, DataFrame, list[str]]]) -> list[str]:
    """What is wrong with the rows of the job: of each what they are, they, what is due, its key."""
    return [
        f"{what}: {line}"
        for what, actual, due, key in compared
        for line in differences(actual.toArrow().to_pandas(), due, key)
    ]


def checkpoint_table(checkpoints: Iterable[Row]) -> Table:
    """One line per checkpoint; what its stages reported is added up."""
    names = ["id", "status", "triggered", "ms", "keys", "changed", "bytes", "held rows"]
    summed = ("keys_total", "rows_changed", "bytes_changed", "held_rows")
    rows = []
    for row in checkpoints:
        stages = row.stages or []
        sums = (sum(stage[name] or 0 for stage in stages) for name in summed)
        said = row.status if row.reason is None else f"{row.status} {row.reason}"
        at = f"{row.triggered_at:%H:%M:%S}"
        rows.append((row.checkpoint_id, said, at, row.duration_ms, *sums))
    return plain_table("history.checkpoints()", names, rows)


def plain_table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Rows as they are, numbers to the right; narrow enough for 80 columns."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    rows = [list(row) for row in rows]
    for place, name in enumerate(names):
        number = all(isinstance(row[place], int | None) for row in rows)
        justify = "right" if number else "left"
        table.add_column(name.replace("_", " "), justify=justify)
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if hasattr(value, "strftime"):
        return value.strftime("%m-%d\N{NO-BREAK SPACE}%H:%M")
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
