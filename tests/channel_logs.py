"""The log of a channel, written as a stage writes it."""

from __future__ import annotations

import json


class Channel:
    """A log in memory, commit n at n seconds; each file has 10 rows and 100 bytes."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.commit({}, [])  # CREATE TABLE

    def commit(self, note: dict[str, object], actions: list[dict[str, object]]) -> None:
        at_ms = 1000 * len(self.files)
        info = {"commitInfo": {"userMetadata": json.dumps(note), "timestamp": at_ms}}
        text = "\n".join(map(json.dumps, [info, *actions]))
        self.files[f"c/_delta_log/{len(self.files):020d}.json"] = text

    def rows(self, batch: int, *epochs: int) -> None:
        """The rows of a batch, a file for each of these epochs."""
        adds = [
            {
                "add": {
                    "path": f"_epoch={epoch}/{batch}-{number}",
                    "partitionValues": {"_epoch": str(epoch)},
                    "size": 100,
                    "stats": json.dumps({"numRecords": 10}),
                }
            }
            for number, epoch in enumerate(epochs)
        ]
        self.commit({"rows": "rows", "stage": "s", "batch": batch}, adds)

    def control(self, batch: int, words: str) -> None:
        """The barriers of a batch."""
        self.commit({"rows": words, "stage": "s", "batch": batch}, [])


def at(version: int, index: int) -> str:
    """A position as Spark writes it."""
    place = {"reservoirId": "c", "reservoirVersion": version, "index": index}
    return json.dumps({**place, "sourceVersion": 1, "isStartingVersion": False})
