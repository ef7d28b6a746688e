"""A checkpoint becomes the beginning of a new attempt: same results, whatever its shape."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from chain import chain, check, conf, expected, run
from deltalake import DeltaTable
from diamond import OUTPUT, ROWS, STATE, expected_state, read_source, to_group, write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, durable_files, files_read, rows_of, stage_of
from session import settings, shuffle_partitions

import absflow
from absflow.facts.find import find_checkpoint
from absflow.protocol.checkpoints import ChannelState
from absflow.protocol.recovery.matching import StageFit
from absflow.spark.start.restore_files import missing_files
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 5


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two stages that has run to its end, with several checkpoints."""
    root = tmp_path_factory.mktemp("restore")
    write_source(root / "a", files=FILES, rows=200, seed=3)
    run(spark, root)
    assert len(completed(spark, root / "job")) >= 3
    return root


def flip_a_byte(folder: Path) -> None:
    """Damage the newest state file of Spark's own checkpoint."""
    newest = sorted(folder.rglob("state/0/*/*.delta"), key=lambda p: p.stat().st_mtime)[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)


def test_every_checkpoint_gives_the_golden_result(spark: SparkSession, root: Path) -> None:
    """Each checkpoint in turn, in another shape, with Spark's own checkpoints damaged or gone.

    The stages are joined by a direct edge and by a channel in turn, and by a channel in the last
    attempt, however many checkpoints there are: tests below look for its rows in the channel.

    From the newest to the oldest; `latest` then means what has come of the oldest.
    """
    ids = [row["checkpoint_id"] for row in completed(spark, root / "job")]
    shapes = [("4", 2), ("7", 3), ("1", 1), ("200", 7)]
    for number, checkpoint_id in enumerate(reversed(ids), len(ids) % 2):
        if number % 2:
            shutil.rmtree(root / "job" / "work")
        else:
            flip_a_byte(root / "job" / "work")
        groups, parts = shapes[number % len(shapes)]
        edges = "channel" if number % 2 else "direct"
        shape = {"key_groups": groups, "edges": edges}
        with shuffle_partitions(spark, parts):
            finished = run(spark, root, restore__from=str(checkpoint_id), **shape)
        check(spark, root, finished, FILES)
        assert not list((root / "job" / "work").rglob("restored"))  # the copy of the state
        rows = completed(spark, root / "job")
        first = next(r for r in rows if r["checkpoint_id"] > checkpoint_id and r["attempt"] > 1)
        assert first["checkpoint_id"] > max(ids)
    with settings(spark, conf(root, restore__from="latest")):
        planned = chain(spark, root).plan_restore()
    assert planned is not None
    assert (planned.origin.checkpoint_id, planned.problems) == (finished, ())
    moved = (root / "job").rename(root / "moved")
    with settings(spark, conf(root, restore__from="latest", storage__path=str(moved))):
        again = chain(spark, root).plan_restore()
    moved.rename(root / "job")
    assert again is not None
    assert (again.origin.checkpoint_id, again.fork, again.problems) == (finished, False, ())


def test_a_fork_and_its_original_do_not_see_each_other(spark: SparkSession, root: Path) -> None:
    """A fork begins at the cut, writes under its own root, and both end as they should."""
    before = durable_files(root / "job")
    middle = completed(spark, root / "job")[1]
    fork = root / "fork"
    shutil.copytree(root / "a", fork / "a", dirs_exist_ok=True)
    more = conf(root, restore__from=f"{root / 'job'}#{middle['checkpoint_id']}")
    more["storage.path"] = str(fork / "job")
    with settings(spark, more):
        with pytest.raises(absflow.RestoreError, match="give the fork a sink of its own"):
            chain(spark, root).start()
        assert not (fork / "job" / "attempts").exists()
        run = chain(spark, root, sink=fork / "sink").start()
        assert run.await_termination(timeout=300)
    assert run.finished_checkpoint is not None
    changed = before.items() ^ durable_files(root / "job").items()
    assert sorted(path for path, _ in changed) == []
    history = absflow.history(spark, str(fork / "job"))
    due = expected(root, FILES)
    for stage, key in (("left", "k"), ("tally", "g")):
        assert_same_rows(history.state(stage).toPandas(), due[stage], [key])
    read = read_source(root / "a", files_read(middle, "left", "a"))["id"]
    sink = rows_of(fork / "sink").to_pandas()
    rest = due["sink"][~due["sink"]["id"].isin(read)]
    assert_same_rows(sink, rest, ["id"])


