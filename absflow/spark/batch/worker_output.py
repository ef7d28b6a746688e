"""What the workers that ran a batch send to the driver beside its rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from absflow.columnar.digest import added
from absflow.columnar.pages import Page, PageKind
from absflow.protocol.checkpoints import SetDigest
from absflow.spark.batch.pages import is_kind
from absflow.spark.worker.output_rows import SENT, message_of

__all__ = ["WorkerOutput", "read_sent"]


class WorkerOutput:
    """The REPORT and WRITTEN pages of one batch.

    Attributes:
        reports: by stage, key group and payload of its REPORT pages.
        adds: by stage and checkpoint, the actions that add files to the state history.
        digests: by stage, of the sets in these files.
    """

    def __init__(self, messages: Iterable[Sequence[Any]] = ()) -> None:
        """Sort the messages (:func:`~absflow.spark.worker.output_rows.message_of`) by stage."""
        self.reports: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.adds: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        parts: dict[str, list[SetDigest]] = defaultdict(list)
        for kind, stage, key_group, checkpoint_id, text in messages:
            if PageKind(kind) is PageKind.REPORT:
                self.reports[stage].append((key_group, text))
            else:
                written = json.loads(text)
                self.adds[stage][checkpoint_id] += written["adds"]
                parts[stage].append(SetDigest(checkpoint_id, *written["digest"]))
        self.digests = {stage: added(of_stage) for stage, of_stage in parts.items()}


def read_sent(pages: DataFrame) -> WorkerOutput:
    """That of a batch whose rows no worker wrote; a Spark job of its own."""
    sent = pages.where(is_kind(*SENT)).collect()
    return WorkerOutput(message_of(Page.from_row(row)) for row in sent)
