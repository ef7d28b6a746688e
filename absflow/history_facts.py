"""What a job's history asks the facts for: which checkpoints there are, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absflow.facts.absent import no_checkpoint
from absflow.facts.attempts import JobNow, job_now, read_attempts
from absflow.facts.reading import FactReader
from absflow.facts.stages import no_stage_in_checkpoint, whose_completed
from absflow.protocol.checkpoints import Manifest, StageManifest
from absflow.protocol.known import Completion
from absflow.protocol.lineage import shortened
from absflow.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HistoryFacts"]


class HistoryFacts:
    """The facts of one job, as they are when they are asked for."""

    def __init__(self, spark: SparkSession, layout: Layout, facts: FactReader) -> None:
        """Of the job under a storage root."""
        self._spark = spark
        self._layout = layout
        self._reader = facts

    def _job_now(self) -> JobNow:
        """The job as its attempts are now."""
        from absflow.facts.spark_reader import SparkStorageReader

        records = read_attempts(SparkStorageReader(self._spark, patient=True), self._layout)
        return job_now(self._layout.root, records)

    def _lost_driver(self) -> str:
        """The driver that is no more now, in words; empty if there is one, or may be."""
        return self._job_now().lost

    def _completed(self, checkpoint: int | None) -> tuple[int, Completion]:
        """A completed checkpoint; None for the newest.

        Raises:
            NotFoundError: it is not completed.
        """
        asked = [] if checkpoint is None else [int(checkpoint)]
        known = self._reader.known(named=asked, triggers=False)
        found = (asked or known.there[-1:])[-1:]
        if not found or found[0] not in known.there:
            raise no_checkpoint(self._reader, checkpoint, self._lost_driver())
        return found[0], known.completions[found[0]]

    def _whole(self, checkpoint: int | None) -> tuple[Manifest, tuple[int, int]]:
        """A completed checkpoint with the lineages that are to be read; whose it is.

        Raises:
            NotFoundError: it is not completed.
        """
        number, taken = self._completed(checkpoint)
        manifest = self._reader.manifests([number])[number]
        lineages = [(stage.report.stage, stage.lineage) for stage in manifest.stages]
        return shortened(manifest, self._reader.compacted(lineages)), whose_completed(taken)

    def _manifest(
        self, stage: str, checkpoint: int | None
    ) -> tuple[StageManifest, tuple[int, int]]:
        """A stage in a completed checkpoint, with the lineage that is to be read; whose that is.

        Raises:
            NotFoundError: it is not completed, or does not have the stage.
        """
        manifest, taken = self._whole(checkpoint)
        if (found := manifest.stage(stage)) is None:
            names = [each.report.stage for each in manifest.stages]
            raise no_stage_in_checkpoint(stage, manifest.checkpoint_id, names)
        return found, taken
