"""The thread that finds what a checkpoint holds besides its reports, before it is committed.

That is the rows in flight of one that has overtaken, and how far each stage is behind. Both stand
in the logs of channels, which have a commit for each micro-batch of a backlog. The job's thread
waits for none of it: it has this thread find it, goes on with other events, and then makes one
commit. Until then the checkpoint is being finalised, so nothing aborts it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from absflow.errors import StorageError
from absflow.protocol.checkpoints import FailureReason, Manifest
from absflow.protocol.coordinator.messages import CheckpointFailed
from absflow.protocol.load import Load

__all__ = ["Finaliser", "ManifestReady"]


@dataclass(frozen=True, slots=True)
class ManifestReady:
    """A manifest that can be committed."""

    manifest: Manifest


class Finaliser:
    """Of one driver's run of a job."""

    def __init__(
        self,
        with_channel_state: Callable[[Manifest], Manifest],
        load_of: Callable[[str], Load],
        post: Callable[[ManifestReady | CheckpointFailed | Exception], None],
    ) -> None:
        """Start the thread.

        Args:
            with_channel_state: adds the rows in flight to a manifest.
            load_of: what a stage is doing.
            post: puts what was found into the queue of the job's thread; or what went wrong.
        """
        self._with_channel_state = with_channel_state
        self._load_of = load_of
        self._post = post
        self._waiting: queue.SimpleQueue[Manifest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="absflow-finaliser", daemon=True)
        self._thread.start()

    def submit(self, manifest: Manifest) -> None:
        """Find what it needs."""
        self._waiting.put(manifest)

    def close(self) -> None:
        """End the thread, behind what was submitted."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (manifest := self._waiting.get()) is not None:
            try:
                self._post(ManifestReady(self._with_channel_state(self._with_load(manifest))))
            except StorageError as error:
                reason = FailureReason.FINALIZE_FAILED
                self._post(CheckpointFailed(manifest.checkpoint_id, reason, str(error)))
            except Exception as error:  # as on the job's thread, which then fails the job
                self._post(error)

    def _with_load(self, manifest: Manifest) -> Manifest:
        stages = (replace(s, load=self._load_of(s.report.stage)) for s in manifest.stages)
        return replace(manifest, stages=tuple(stages))
