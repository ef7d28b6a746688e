"""What the workers that write a batch's rows send to the driver beside them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from absflow.columnar.digest import added
from absflow.columnar.pages import PageKind
from absflow.protocol.checkpoints import SetDigest
from absflow.spark.batch.pages import is_kind
from absflow.spark.worker.snapshot_files import Histories

__all__ = ["WorkerOutput", "read_reports"]


class WorkerOutput:
    """The messages of one batch's :class:`~absflow.spark.worker.snapshot_files.SnapshotFiles`.

    Attributes:
        histories: the tables for which the workers have written files.
        reports: by stage, key group and payload of its REPORT pages.
        adds: by stage and checkpoint, the actions that add files to the state history.
        digests: by stage, of the sets in these files.
    """

    def __init__(self, histories: Histories, messages: Iterable[str] = ()) -> None:
        """Sort the messages by stage."""
        self.histories = histories
        self.reports: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.adds: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        parts: dict[str, list[SetDigest]] = defaultdict(list)
        for message in messages:
            ((what, content),) = json.loads(message).items()
            if what == "report":
                stage, key_group, payload = content
                self.reports[stage].append((key_group, payload))
            elif what == "digest":
                stage, *numbers = content
                parts[stage].append(SetDigest(*numbers))
            else:
                stage, checkpoint_id, action = content
                self.adds[stage][checkpoint_id].append(action)
        self.digests = {stage: added(of_stage) for stage, of_stage in parts.items()}


def read_reports(pages: DataFrame) -> WorkerOutput:
    """The REPORT pages of a batch whose rows no worker wrote; a Spark job of its own."""
    output = WorkerOutput({})
    reports = pages.where(is_kind(PageKind.REPORT)).select("input", "key_group", "payload")
    for stage, key_group, payload in reports.collect():
        output.reports[stage].append((key_group, payload.decode()))
    return output
