"""What a running job says to the outside: log lines at once, the rest from a thread of its own.

Whoever knows of something says it (:mod:`absflow.telemetry.happenings`). That logs it, and puts it
into a queue if anybody listens. The thread counts it, makes spans of it, and has the values ready
that others fetch: Prometheus from an endpoint, OpenTelemetry's own threads, Spark's metrics system.
Nobody else waits for any of them, and what goes wrong there is a warning: a job needs no telemetry.
No value costs an action of Spark; the one thing that is read for them is the logs of channels, as
for each checkpoint.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from absflow.errors import SettingsError
from absflow.protocol.checkpoints import Manifest
from absflow.settings.reading import Settings
from absflow.spark.control.progress import Progress, SinkProgress, StageProgress
from absflow.spark.model import JobSpec
from absflow.storage import clock
from absflow.storage.java import job_metrics
from absflow.telemetry import otel
from absflow.telemetry.happenings import CheckpointEnded, Happening
from absflow.telemetry.lines import log, set_format
from absflow.telemetry.metrics import Tally, measured, newest, of_load
from absflow.telemetry.names import METRICS, Sample
from absflow.telemetry.spans import span_of

if TYPE_CHECKING:
    from absflow.telemetry.prometheus import MetricsServer

__all__ = ["Telemetry", "of_progress", "set_up", "spark_name"]

_LOG = logging.getLogger(__name__)
# How old values may be that are shown, in seconds; and how often those are set that nobody fetches.
_FRESH_S, _LOOK_S = 1.0, 10.0
# The end of a job waits no longer for the thread.
_CLOSE_WAIT_S = 5.0
# A program that ends lets the last figures go out for so long.
_EXIT_WAIT_S = 5.0


def set_up(settings: Settings) -> None:
    """See that there is what the settings need, and log as they say.

    Raises:
        SettingsError: a package is not installed.
    """
    set_format(settings.log_format)
    if settings.telemetry_prometheus_port is not None and find_spec("prometheus_client") is None:
        raise SettingsError(
            "spark.absflow.telemetry.prometheus-port is set, but the package prometheus-client is "
            "not installed; pip install 'absflow[prometheus]' on the driver"
        )
    if settings.telemetry_otel:
        otel.check()


class Telemetry:
    """The telemetry of one driver's run of a job."""

    def __init__(
        self, spark: SparkSession, job: JobSpec, attempt: int, completed: Manifest | None
    ) -> None:
        """Log, but do nothing else before :meth:`start`.

        Args:
            spark: the session.
            job: the job.
            attempt: its attempt.
            completed: the checkpoint that it goes on from.
        """
        settings = job.settings
        self._spark = spark
        self._job = job.graph.job
        self._attempt = attempt
        self._settings = settings
        self._wanted = (
            settings.telemetry_prometheus_port is not None
            or settings.telemetry_otel
            or settings.telemetry_spark_metrics
        )
        self._tally = Tally(job.graph.stages)
        self._fixed = [*_of_start(attempt, settings.checkpoint_interval_ms, completed)]
        self._queue: queue.SimpleQueue[Happening | None] = queue.SimpleQueue()
        self._progress: Callable[[], Progress] | None = None
        self._looking = threading.Lock()
        self._seen: tuple[float, list[Sample]] = (float("-inf"), [])
        self._records: list[Callable[[Sample], None]] = []
        self._server: MetricsServer | None = None
        self._text: Callable[[], bytes] | None = None
        self._otel: otel.OpenTelemetry | None = None
        self._source: Any = None
        self._thread = threading.Thread(target=self._run, name="absflow-telemetry", daemon=True)

    def say(self, happening: Happening) -> None:
        """Something has happened; for any thread, which waits for nothing."""
        log(happening, self._job, self._attempt)
        if self._wanted:
            self._queue.put(happening)

    def start(self, progress: Callable[[], Progress]) -> None:
        """Let others have metrics and spans, if the settings say so.

        Args:
            progress: how far the run is; for any thread.
        """
        self._progress = progress
        if self._settings.telemetry_otel:
            atexit.register(self._let_out)  # first, so it is called last
        if self._wanted:
            self._thread.start()

    def close(self) -> None:
        """Let go of all; the last figures still go out."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_CLOSE_WAIT_S)

    def _let_out(self) -> None:
        """The program ends: what is on its way still goes out, if somebody takes it."""
        if self._otel is not None:
            self._otel.wait(_EXIT_WAIT_S)

    def samples(self) -> list[Sample]:
        """All gauges and counters as they are now, or were a moment ago; after the end the last."""
        with self._looking:
            at, made = self._seen
            if self._progress is not None and time.monotonic() - at > _FRESH_S:
                now_s = clock.now_ms() / 1000
                said = of_progress(self._progress(), now_s)
                made = newest([*self._fixed, *self._tally.samples(), *said])
                self._seen = time.monotonic(), made
            return made

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        if self._settings.telemetry_otel:
            self._try("OpenTelemetry", self._begin_otel)
        if self._settings.telemetry_prometheus_port is not None:
            self._try("the endpoint for Prometheus", self._prepare_endpoint)
        if self._settings.telemetry_spark_metrics:
            self._try("Spark's metrics system", self._begin_source)
        looked = float("-inf")
        while True:
            if time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                self._look()
            try:
                happening = self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if happening is None:
                break
            self._try("what has happened", partial(self._take, happening))
        self._end()

    def _take(self, happening: Happening) -> None:
        self._tally.add(happening)
        for sample in measured(happening):
            for record in self._records:
                record(sample)
        if self._otel is not None and (span := span_of(happening)) is not None:
            self._otel.end(span)
        if isinstance(happening, CheckpointEnded):
            self._set_source()

    def _look(self) -> None:
        if self._server is None and self._text is not None:
            self._try("the endpoint for Prometheus", self._open_endpoint)
        self._try("Spark's metrics system", self._set_source)

    def _begin_otel(self) -> None:
        self._otel = otel.OpenTelemetry(self._job, self._attempt, version("absflow"), self.samples)
        self._records.append(self._otel.record)

    def _prepare_endpoint(self) -> None:
        from absflow.telemetry.prometheus import Histograms, text_of

        histograms = Histograms()
        self._records.append(histograms.record)
        self._text = lambda: text_of(self.samples(), histograms)

    def _open_endpoint(self) -> None:
        """If somebody has the port, as a driver before this one, again a little later."""
        from absflow.telemetry.prometheus import MetricsServer

        settings, text = self._settings, self._text
        port = settings.telemetry_prometheus_port
        if text is not None and port is not None:
            self._server = MetricsServer(settings.telemetry_prometheus_host, port, text)
            _LOG.info("metrics for Prometheus: %s", self._server.url)

    def _begin_source(self) -> None:
        source = job_metrics(self._spark)
        source.begin(f"absflow.{self._job}")
        self._source = source

    def _set_source(self) -> None:
        if self._source is not None:
            lines = "\n".join(f"{spark_name(s)}\t{float(s.value)!r}" for s in self.samples())
            self._source.set(lines)

    def _end(self) -> None:
        """Others still fetch the last values when the job is no more."""
        with self._looking:
            self._seen = float("-inf"), self._seen[1]
        self._try("the last values", self.samples)
        self._progress = None
        if self._source is not None:
            self._try("Spark's metrics system", self._source.end)
        if self._server is not None:
            self._try("the endpoint for Prometheus", self._server.close)
        if self._otel is not None:
            self._try("OpenTelemetry", self._otel.close)

    @staticmethod
    def _try(what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception:  # of whatever listens; the job can do without
            _LOG.warning("telemetry: %s failed; the job goes on", what, exc_info=True)


def spark_name(sample: Sample) -> str:
    """What a value is called in Spark's metrics system: the name, then the values of its labels."""
    metric = METRICS[sample.name]
    labels = (sample.labels[name] for name in metric.labels if name in sample.labels)
    return ".".join([metric.otel.removeprefix("absflow."), *labels])


