"""What the sources of restored pages of a query read, from its first start to its last.

A restored query has one such source for each stage, behind all others. Batch 0 has read the stage's
state there, and its pages are gone since. The first real batch reads the rows in flight, if there
are any. Spark's offset log wants the source for as long as the attempt lives, so from then on it
reads an empty directory.

The rows in flight are deleted when the batch behind theirs is committed: until then a kill has
Spark run their batch again, or ask for its files once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from absflow.columnar.spec import StageSpec
from absflow.spark.sources.delta import begins_in_batch_2
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["RestoredRows"]


class RestoredRows:
    """Of one start of a query.

    Attributes:
        directories: of each stage, what its source of restored pages reads.
    """

    def __init__(
        self, files: Files, layout: Layout, chain: Sequence[StageSpec], attempt: int
    ) -> None:
        """See what is there, and delete what a query before has read for good."""
        self._files = files
        nothing = layout.nothing(attempt)
        places = {spec.name: layout.in_flight(spec.name, attempt) for spec in chain}
        self._there = [path for path in places.values() if files.exists(path)]
        # No batch up to this one may find them gone: theirs, and the one behind it.
        self._last = 3 if begins_in_batch_2(chain[0]) else 2
        if self._there:
            commits = files.names(f"{layout.spark_checkpoint(chain[0].name, attempt)}/commits")
            if max((int(name) for name in commits if name.isdecimal()), default=-1) >= self._last:
                for path in self._there:
                    files.delete_folder(path)
                self._there = []
        self.directories = {
            name: path if path in self._there else nothing for name, path in places.items()
        }

    def before(self, batch_id: int) -> None:
        """Delete what the batches before this one have read for good."""
        if batch_id <= self._last:
            return
        for path in self._there:
            self._files.delete_folder(path)
            self._files.make_directory(path)  # the query's source lists it for as long as it runs
        self._there = []
