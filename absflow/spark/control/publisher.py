"""The second phase of on-checkpoint sinks: what a completed checkpoint holds becomes visible.

One thread publishes checkpoint after checkpoint, in order, each in one write per sink. Behind each
write it notes how far the sink is. A kill between the two repeats the write, which the sink knows
by its id (Delta skips it); a kill before the write leaves it to whoever starts next, for what is
owed follows from the facts (:mod:`absflow.protocol.recovery.publication`).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.pages import CHANNEL_FIELDS, TIME_FIELDS, PageKind
from absflow.errors import FencedError
from absflow.facts.fence import Fence
from absflow.protocol.recovery.publication import Publication
from absflow.protocol.restarts import RestartPolicy, Restarts, on_failure
from absflow.sinks import SinkPublication
from absflow.spark.model import JobSpec
from absflow.storage.delta import tables
from absflow.storage.root import StorageRoot

__all__ = ["PublicationFailed", "Publisher"]

_LOG = logging.getLogger(__name__)
_POOL = "absflow-publisher"


@dataclass(frozen=True, slots=True)
class PublicationFailed:
    """A checkpoint could not be published, and it was tried often enough."""

    sink: str
    checkpoint_id: int
    error: Exception


class Publisher:
    """The publisher of one driver's run of a job."""

    def __init__(
        self,
        root: StorageRoot,
        job: JobSpec,
        attempt: int,
        missing: Mapping[str, Sequence[Publication]],
        newest: int,
        policy: RestartPolicy,
        fence: Fence,
        post: Callable[[PublicationFailed], None],
    ) -> None:
        """Start the thread, which publishes what is missing first.

        Args:
            root: the storage root.
            job: the job.
            attempt: the job's attempt.
            missing: by sink, what must be published before anything else.
            newest: the newest completed checkpoint on the branch; 0 if there is none.
            policy: how often and when a failed write is tried again.
            fence: asked before each write.
            post: called when it is given up.
        """
        self._spark = root.spark
        self._files = root.files
        self._job = job
        self._layout = root.layout
        self._attempt = attempt
        self._missing = missing
        self._newest = newest
        self._policy = policy
        self._fence = fence
        self._post = post
        self._closing = threading.Event()
        self._waiting: queue.Queue[int | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="absflow-publisher", daemon=True)
        self._thread.start()

    def submit(self, checkpoint_id: int) -> None:
        """Publish a checkpoint that has completed."""
        self._waiting.put(checkpoint_id)

    def close(self) -> None:
        """Publish what was submitted, without trying again what fails, and end the thread."""
        self._closing.set()
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        for sink, missing in self._missing.items():
            for publication in missing:
                if not self._publish(sink, publication):
                    return
        while (checkpoint_id := self._waiting.get()) is not None:
            if checkpoint_id < self._newest:
                continue  # a late savepoint: what it holds went out with a later checkpoint
            publication = Publication(checkpoint_id, self._newest, self._attempt)
            for sink in self._missing:
                if not self._publish(sink, publication):
                    return
            self._newest = checkpoint_id

    def _publish(self, sink: str, publication: Publication) -> bool:
        """Publish, until it is done or has failed too often; whether it is done."""
        tried = Restarts()
        while True:
            try:
                self._fence.check()
                self._write(sink, publication)
            except FencedError:
                return False  # the job's thread sees it, too; the newer driver makes it good
            except (
                Exception
            ) as error:  # whatever it is, it must be known: the rows are missing there
                tried, delay = on_failure(self._policy, tried, 0, 0)
                _LOG.exception("sink %s, checkpoint %d", sink, publication.checkpoint_id)
                if delay is None or self._closing.wait(delay / 1000):
                    self._post(PublicationFailed(sink, publication.checkpoint_id, error))
                    return False
            else:
                _LOG.info("checkpoint %d published to sink %s", publication.checkpoint_id, sink)
                return True

    def _write(self, sink: str, publication: Publication) -> None:
        graph = self._job.graph
        stage = graph.sinks[sink].stage
        made = SinkPublication(
            graph.job,
            sink,
            stage,
            self._attempt,
            publication.checkpoint_id,
            publication.after,
        )
        channel = self._layout.channel(stage, publication.attempt)
        rows = tables.read(self._spark, channel).where(
            (F.col("_epoch") > publication.after)
            & (F.col("_epoch") <= publication.checkpoint_id)
            & (F.col("_kind") == PageKind.DATA.value)
        )
        self._job.sinks[sink].write(_in_order(rows), made)
        note = self._layout.published(sink, self._attempt)
        self._files.write(note, str(publication.checkpoint_id))


def _in_order(rows: DataFrame) -> DataFrame:
    """The bare rows; those of a key group in one partition, in the order they were emitted in."""
    together = rows.repartition("_key_group").sortWithinPartitions("_key_group", "_seq")
    return together.drop(*(field.name for field in (*CHANNEL_FIELDS, *TIME_FIELDS)))