def _of_start(attempt: int, interval_ms: int, completed: Manifest | None) -> Iterator[Sample]:
    """What a driver knows when it starts."""
    yield Sample("absflow_driver_running", 1)
    yield Sample("absflow_attempt", attempt)
    yield Sample("absflow_checkpoint_interval_seconds", interval_ms / 1000)
    if completed is not None:
        # Its end is not known here, and an age that is a little too high does no harm.
        at_s = completed.triggered_ms / 1000
        yield Sample("absflow_checkpoint_last_completed_timestamp_seconds", at_s)


def of_progress(progress: Progress, now_s: float) -> Iterator[Sample]:
    """What only a running driver knows, or knows better than its newest checkpoint.

    Args:
        progress: how far it is.
        now_s: the wall clock, seconds since 1970.
    """
    yield Sample("absflow_checkpoint_pending", len(progress.pending))
    if progress.checkpoint_id:
        yield Sample("absflow_checkpoint_last_completed_id", progress.checkpoint_id)
    for stage, each in progress.stages.items():
        yield from _of_stage(stage, each, now_s)
    for sink, said in progress.sinks.items():
        yield from _of_sink(sink, said)
    yield Sample("absflow_retention_failing", len(progress.retention.failing))
    yield Sample("absflow_retention_failures", progress.retention.failures)
    yield Sample("absflow_thread_busy_ratio", progress.thread.busy)
    yield Sample("absflow_thread_waiting", progress.thread.waiting)


def _of_stage(stage: str, progress: StageProgress, now_s: float) -> Iterator[Sample]:
    of = {"stage": stage}
    yield from of_load(stage, progress.load)
    yield Sample("absflow_stage_rows", progress.total_rows, {**of, "direction": "in"})
    yield Sample("absflow_late_rows", progress.late_rows, {**of, "reason": "behind"})
    yield Sample("absflow_late_rows", progress.late_emitted, {**of, "reason": "emitted"})
    if progress.watermark is not None:
        at_s = progress.watermark.timestamp()
        yield Sample("absflow_watermark_timestamp_seconds", at_s, of)
        yield Sample("absflow_watermark_lag_seconds", now_s - at_s, of)


def _of_sink(sink: str, progress: SinkProgress) -> Iterator[Sample]:
    of = {"sink": sink}
    yield Sample("absflow_sink_published_id", progress.published, of)
    yield Sample("absflow_sink_published_lag_seconds", progress.waiting_s, of)
    yield Sample("absflow_sink_waiting", progress.waiting, of)
    yield Sample("absflow_sink_failures", progress.failures, of)
