"""The driver's side of a sink with transactions: it claims the lanes, and has them publish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.publishing import claim_lane
from absflow.errors import FencedError, StorageError
from absflow.protocol.recovery.branch import Branch
from absflow.protocol.recovery.marker import Marker, held
from absflow.protocol.recovery.publication import Publication
from absflow.spark.start.sink_lanes import lane_names, look_at_lanes
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.lane_rows import PUBLISHED, LanesPublication, publish_function
from absflow.transactional import TransactionalSink

__all__ = ["Lanes"]

_LOG = logging.getLogger(__name__)
_SEQ = "_seq"


class Lanes:
    """The lanes of one sink in one driver's run."""

    def __init__(
        self,
        sink: TransactionalSink,
        name: str,
        job_id: str,
        driver: int,
        branch: Branch,
        begun_with: int,
        noted: int,
    ) -> None:
        """Nothing is asked of the destination yet.

        Args:
            sink: the sink.
            name: its name.
            job_id: of the storage root.
            driver: the incarnation of this driver.
            branch: of the job.
            begun_with: the checkpoint that it counted as having when the attempt began.
            noted: the newest that it is known to have had.
        """
        self._sink = sink
        self._name = name
        self._job_id = job_id
        self._driver = driver
        self._branch = branch
        self._begun_with = begun_with
        self._noted = noted
        self._markers: list[Marker] = []

    def holds(self, publication: Publication) -> bool:
        """Whether all rows of a publication are in the destination; errors as of :meth:`claim`."""
        self.claim()
        published = held(self._markers, self._branch)
        return published is not None and published >= publication.checkpoint_id

    def complete(self, publication: Publication) -> None:
        """Let the destination know that all lanes have a publication."""
        names = lane_names(self._job_id, self._name, len(self._markers))
        self._sink.complete(names, publication.attempt, publication.checkpoint_id)

    @property
    def last(self) -> tuple[int, int] | None:
        """Attempt and checkpoint of what was published last; errors as of :meth:`claim`."""
        self.claim()
        return self._markers[0].last

    def publish(self, rows: DataFrame, publication: Publication, *, whole: bool = False) -> None:
        """Publish rows, those of each key in their order; a lane leaves out what it has.

        Args:
            rows: ``_seq`` and ``_key_group`` of the channel, then the columns of the output.
            publication: the publication.
            whole: all others that are there go.

        Raises:
            FencedError: a newer driver has the lanes.
        """
        names = lane_names(self._job_id, self._name, len(self._markers))
        of = publication.attempt, publication.checkpoint_id
        try:
            self._run(rows, LanesPublication(names, self._driver, *of, whole))
        except Exception as error:
            self._markers = []  # whatever they are now
            newest = max((marker.driver for marker in self._look()), default=0)
            if newest > self._driver:
                raise FencedError(
                    f"sink {self._name!r} is published by driver incarnation {newest}, this one is "
                    f"{self._driver}: a newer driver runs on this storage root"
                ) from error
            raise
        self._markers = [marker.behind_all(*of) for marker in self._markers]
        if len(self._markers) != self._sink.lanes:
            self._markers = []  # between two publications the lanes may change

    def _look(self) -> Sequence[Marker]:
        try:
            return look_at_lanes(self._sink, self._job_id, self._name)
        except Exception:  # of any destination; the error before this one is raised
            _LOG.warning("sink %s does not answer", self._name, exc_info=True)
            return ()

    def claim(self) -> None:
        """Fence older drivers; change the number of lanes, if those that are have ended alike.

        Again after a publication that has failed, and where the number of lanes is to change.

        Raises:
            FencedError: a newer driver has the lanes.
            StorageError: the destination has less than it had.
        """
        if self._markers:
            return
        there = look_at_lanes(self._sink, self._job_id, self._name)
        lanes = there[0].lanes if there else self._sink.lanes
        markers = self._claim_each(lanes, self._mine)
        alike = all(m.published == markers[0].published and m.begun is None for m in markers)
        if lanes != self._sink.lanes and alike:
            common = replace(markers[0], lanes=self._sink.lanes)
            markers = self._claim_each(max(lanes, common.lanes), lambda _: common)[: common.lanes]
        published = held(markers, self._branch) or 0
        if published < self._noted:
            raise StorageError(
                f"sink {self._name!r} ({self._sink.describe()}) had published checkpoint "
                f"{self._noted}, but its markers say {published}: it was put back to an older "
                "state. Restore the job from a checkpoint that it has "
                "(spark.absflow.restore.from), or bring it back as it was"
            )
        self._markers = markers

    def _claim_each(self, lanes: int, becomes: Callable[[Marker | None], Marker]) -> list[Marker]:
        # The first lane last: its marker says how many there are.
        names = lane_names(self._job_id, self._name, lanes)
        opened = self._sink.open
        claimed = [claim_lane(name, opened, self._driver, becomes) for name in reversed(names)]
        return claimed[::-1]

    def _mine(self, found: Marker | None) -> Marker:
        """A lane's marker when this driver has claimed it."""
        attempt = self._branch.parts[0][0]
        marker = found or Marker(lanes=self._sink.lanes)
        if attempt not in marker.published:
            # What a sink counts as having that is new, or has come back, is in no marker.
            newest = max(held([marker], self._branch) or 0, self._begun_with)
            marker = replace(marker, published={**marker.published, attempt: newest})
        return replace(marker, driver=self._driver)

    def _run(self, rows: DataFrame, made: LanesPublication) -> None:
        lanes = len(made.names)
        # One row more for each lane: adaptive execution leaves out what has no rows, and each lane
        # is to leave its marker.
        marks = rows.sparkSession.range(lanes, numPartitions=1).select(
            *(
                (F.col("id") if field.name == "_key_group" else F.lit(None)).cast(field.dataType)
                for field in rows.schema
            )
        )
        ordered = (
            rows.union(marks)
            .repartitionById(lanes, F.col("_key_group") % lanes)
            .sortWithinPartitions(_SEQ, "_key_group")
            .drop("_key_group")
        )
        function = publish_function(self._sink, made, _SEQ)
        map_in_arrow(ordered, function, from_arrow_schema(PUBLISHED)).collect()
