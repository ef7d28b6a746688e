"""A stage's alignment, made durable after every micro-batch that changed it.

Not only the alignment: the positions of checkpoints that are still being aligned are kept with it,
because a snapshot may come many batches after the barrier, in another life of the query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from absflow.errors import StorageError
from absflow.protocol import alignment_state, event_time
from absflow.protocol.alignment_state import Alignment
from absflow.protocol.event_time import EventTime
from absflow.storage.files import Files

__all__ = ["AlignmentLog", "Arrived"]

# A replay is of the newest batch at the earliest, so it needs the entry before that and no older.
_KEPT = 2


@dataclass(slots=True)
class Arrived:
    """What is known of a checkpoint between its first barrier and its snapshot.

    Attributes:
        at_ms: when the micro-batch began that brought the first barrier, ms since 1970 (UTC).
        triggered_ms: when the coordinator triggered it.
        positions: end offset per root input whose barrier has come.
        held_rows: most rows held at once so far.
        held_bytes: their bytes.
        newest: of a root input with event time whose barrier has come, the greatest event time of
            each partition there.
        early_rows: rows from behind its barriers that the state has already.
    """

    at_ms: int
    triggered_ms: int
    positions: dict[str, str] = field(default_factory=dict)
    held_rows: int = 0
    held_bytes: int = 0
    newest: dict[str, dict[str, int | None]] = field(default_factory=dict)
    early_rows: int = 0


class AlignmentLog:
    """One file per micro-batch that changed the alignment or event time, in its own directory.

    Attributes:
        began: what was loaded is what the attempt began with.
    """

    def __init__(
        self, files: Files, directory: str, first: Alignment, time: EventTime | None
    ) -> None:
        """Keep the log in ``directory`` of a stage that begins the attempt with these."""
        self._files = files
        self._directory = directory
        self._first = first
        self._time = time
        self._batches: list[int] = []
        self.began = True

    def load(self, batch_id: int) -> tuple[Alignment, EventTime | None, dict[int, Arrived]]:
        """What was saved by the last batch before ``batch_id``; the start if there is none.

        Raises:
            StorageError: if a file is gone that was there a moment ago.
        """
        names = self._files.names(self._directory)
        self._batches = sorted(int(name) for name in names if name.isdecimal())
        before = [n for n in self._batches if n < batch_id]
        self.began = not before
        if self.began:
            return self._first, self._time, {}
        path = f"{self._directory}/{before[-1]}"
        text = self._files.read(path)
        if text is None:
            raise StorageError(f"{path!r} is gone; restore the job")
        state, arrived, *times = text.splitlines()
        notes = {int(n): Arrived(**note) for n, note in json.loads(arrived).items()}
        time = event_time.from_json(times[0]) if times else None
        return alignment_state.from_json(state), time, notes

    def save(
        self,
        batch_id: int,
        state: Alignment,
        time: EventTime | None,
        arrived: Mapping[int, Arrived],
    ) -> None:
        """Put the state after ``batch_id`` in place; a replay writes the same again."""
        notes = json.dumps({n: asdict(note) for n, note in arrived.items()})
        path = f"{self._directory}/{batch_id}"
        lines = [alignment_state.to_json(state), notes]
        lines += [] if time is None else [event_time.to_json(time)]
        self._files.write(path, "\n".join(lines))
        self._batches = [n for n in self._batches if n != batch_id] + [batch_id]
        while len(self._batches) > _KEPT:
            self._files.delete(f"{self._directory}/{self._batches.pop(0)}")