def test_a_foreign_commit_to_the_sink_is_not_undone(spark: SparkSession, root: Path) -> None:
    """Rows of others since the checkpoint: refused, naming the commit; nothing is changed."""
    older = completed(spark, root / "job")[0]["checkpoint_id"]
    sink = str(root / "sink")
    spark.sql(f"OPTIMIZE delta.`{sink}`")
    with settings(spark, conf(root, restore__from=str(older))):
        planned = chain(spark, root).plan_restore()
        assert planned is not None
        assert planned.problems == ()
        spark.sql(f"DELETE FROM delta.`{sink}` WHERE id = 3")
        attempts = spark.read.format("delta").load(str(root / "job" / "attempts")).count()
        with pytest.raises(absflow.RestoreError, match=r"not this job's since .* \(DELETE, "):
            chain(spark, root).start()
        assert spark.read.format("delta").load(str(root / "job" / "attempts")).count() == attempts
    spark.sql(f"RESTORE TABLE delta.`{sink}` TO VERSION AS OF {planned.sinks['out'].now}")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("4711", "checkpoint 4711 was never triggered; completed are"),
        ("/nowhere#1", "'file:/nowhere' is not the storage root of a job"),
    ],
)
def test_what_is_not_there_is_refused(
    spark: SparkSession, root: Path, target: str, message: str
) -> None:
    """A checkpoint or a root that does not exist."""
    with settings(spark, conf(root, restore__from=target)):
        with pytest.raises(absflow.NotFoundError, match=message):
            chain(spark, root).start()


def changed_job(spark: SparkSession, root: Path, sink: Path) -> absflow.Job:
    """The chain: a renamed source, a renamed and reshaped stage, a migrated key, a new stage."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    rows = job.source("rows", frame.parquet(str(root / "a")), bounded=True, renamed_from="a")
    first = job.stage(
        "first",
        rows,
        key="k",
        state=STATE + ", note string",
        output=OUTPUT,
        process=with_note,
        renamed_from="left",
        defaults={"note": "restored"},
    )
    tally = job.stage(
        "tally", first, key="v", state="n long", output=OUTPUT, process=count, migrate=by_parity
    )
    job.stage("more", first, key="g", state=STATE, output=OUTPUT, process=to_group)
    job.sink("other", tally, absflow.DeltaSink(str(sink)))
    return job


def with_note(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """:func:`to_group`, with one column more."""
    result = to_group(rows, state.drop_columns(["note"]), context)
    notes = [n or "new" for n in state["note"].to_pylist()]
    return absflow.Result(output=result.output, state=result.state.append_column("note", [notes]))


def count(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Counts rows per key."""
    counts = pd.Series(context.key_of_row).value_counts().reindex(range(state.num_rows))
    before = [n or 0 for n in state["n"].to_pylist()]
    return absflow.Result(output=rows, state=state.set_column(1, "n", [before + counts.to_numpy()]))


def by_parity(state: pa.Table) -> pa.Table:
    """Another key, and one column of what there was."""
    return pa.table({"v": pa.array([1000 + g for g in state["g"].to_pylist()]), "n": state["n"]})


def test_upgrade(spark: SparkSession, root: Path) -> None:
    """Renamed, a column added, a key migrated, a stage added: named in the plan, then done."""
    middle = completed(spark, root / "job")[1]
    where = root / "upgraded"
    more = conf(root, restore__from=f"{root / 'job'}#{middle['checkpoint_id']}")
    more["storage.path"] = str(where / "job")
    with settings(spark, more):
        job = changed_job(spark, root, where / "sink")
        planned = job.plan_restore()
        assert planned is not None
        assert planned.problems == ()
        assert planned.differences == (
            "stage 'left' is now 'first'",
            "stage 'first' (was 'left'): state column 'note' (string) is added",
            "stage 'tally': its state is migrated by its own function",
            "stage 'more' is new: it begins without state",
            "source 'a' is now 'rows'",
        )
        run = job.start()
        assert run.await_termination(timeout=300)
    history = absflow.history(spark, str(where / "job"))
    first = history.state("first").toPandas()
    assert_same_rows(first, expected_state(read_source(root / "a", FILES), "k"), ["k"])
    then = read_source(root / "a", files_read(middle, "left", "a"))
    restored = first[first["note"] == "restored"]
    assert_same_rows(restored[["k"]], expected_state(then, "k")[["k"]], ["k"])
    tally = dict(history.state("tally").toPandas()[["v", "n"]].itertuples(index=False))
    migrated = expected_state(then.assign(g=then["id"] % 7), "g")
    assert {v: n for v, n in tally.items() if v >= 1000} == {
        1000 + g: n for g, n in zip(migrated["g"], migrated["n"], strict=True)
    }
    assert sum(tally.values()) == len(read_source(root / "a", FILES))
    rest = expected(root, FILES)["sink"]
    rest = rest[~rest["id"].isin(then["id"])]
    more_state = history.state("more").toPandas()
    assert_same_rows(more_state[["g", "n"]], _counts(rest), ["g"])


