"""What a restore brings to a stage: state as RESTORE pages, rows in flight as DATA pages."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.digest import signed
from absflow.columnar.expiry import TOUCHED
from absflow.columnar.pages import PageKind
from absflow.columnar.piece_files import StateFiles
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.spec import StageSpec
from absflow.columnar.timers import Domain
from absflow.facts.damage import ChannelFile, part_error
from absflow.facts.explained import check_sets
from absflow.facts.spark_reader import SparkStorageReader
from absflow.graph.nodes import Upgrade
from absflow.protocol.checkpoints import ChannelState, SetDigest
from absflow.protocol.event_time import to_datetime
from absflow.protocol.recovery.matching import StageFit
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.stream.pages import PAGE_TYPE, data_pages, write_pages
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.set_digests import read_digests
from absflow.spark.worker.set_rows import SetRows
from absflow.storage import state_history
from absflow.storage.delta import tables
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

__all__ = ["bring_in_flight", "check_state", "lineage_rows", "state_pages"]


def state_pages(
    root: StorageRoot,
    spec: StageSpec,
    upgrade: Upgrade,
    plan: RestorePlan,
    fit: StageFit,
    page_bytes: int,
    files: StateFiles,
    moved_ms: int = 0,
) -> DataFrame:
    """The stage's state as RESTORE pages; an empty one besides, for a batch must have a row.

    What waits for processing time is to wait for one that is so much later (``moved_ms``).
    """
    first = {
        "key_group": F.lit(0),
        "kind": F.lit(PageKind.RESTORE.value),
        "input": F.lit(""),
        "checkpoint_id": F.lit(plan.origin.checkpoint_id),
        "payload": F.lit(b""),
    }
    pages = root.spark.range(1).select(
        *(first.get(f.name, F.lit(0)).cast(f.dataType).alias(f.name) for f in PAGE_TYPE.fields)
    )
    if fit.source is None or not fit.lineage:
        return pages
    defaults = dict(upgrade.defaults)
    if TOUCHED.name in defaults:
        defaults[TOUCHED.name] = _clock(spec, plan, fit)
    packer = StatePacker(
        stage=fit.stage,
        keys=spec.keys,
        state=spec.state,
        key_groups=spec.key_groups,
        checkpoint_id=plan.origin.checkpoint_id,
        lineage=fit.lineage,
        defaults=defaults,
        migrate=upgrade.migrate if fit.migrate else None,
        page_bytes=page_bytes,
        files=files,
        expired_upto=fit.expired_upto,
        moved_us=moved_ms * 1_000,
        expires_by_clock=spec.expires_in(Domain.PROCESSING),
    )
    rows, own = lineage_rows(root, plan, fit), root.layout.root
    if not fit.migrate:
        return pages.union(rows.map(packer.pack, PAGE_TYPE, own))
    live = state_history.live_rows(rows.frame(), plan.keys[fit.source], fit.lineage)
    return pages.union(map_in_arrow(root.files.reached(live, own), packer.pack, PAGE_TYPE))


def _clock(spec: StageSpec, plan: RestorePlan, fit: StageFit) -> datetime | None:
    """The time of the checkpoint by which the stage's state expires."""
    reached = None if fit.time is None else fit.time.stage.value
    if spec.expires_in(Domain.EVENT) and reached is not None:
        return to_datetime(reached)
    return to_datetime(plan.triggered_ms * 1_000)


def lineage_rows(root: StorageRoot, plan: RestorePlan, fit: StageFit) -> SetRows:
    """The rows of all sets of the stage's lineage."""
    assert fit.source is not None
    table = Layout(plan.origin.root).state(plan.tables[fit.source])
    return SetRows(root.spark, root.files, table, fit.lineage)


def check_state(root: StorageRoot, plan: RestorePlan, fit: StageFit) -> None:
    """See that the stage's pages were made of the rows that the sets were written with.

    Raises:
        DamagedError: a set has other rows.
    """
    if fit.source is None or not fit.sets:
        return
    if fit.migrate:  # the pages are made of other rows
        seen = read_digests(lineage_rows(root, plan, fit))
    else:
        seen = _in_pages(root, plan, fit)
    there, table = Layout(plan.origin.root), plan.tables[fit.source]
    check_sets(root.spark, there, table, fit.sets, seen)


def _in_pages(root: StorageRoot, plan: RestorePlan, fit: StageFit) -> dict[int, SetDigest]:
    """The digests that the pages carry, by set."""
    pages = root.spark.read.schema(PAGE_TYPE).parquet(root.layout.restored(fit.stage, plan.attempt))
    # In halves, for the sum of many would be more than a long holds.
    digest, low = F.col("base_id"), 2**32 - 1
    sums = pages.where((F.col("kind") == PageKind.RESTORE.value) & (F.col("rows") > 0))
    sums = sums.groupBy("seq").agg(
        F.sum("rows"),
        F.sum(F.shiftright(digest, 32)),
        F.sum(digest.bitwiseAND(F.lit(low).cast("long"))),
    )
    parts = {fit.lineage[place]: values for place, *values in sums.collect()}
    return {n: SetDigest(n, rows, signed((h << 32) + r)) for n, (rows, h, r) in parts.items()}


def bring_in_flight(
    root: StorageRoot,
    plan: RestorePlan,
    spec: StageSpec,
    name: str,
    state: ChannelState,
    page_bytes: int,
) -> None:
    """Lay the rows that were in flight on an input where the stage's first real batch finds them.

    Raises:
        DamagedError: they are not all there.
    """
    channel = tables.read(root.spark, Layout(plan.origin.root).channel(state.input, state.attempt))
    rows = channel.where(
        (F.col("_epoch") >= state.epoch)
        & (F.col("_epoch") <= plan.cut)
        & (F.col("_kind") == PageKind.DATA.value)
        & (
            (F.col("_seq") >= state.from_seq)
            | F.col("_metadata.file_name").isin([path.rpartition("/")[2] for path in state.files])
        )
    )
    directory = root.layout.in_flight(spec.name, plan.attempt)
    write_pages(data_pages(rows, spec, name, page_bytes, 1), directory, "append", page_bytes)
    written = root.spark.read.schema(PAGE_TYPE).parquet(directory)
    mine = F.col("input") == name
    count = written.where(mine).agg(F.sum("rows")).collect()[0][0] or 0
    if count != state.rows:
        raise part_error(
            SparkStorageReader(root.spark),
            Layout(plan.origin.root),
            ChannelFile(state.input, state.attempt, state.epoch),
            f"checkpoint {plan.origin} has {state.rows} rows in flight to stage {spec.name!r}, but "
            f"{count} of them are in the channel: files are gone or were changed",
        )
