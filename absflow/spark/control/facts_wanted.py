"""Facts that another thread than the one that owns the driver's tables wants written."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from absflow.errors import StorageError
from absflow.protocol.lineage import Compacted
from absflow.spark.control.effects import CoordinatorEffects

__all__ = ["FactWanted"]


@dataclass(frozen=True, slots=True)
class FactWanted:
    """What retention asks of the thread that owns the driver's tables.

    Attributes:
        deleted: checkpoints whose DELETED facts are to be written.
        request: what their deletion answers; empty if retention decided it.
        refused: why this request is refused, to be written in the place of them.
        compacted: a COMPACTED fact to be written.
        done: gets the outcome.
    """

    deleted: Sequence[int] = ()
    request: str = ""
    refused: str = ""
    compacted: Compacted | None = None
    done: Future[None] = field(default_factory=Future)

    def write(self, coordinator: CoordinatorEffects) -> None:
        """Write the facts; on the thread that owns the tables.

        Raises:
            FencedError: there is a newer driver. Any other error only the waiting thread gets: the
                job goes on.
        """
        try:
            if self.deleted:
                coordinator.write_deleted(self.deleted, self.request)
            if self.refused:
                coordinator.write_refusal(self.request, self.refused)
            if self.compacted is not None:
                coordinator.write_compacted(self.compacted)
        except StorageError as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)
