"""TODO."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from absflow.spark.worker.snapshot_files import Histories

__all__ = ["WorkerOutput"]


class WorkerOutput:
    """What the workers told beside the rows of a batch.

    Attributes:
        histories: the tables for which they have written files.
        reports: by stage key group and payload of its REPORT pages.
        adds: by stage and checkpoint the actions that add files to the state history.
    """

    def __init__(self, histories: Histories) -> None:
        self.histories = histories
        self.reports: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.adds: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def hear(self, text: str) -> None:
        """Take one thing that :class:`SnapshotFiles` told."""
        ((what, told),) = json.loads(text).items()
        if what == "report":
            stage, key_group, payload = told
            self.reports[stage].append((key_group, payload))
        else:
            stage, checkpoint_id, action = told
            self.adds[stage][checkpoint_id].append(action)
