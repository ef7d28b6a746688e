"""How far each stage is behind, and stages that wait for those behind them.

A channel takes whatever its stage writes, so a slow consumer costs disk and checkpoints, not
memory, and nobody would notice. How far a consumer has come stands in the progress that Spark
reports of its query; what the channel holds behind that stands in the channel's log. So knowing it
costs no Spark job, and a batch nothing: the log is read when somebody asks.

With ``channel.max-backlog`` a stage begins no micro-batch while a consumer has more than that
unread. Consumers read whatever comes, also while they align, so the wait ends. A barrier would wait
with the stage that is to forward it: while a checkpoint is pending that a stage has not snapshotted
the stage does not wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from absflow.columnar.spec import StageSpec
from absflow.errors import StorageError
from absflow.protocol.load import Backlog, Load, Meter
from absflow.spark.batch.listener import BatchDone
from absflow.spark.model import source_index
from absflow.spark.sources.positions import NOTHING_READ
from absflow.storage.channel_log import ChannelTail, read_to
from absflow.storage.delta.log import DeltaPosition
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["Backpressure"]

_LOG = logging.getLogger(__name__)
_SAID_EVERY_MS = 60_000


@dataclass(slots=True)
class _Channel:
    """A channel, and how far each of its readers has come; None for one that has read nothing."""

    tail: ChannelTail
    readers: dict[str, DeltaPosition | None]
    lock: threading.Lock = field(default_factory=threading.Lock)


class Backpressure:
    """Of one driver; shared by the thread of the job, those of the queries, and callers."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        attempt: int,
        stages: Mapping[str, StageSpec],
        max_backlog_bytes: int | None,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """Take up the channels where the readers' newest committed batches stand.

        Args:
            files: for logs.
            layout: where things lie.
            attempt: the job's attempt.
            stages: by name in topological order; those of a chain are busy together.
            max_backlog_bytes: ``channel.max-backlog``; None for no limit.
            now_ms: the steady clock.
            wall_ms: the wall clock, as Spark and the logs have it.

        Raises:
            StorageError: Spark's own checkpoints cannot be read.
        """
        self._stages = stages
        self._max_backlog_bytes = max_backlog_bytes
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._changed = threading.Condition()
        self._pending = 0
        self._stopped = False
        self._meters: dict[str, Meter] = {}
        for name, spec in stages.items():  # in topological order
            given = spec.inputs[0]
            self._meters[name] = self._meters[given.name] if given.direct else Meter(now_ms())
        self._said_ms: dict[str, int] = {}
        readers: dict[str, dict[str, DeltaPosition | None]] = {}
        for spec in stages.values():
            offsets = _offsets(files, layout.spark_checkpoint(spec.name, attempt))
            for name in _channels(spec):
                at = offsets[source_index(spec, name)] if offsets else NOTHING_READ
                readers.setdefault(name, {})[spec.name] = read_to(at)
        self._channels: dict[str, _Channel] = {}
        for name, positions in readers.items():
            tail = ChannelTail(files.read, layout.channel(name, attempt), _slowest(positions))
            self._channels[name] = _Channel(tail, positions)

    # -- the thread of the job ----------------------------------------------------------------

    def done(self, stage: str, batch: BatchDone) -> None:
        """A micro-batch is committed; what ``stage``, the query's first, has read is no backlog."""
        spec = self._stages[stage]
        # What the wall clock would have said had nobody set it since, or what it does say.
        ahead = self._now_ms() - self._wall_ms()
        with self._changed:
            self._meters[stage].done(batch.batch_id, batch.start_ms + ahead, batch.end_ms + ahead)
            for name in _channels(spec):
                end = batch.ends[source_index(spec, name)]
                if end is not None:
                    self._has_read(self._channels[name], stage, DeltaPosition.parse(end))
            self._changed.notify_all()

    def died(self, stage: str) -> None:
        """The query of ``stage`` has died."""
        with self._changed:
            self._meters[stage].died(self._now_ms())

    def pending(self, checkpoint_id: int) -> None:
        """The newest checkpoint under way; 0 for none."""
        if checkpoint_id != self._pending:
            with self._changed:
                self._pending = checkpoint_id
                self._changed.notify_all()

    def stop(self) -> None:
        """The queries are being stopped: nobody must wait any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # -- queries ------------------------------------------------------------------------------

    def wait(self, stage: str, batch_id: int, snapshot: int) -> None:
        """A micro-batch begins: wait while the stage is too far ahead of a consumer.

        Args:
            stage: the stage.
            batch_id: the batch.
            snapshot: the newest checkpoint that the stage has snapshotted.

        Raises:
            StorageError: the log of the stage's channel cannot be read.
        """
        meter, channel = self._meters[stage], self._channels.get(stage)
        with self._changed:
            meter.began(batch_id, self._now_ms())
        if self._max_backlog_bytes is None or channel is None:
            return
        channel.tail.advance()  # nobody but this stage writes to it
        with self._changed:
            while snapshot >= self._pending and not self._stopped:
                behind = self._too_far_behind(stage, channel)
                if behind is None:
                    break
                meter.waits(self._now_ms())
                self._say(stage, *behind)
                self._changed.wait()
            meter.goes_on(self._now_ms())

    # -- whoever wants to know ----------------------------------------------------------------

    def load(self, stage: str) -> Load:
        """What a stage has been doing for a minute, and what it has not read."""
        with self._changed:
            shares = self._meters[stage].shares(self._now_ms())
        try:
            names = _channels(self._stages[stage])
            return Load(*shares, tuple(self._backlog(name, stage) for name in names))
        except StorageError:
            # The job lives without knowing it; whoever asks sees that it is not known.
            _LOG.warning("could not find how far stage %s is behind", stage, exc_info=True)
            return Load(*shares, None)

    def _backlog(self, name: str, reader: str) -> Backlog:
        channel = self._channels[name]
        channel.tail.advance()
        with channel.lock:
            return channel.tail.backlog(name, channel.readers[reader], self._wall_ms())

    def _has_read(self, channel: _Channel, reader: str, position: DeltaPosition) -> None:
        with channel.lock:
            channel.readers[reader] = position
            channel.tail.forget(_slowest(channel.readers))

    def _too_far_behind(self, stage: str, channel: _Channel) -> tuple[str, Backlog] | None:
        """The consumer that has most to read, if that is more than it may be."""
        with channel.lock:
            backlogs = {
                reader: channel.tail.backlog(stage, position, self._wall_ms())
                for reader, position in channel.readers.items()
            }
        reader, most = max(backlogs.items(), key=lambda each: each[1].bytes)
        limit = self._max_backlog_bytes
        return (reader, most) if limit is not None and most.bytes > limit else None

    def _say(self, stage: str, reader: str, backlog: Backlog) -> None:
        now = self._now_ms()
        if now - self._said_ms.get(stage, -_SAID_EVERY_MS) >= _SAID_EVERY_MS:
            self._said_ms[stage] = now
            _LOG.warning(
                "stage %s waits for stage %s, which has %d rows (%d bytes) of its channel unread, "
                "the oldest for %.1f s; spark.absflow.channel.max-backlog is %d bytes",
                stage,
                reader,
                backlog.rows,
                backlog.bytes,
                backlog.age_ms / 1000,
                self._max_backlog_bytes,
            )


def _channels(spec: StageSpec) -> list[str]:
    return [given.name for given in spec.inputs if given.channel]


def _slowest(readers: Mapping[str, DeltaPosition | None]) -> int:
    """The version of a channel before which every reader has read all."""
    return min(at.version if at else 0 for at in readers.values())


def _offsets(files: Files, checkpoint: str) -> list[str] | None:
    """Where the sources of a query's newest committed batch ended; None if there is none."""
    committed = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdecimal()]
    if not committed:
        return None
    text = files.read(f"{checkpoint}/offsets/{max(committed)}")
    return None if text is None else text.splitlines()[2:]
