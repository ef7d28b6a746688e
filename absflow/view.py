"""All that a job has written, as it was at one checkpoint: one cut over several tables.

A sink's versions are not in the facts of a checkpoint. Each commit of the job says of which attempt
and epoch its rows are, or which checkpoint it publishes; so the version at the cut is the newest of
those that lie in front of it, by the sink's own log (:func:`absflow.sink_cut.newest_before`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from absflow.errors import NotFoundError
from absflow.facts.claim import job_of
from absflow.facts.find import find_checkpoint
from absflow.sink_cut import SinkCut, newest_before
from absflow.storage.delta import tables
from absflow.storage.delta.log import Commit
from absflow.storage.delta.log_back import LogBack
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.sql import quoted, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from absflow.protocol.checkpoints import StageColumns

__all__ = ["SinkVersion", "View", "view_at"]

# The text, and the stage's columns.
StateSql = Callable[[], "tuple[str, StageColumns]"]


@dataclass(frozen=True, slots=True)
class SinkVersion:
    """A version of a sink's Delta table; any reader of Delta can open it.

    Attributes:
        path: the table's, with its scheme.
        version: the table's.
    """

    path: str
    version: int


class View:
    """Sinks and states at one checkpoint; made by :meth:`absflow.History.view`.

    Attributes:
        checkpoint: its id.
        sinks: by name, the version that each sink's table had.
        lacking: by name, why there is no such version of another sink.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: int,
        found: tuple[Mapping[str, SinkVersion], Mapping[str, str]],
        states: Mapping[str, StateSql],
    ) -> None:
        """Use :meth:`absflow.History.view` instead."""
        self._spark = spark
        self._states = states
        self.checkpoint = checkpoint
        self.sinks = MappingProxyType({**found[0]})
        self.lacking = MappingProxyType({**found[1]})

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that have state."""
        return tuple(self._states)

    def sink(self, name: str) -> DataFrame:
        """The rows of a sink's table at the checkpoint.

        Raises:
            NotFoundError: there is no such sink, or no such version of its table.
        """
        return self._spark.sql(self._sink_sql(name))

    def state(self, stage: str) -> DataFrame:
        """The state of a stage, as :meth:`absflow.History.state` has it.

        Raises:
            NotFoundError: there is no such stage.
        """
        if stage not in self._states:
            raise NotFoundError(
                f"there is no stage {stage!r} with state at checkpoint {self.checkpoint}, only "
                f"{', '.join(self._states) or 'none'}"
            )
        return self._spark.sql(self._states[stage]()[0])

    def create_views(self, prefix: str = "") -> list[str]:
        """Create (or replace) a temporary view ``<name>_at`` of each sink and each state.

        A ``-`` in a name becomes ``_``. They show this checkpoint until they are made anew.

        Args:
            prefix: stands before each name.

        Returns:
            The names.

        Raises:
            NotFoundError: two would have one name, or a sink has no such version.
        """
        texts = [(name, self._sink_sql(name)) for name in (*self.sinks, *self.lacking)]
        texts += [(name, sql()[0]) for name, sql in self._states.items()]
        made: dict[str, str] = {}
        for name, text in texts:
            view = f"{prefix}{name.replace('-', '_')}_at"
            if view in made:
                raise NotFoundError(
                    f"two of the sinks and stages would be the view {view!r}; open them by "
                    "sink() and state(), and name them yourself"
                )
            made[view] = text
        for view, text in made.items():
            self._spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(view)} AS {text}")
        return [*made]

    def _sink_sql(self, name: str) -> str:
        if name in self.lacking:
            raise NotFoundError(self.lacking[name])
        if name not in self.sinks:
            raise NotFoundError(
                f"there is no sink {name!r} at checkpoint {self.checkpoint}, only "
                f"{', '.join(self.sinks) or 'none'}"
            )
        found = self.sinks[name]
        return f"SELECT * FROM {table(found.path)} VERSION AS OF {found.version}"


def view_at(
    spark: SparkSession, layout: Layout, checkpoint: int, states: Mapping[str, StateSql]
) -> View:
    """The view at a checkpoint that is completed.

    Args:
        spark: the session.
        layout: the job's storage root.
        checkpoint: its id.
        states: by stage, what makes a SELECT of its state then; by the sets that are there now.
    """
    return View(spark, checkpoint, _sinks_at(spark, layout, checkpoint), states)


def _sinks_at(
    spark: SparkSession, layout: Layout, checkpoint: int
) -> tuple[Mapping[str, SinkVersion], Mapping[str, str]]:
    """The versions of a job's sinks; and why another has none, in words.

    Sinks that are no tables are in neither.
    """
    files = Files(spark)
    found = find_checkpoint(spark, files, layout.root, checkpoint)
    job = job_of(files, layout)
    versions: dict[str, SinkVersion] = {}
    lacking: dict[str, str] = {}
    for name, (path, begun) in found.sinks.items():
        cut = SinkCut(job, found.attempt, found.cut, begun)
        newest = tables.found_version(files, path) if path else None
        seen = None
        if newest is not None:
            seen = newest_before(LogBack(files, path, newest).commits(), cut)
        if seen is not None and name in found.published and not _publishes(seen, found.cut):
            lacking[name] = (
                f"on-checkpoint sink {name!r} ({path!r}) has no version of checkpoint "
                f"{checkpoint}: it is published soon, or its rows went out with a later one"
            )
        elif seen is not None:
            versions[name] = SinkVersion(path, seen.version)
        elif path and newest is None and files.exists(f"{path}/manifests"):
            lacking[name] = (
                f"sink {name!r} ({path!r}) is no table; its manifests up to checkpoint "
                f"{checkpoint} name the files that it had"
            )
        elif path:
            lacking[name] = (
                f"sink {name!r} ({path!r}) has no version of checkpoint {checkpoint} any more: "
                "the table is gone, or its log begins after that"
            )
    return versions, lacking


def _publishes(commit: Commit, checkpoint: int) -> bool:
    return bool(commit.note.get("published") == checkpoint)
