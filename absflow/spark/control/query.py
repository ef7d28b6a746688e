"""The query of a chain of stages, and what is needed to start it again when it has died."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from absflow.columnar.stage import StageSpec
from absflow.protocol.coordinator.messages import Event
from absflow.protocol.restarts import Restarts
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.drain import Drain
from absflow.spark.batch.micro_batch import ChainBatches
from absflow.spark.batch.query import start_query
from absflow.spark.batch.reports import StageReports
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.control.progress import StageProgress
from absflow.spark.model import JobSpec, query_name
from absflow.spark.start.attempt import PreparedAttempt
from absflow.spark.stream.chain import chain_pages
from absflow.storage import clock
from absflow.storage.files import Files

__all__ = ["ChainQuery"]


class ChainQuery:
    """Of one driver's run of the job; used by its thread."""

    def __init__(
        self,
        spark: SparkSession,
        job: JobSpec,
        begun: PreparedAttempt,
        chain: Sequence[str],
        *,
        drain: Drain,
        backpressure: Backpressure,
        tell: Callable[[Event], None],
    ) -> None:
        """Make ready to start.

        Args:
            spark: the session.
            job: the job.
            begun: its attempt.
            chain: the stages, upstream first.
            drain: may hold them.
            backpressure: may hold them, too.
            tell: puts an event into the coordinator's queue.
        """
        self._spark = spark
        self._job = job
        self._begun = begun
        self._files = Files(spark)
        self._drain = drain
        self._backpressure = backpressure
        self._tell = tell
        self.names = list(chain)
        self.query: StreamingQuery | None = None
        self.run_id = ""
        self.started_ms = 0
        self.restarts = Restarts()
        self.restart_at_ms: int | None = None
        self.progress = StageProgress()
        self._appenders = [
            SnapshotAppender(
                spark,
                job.graph.job,
                job.graph.stages[name],
                begun.layout,
                begun.state_tables[name],
                begun.attempt,
                self._files,
                begun.claim.fence,
                tell,
            )
            for name in chain
        ]

    @property
    def first(self) -> StageSpec:
        """The stage that reads sources and channels."""
        return self._job.graph.stages[self.names[0]]

    @property
    def told(self) -> str:
        """What it is called in a message."""
        return f"stage{'s' * (len(self.names) > 1)} {', '.join(map(repr, self.names))}"

    def start(self) -> None:
        """Start it, or start it again."""
        pages = chain_pages(
            self._spark,
            self._job,
            self.names,
            self._begun.layout,
            self._begun.attempt,
            self._begun.control,
            self._begun.ranges,
            restored=self._begun.origin is not None,
        )
        checkpoint = self._begun.layout.spark_checkpoint(self.names[0], self._begun.attempt)
        self.restart_at_ms = None
        self.started_ms = clock.now_ms()
        self.query = start_query(
            pages.writeStream.foreachBatch(self._batches())
            .queryName(query_name(self._job.graph.job, self.names))
            .outputMode("append")
            .trigger(processingTime=f"{self._job.settings.trigger_interval_ms} milliseconds")
            .option("checkpointLocation", checkpoint),
            self._spark,
            self.names,
        )
        self.run_id = str(self.query.runId)

    def _batches(self) -> ChainBatches:
        begun, last = self._begun, self.names[-1]
        stages = [
            StageReports(
                self._job.graph.stages[name],
                begun.layout,
                begun.attempt,
                self._files,
                restored=begun.origin.checkpoint_id if begun.origin else 0,
                appender=appender,
                max_held_bytes=self._job.settings.alignment_max_held_bytes,
                fence=begun.claim.fence,
                tell=self._tell,
            )
            for name, appender in zip(self.names, self._appenders, strict=True)
        ]
        return ChainBatches(
            self._job.graph.job,
            stages,
            begun.layout,
            begun.attempt,
            self._files,
            channel=self._job.graph.has_channel(last),
            sinks=self._job.immediate_sinks(last),
            drain=self._drain,
            backpressure=self._backpressure,
            fence=begun.claim.fence,
        )

    def stop(self) -> None:
        """Stop it; what it has put aside goes on."""
        if self.query is not None and self.query.isActive:
            self.query.stop()

    def close(self) -> None:
        """Finish what it has put aside."""
        for appender in self._appenders:
            appender.close()
