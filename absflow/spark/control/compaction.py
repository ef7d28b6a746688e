"""A compaction carried out: the set that takes the place of several, written in one commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.columnar.expiry import TOUCHED
from absflow.errors import DamagedError, StorageError
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted, begin_of, end_of
from absflow.spark.worker.merged_sets import TASK_BYTES, MergedSet, merge_sets
from absflow.spark.worker.set_digests import read_digest, read_digests
from absflow.spark.worker.set_rows import SetRows, set_files
from absflow.storage import sql, state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import file_of
from absflow.storage.delta.transactions import UncommittedFiles
from absflow.storage.files import Files

__all__ = ["write_compacted_set"]

_Check = Callable[[Mapping[int, SetDigest]], None]

# Where rows are not of one number of key groups, each share reads all files, so that no row has to
# be sent anywhere; of more, Spark shuffles.
_MOST_SHARES = 16
# All compactions of a table are transactions of this one.
_APPLICATION = "absflow-compaction"


def write_compacted_set(
    spark: SparkSession,
    path: str,
    key: Sequence[str],
    fact: Compacted,
    there: Collection[int],
    expired_upto: int | None = None,
    key_groups: int = 0,
    check: _Check = lambda _: None,
) -> SetDigest:
    """Write the set of a compaction, unless it is there, and say its digest.

    Args:
        spark: the session.
        path: the state history.
        key: its key columns.
        fact: which sets are to be one.
        there: sets of the history as the plan saw it; one that is not among them has no row.
        expired_upto: state that was touched last up to then had expired at the checkpoint that the
            last of the sets is of, microseconds since 1970 (UTC), and is left out; None if none
            had.
        key_groups: how many key groups all rows of the table are of; 0 if that is not known, or
            they are of several numbers.
        check: gets the digests of the sets as they were read, before anything is committed, and
            raises :class:`DamagedError` if they are not what was written.

    Raises:
        StorageError: one of the sets has gone since, or another driver compacts at the same time.
        DamagedError: of ``check``.
    """
    files = Files(spark)
    # One version is looked at and read. A driver that hung, and has a newer one without knowing,
    # must not write what is left of sets that the newer one has compacted.
    found = set_files(spark, path, [*fact.replaces, fact.set_id])
    # Where a key group is too large for a task, its keys are shared out by their hash.
    if found is not None and found.bytes > 2 * key_groups * TASK_BYTES:
        key_groups = 0
    by_workers = found is not None and (key_groups or found.bytes <= _MOST_SHARES * TASK_BYTES)
    table = transactions.plain_table(spark, path, found.schema) if found and by_workers else None
    if found is None or table is None:
        _by_spark(spark, path, key, fact, there, expired_upto, check)
        return read_digest(spark, files, path, fact.set_id)
    sets = {set_id for set_id, _ in found.sizes.values()}
    _refuse_gone(path, fact, there, sets)
    if fact.set_id in sets:
        return read_digest(spark, files, path, fact.set_id)
    # Of two drivers that do this at once one commits: this transaction reads what the other's
    # writes, that of this application. A number that is there by now says the same.
    number = transactions.newest_of(spark, path, _APPLICATION) + 1
    merged = merge_sets(spark, files, table, key, fact, found, expired_upto, key_groups)
    _checked(files, path, merged, check)
    rows = UncommittedFiles(spark, table, merged.adds)
    note = {"set": fact.set_id, "replaces": list(fact.replaces)}
    if transactions.append_once(rows, path, _APPLICATION, number, note, if_empty=True) is None:
        raise StorageError(
            f"set {fact.set_id} of {path!r} was not written: another driver has compacted there "
            "since; retention looks again behind the next checkpoint"
        )
    return merged.digests[fact.set_id]


def _checked(files: Files, path: str, merged: MergedSet, check: _Check) -> None:
    """Leave no files of what came of damaged sets: retention tries again behind each checkpoint."""
    try:
        check(merged.digests)
    except DamagedError:
        for add in merged.adds:
            files.delete(file_of(path, add["add"]["path"]))
        raise


def _by_spark(
    spark: SparkSession,
    path: str,
    key: Sequence[str],
    fact: Compacted,
    there: Collection[int],
    expired_upto: int | None,
    check: _Check,
) -> None:
    """The same by Spark, which shuffles: of sets that are large, or that workers cannot read."""
    history = tables.read(spark, path)
    sets = tables.partition_values(history, "set_id")
    _refuse_gone(path, fact, there, sets)
    if fact.set_id in sets:
        return
    check(read_digests(SetRows(spark, Files(spark), path, fact.replaces)))
    rows = history.where(F.col("set_id").isin(*fact.replaces))
    rows = state_history.newest_rows(rows, key, fact.replaces)
    if begin_of(fact.set_id) == 0:  # with older sets below, a deletion still has something to hide
        rows = rows.where(F.col("op") == "upsert")
    if expired_upto is not None:
        touched = F.unix_micros(F.col(sql.quoted(TOUCHED.name)))
        rows = rows.where(F.coalesce(touched > expired_upto, F.lit(True)))
    ids = {"set_id": fact.set_id, "checkpoint_id": end_of(fact.set_id)}
    own = {name: F.lit(number).cast("long") for name, number in ids.items()}
    names = (own.get(n, F.col(sql.quoted(n))).alias(n) for n in history.columns)
    write = rows.select(*names).write.format("delta").mode("overwrite")
    write.option("replaceWhere", f"set_id = {fact.set_id}").save(path)


def _refuse_gone(path: str, fact: Compacted, there: Collection[int], now: Collection[int]) -> None:
    gone = {*fact.replaces} & {*there} - {*now}
    if gone:
        raise StorageError(
            f"sets {sorted(gone)} of {path!r} were there when retention planned to compact "
            f"{list(fact.replaces)}, and are gone; another driver runs retention, or somebody has "
            "deleted rows of this table, which only absflow may"
        )