def _counts(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("g").size().reset_index(name="n")


def refused(spark: SparkSession, root: Path, job: absflow.Job, more: Mapping[str, str]) -> str:
    """The error of a start that must be refused."""
    with settings(spark, {**conf(root, restore__from="latest"), **more}):
        with pytest.raises(absflow.RestoreError) as raised:
            job.start()
    return str(raised.value)


def test_what_does_not_fit_is_refused(spark: SparkSession, root: Path) -> None:
    """Dropped state, another key, a narrower column, a column without a default."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    job.stage(
        "left",
        a,
        key="id",
        state="n int, total long, newest long, ordered boolean, more long",
        output=OUTPUT,
        process=to_group,
    )
    keys = stage_of(completed(spark, root / "job")[-1], "tally")["keys_total"]
    assert refused(spark, root, job, {}).partition("nothing was changed: ")[2].split("; ") == [
        "stage 'left': the key was k string, is id int64",
        "give the stage a migration (migrate=...) that makes the new key, or the old key",
        "stage 'left': state column 'n' was int64, is int32, which does not hold every value of it",
        "declare a migration (migrate=...), or keep the type",
        "stage 'left': state column 'more' is new and has no default",
        "declare one (defaults={'more': ...}), or a migration",
        f"the checkpoint has {keys} keys of stage 'tally', which the job does not have",
        "if it was renamed, declare that (renamed_from=...), and if its state may go, set "
        "spark.absflow.restore.allow-dropped-state to true",
    ]


def problems(spark: SparkSession, root: Path, checkpoint_id: object) -> tuple[str, ...]:
    """What a plan says against a restore."""
    with settings(spark, conf(root, restore__from=str(checkpoint_id))):
        planned = chain(spark, root).plan_restore()
    assert planned is not None
    return planned.problems


@contextmanager
def away(path: Path) -> Iterator[None]:
    """A file that is not there for a while."""
    path.rename(path.parent / "away")
    try:
        yield
    finally:
        (path.parent / "away").rename(path)


def test_a_restore_is_refused_before_anything_is_changed(spark: SparkSession, root: Path) -> None:
    """Files of a set, or a whole set, are gone: the plan names them, and what would do."""
    rows = completed(spark, root / "job")
    newest = rows[-1]["checkpoint_id"]
    table = root / "job" / "state" / "left"
    first, *_, last = stage_of(rows[-1], "left")["lineage"]
    older = max(r["checkpoint_id"] for r in rows if last not in stage_of(r, "left")["lineage"])
    assert problems(spark, root, newest) == ()
    due = r"the state of stage 'left': 1 of \d files of set {} are gone, 'file:.*' first; "
    with away(next((table / f"set_id={last}").glob("*.parquet"))):
        before = durable_files(root / "job"), durable_files(root / "sink")
        with (
            settings(spark, conf(root, restore__from=str(newest))),
            pytest.raises(absflow.RestoreError, match=f"nothing was changed: {due.format(last)}"),
        ):
            chain(spark, root).start()
        assert (durable_files(root / "job"), durable_files(root / "sink")) == before
        (problem,) = problems(spark, root, newest)
        assert f"or restore checkpoint {older}, which does not need it" in problem
        assert not any("are gone" in words for words in problems(spark, root, older))
    with away(next((table / f"set_id={first}").glob("*.parquet"))):
        (problem,) = problems(spark, root, newest)
        assert re.fullmatch(due.format(first) + "bring back what is gone: every other .*", problem)
    version = DeltaTable(table).version()
    DeltaTable(table).delete(f"set_id = {last}")
    (problem,) = problems(spark, root, newest)
    assert f"state/left' has no set {last}; " in problem
    DeltaTable(table).restore(version)
    assert problems(spark, root, newest) == ()


def test_rows_in_channels_that_are_gone_are_named(spark: SparkSession, root: Path) -> None:
    """In flight or to be published: a file of the channel, one that it named, its epochs, it."""
    storage = StorageRoot.open(spark, str(root / "job"))
    row = completed(spark, root / "job")[-1]
    found = find_checkpoint(spark, storage.files, storage.layout.root, row["checkpoint_id"])
    channel = root / "job" / "channels" / "left" / f"attempt={row['attempt']}"
    folder = min(channel.glob("_epoch=*"))
    epoch = int(folder.name.removeprefix("_epoch="))

    def gone(epoch: int, *files: str, owed: Any = None) -> list[str]:
        state = ChannelState("tally", "left", row["attempt"], "", epoch, 0, files, 5, 0)
        fits = [StageFit("tally", "tally", in_flight=(("left", state),))]
        return missing_files(storage, found, fits, owed or {})

    file = next(folder.glob("*.parquet"))
    assert gone(epoch, f"{folder.name}/{file.name}") == []
    words = "5 rows in flight from 'left' to stage 'tally' are gone: "
    (problem,) = gone(epoch, "other.parquet")
    assert f"{words}1 files are not in the channel any more, 'other.parquet' first; " in problem
    (problem,) = gone(found.cut + 1)
    assert f"{words}'file:{channel}' has no epoch from {found.cut + 1} to " in problem
    owed = {"out": ("left", epoch - 1)}
    assert gone(epoch, owed=owed) == []
    with away(file):
        flying, unpublished = gone(epoch, owed=owed)
    assert f"{words}1 files of the channel, 'file:{file}' first; " in flying
    assert f"rows that sink 'out' has yet to publish, up to checkpoint {found.cut}," in unpublished
    (problem,) = gone(epoch, owed={"out": ("renamed", 0)})
    assert "are gone: could not read table" in problem
