"""The query of a chain of stages, and what is needed to start it again when it has died."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

from absflow.columnar.spec import StageSpec
from absflow.protocol.coordinator.messages import Event
from absflow.protocol.event_time import to_datetime
from absflow.protocol.restarts import Restarts
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.drain import Drain
from absflow.spark.batch.listener import BatchDone, QueryDied
from absflow.spark.batch.micro_batch import ChainBatches, TimersLeft
from absflow.spark.batch.query import forget_unbegun, start_query
from absflow.spark.batch.restored_rows import RestoredRows
from absflow.spark.batch.rows import RowWriter
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.batch.stage import ChainStage
from absflow.spark.control.progress import StageProgress
from absflow.spark.model import JobSpec, query_name
from absflow.spark.start.attempt import PreparedAttempt
from absflow.spark.stream.chain import chain_pages
from absflow.storage import clock
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.root import StorageRoot

__all__ = ["ChainQuery"]


class ChainQuery:
    """Of one driver's run of the job; used by its thread."""

    def __init__(
        self,
        root: StorageRoot,
        job: JobSpec,
        prepared: PreparedAttempt,
        chain: Sequence[str],
        *,
        drain: Drain,
        backpressure: Backpressure,
        post: Callable[[Event | TimersLeft], None],
    ) -> None:
        """Make ready to start.

        Args:
            root: the storage root.
            job: the job.
            prepared: its attempt.
            chain: the stages, upstream first.
            drain: may hold them.
            backpressure: may hold them, too.
            post: puts an event into the coordinator's queue.
        """
        self._root = root
        self._spark = spark = root.spark
        self._job = job
        self._prepared = prepared
        self._files = root.files
        self._drain = drain
        self._backpressure = backpressure
        self._post = post
        self.names = list(chain)
        self.query: StreamingQuery | None = None
        self.run_id = ""
        self.started_ms = 0
        self.restarts = Restarts()
        self.restart_at_ms: int | None = None
        self.progress = StageProgress()
        # Whether no event has come since the last look at it, and what that look has seen.
        self.silent = True
        self.seen: BatchDone | None = None
        self._running: ChainBatches | None = None
        self._checkpoint = prepared.layout.spark_checkpoint(chain[0], prepared.attempt)
        self._appenders = [
            SnapshotAppender(
                spark,
                job.graph.job,
                job.graph.stages[name],
                prepared.layout,
                prepared.state_tables[name],
                prepared.attempt,
                self._files,
                prepared.claim.fence,
                post,
            )
            for name in chain
        ]

    @property
    def first(self) -> StageSpec:
        """The stage that reads sources and channels."""
        return self._job.graph.stages[self.names[0]]

    @property
    def title(self) -> str:
        """What it is called in a message."""
        return f"stage{'s' * (len(self.names) > 1)} {', '.join(map(repr, self.names))}"

    def start(self) -> None:
        """Start it, or start it again."""
        restored = self._restored_rows()
        pages = chain_pages(
            self._root,
            self._job,
            self.names,
            self._prepared.attempt,
            self._prepared.control,
            self._prepared.ranges,
            restored.directories if restored else {},
            self._histories(),
        )
        self.restart_at_ms = None
        self.silent, self.seen = False, None
        self.started_ms = clock.steady_ms()
        self._running = self._batches(restored)
        forget_unbegun(self._files, self._checkpoint)
        self.query = start_query(
            pages.writeStream.foreachBatch(self._running)
            .queryName(query_name(self._job.graph.job, self.names))
            .outputMode("append")
            .trigger(processingTime=f"{self._job.settings.trigger_interval_ms} milliseconds")
            .option("checkpointLocation", self._checkpoint),
            self._spark,
            [self._job.graph.stages[name] for name in self.names],
        )
        self.run_id = str(self.query.runId)
        times = (self._prepared.times.get(name) for name in self.names)
        if any(time is not None and not time.stage.settled for time in times):
            # It was restored with timers that are due, which do not wait for rows.
            self._post(TimersLeft(self.names[0]))

    def death(self) -> QueryDied | None:
        """That it has died, and of what, as its event says it; None while it lives."""
        if self.query is None or self.query.isActive:
            return None
        error = self.query._jsq.exception()
        return QueryDied(self.run_id, str(error.get().cause()) if error.isDefined() else None)

    def rows_of(self, batch: BatchDone) -> int:
        """The rows of data that a batch has read: no barriers, nor what restores the state."""
        read = sum(batch.rows[: len(self.first.inputs)])
        control = self._running.control_rows.get(batch.batch_id, 0) if self._running else 0
        return max(0, read - control)

    def time_progress(self, stage: str) -> StageProgress:
        """How far a stage of it is, with event time."""
        time, late, emitted = self._running.event_time(stage) if self._running else (None, 0, 0)
        watermark = None if time is None else to_datetime(time.stage.value)
        return replace(self.progress, watermark=watermark, late_rows=late, late_emitted=emitted)

    def last_progress(self) -> dict[str, Any] | None:
        """Of its newest trigger, also if that made no batch; None before the first."""
        if self.query is None:
            return None
        given = self.query._jsq.lastProgress()
        return None if given is None else cast("dict[str, Any]", json.loads(given.json()))

    def _restored_rows(self) -> RestoredRows | None:
        if self._prepared.origin is None:
            return None
        chain = [self._job.graph.stages[name] for name in self.names]
        return RestoredRows(self._files, self._prepared.layout, chain, self._prepared.attempt)

    def _histories(self) -> dict[str, PlainTable]:
        """The state histories whose files the workers may write, by stage."""
        found = {
            name: appender.describe()
            for name, appender in zip(self.names, self._appenders, strict=True)
        }
        return {name: table for name, table in found.items() if table is not None}

    def _batches(self, restored: RestoredRows | None) -> ChainBatches:
        prepared, last = self._prepared, self.names[-1]
        stages = [
            ChainStage(
                self._job.graph.stages[name],
                prepared.layout,
                prepared.attempt,
                self._files,
                restored=prepared.origin.checkpoint_id if prepared.origin else 0,
                time=prepared.times.get(name),
                appender=appender,
                settings=self._job.settings,
                fence=prepared.claim.fence,
                post=self._post,
            )
            for name, appender in zip(self.names, self._appenders, strict=True)
        ]
        rows = RowWriter(
            self._job.graph.job,
            self._job.graph.stages[last],
            prepared.attempt,
            layout=prepared.layout,
            channel=(
                prepared.layout.channel(last, prepared.attempt)
                if self._job.graph.has_channel(last)
                else None
            ),
            sinks=self._job.immediate_sinks(last),
            fence=prepared.claim.fence,
        )
        return ChainBatches(
            stages,
            rows,
            self._checkpoint,
            self._files,
            self._drain,
            self._backpressure,
            self._post,
            restored,
        )

    def stop(self) -> None:
        """Stop it; what it has put aside goes on."""
        if self.query is not None and self.query.isActive:
            self.query.stop()

    def close(self) -> None:
        """Finish what it has put aside."""
        for appender in self._appenders:
            appender.close()
