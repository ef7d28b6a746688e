"""A model of a Delta log with put-if-absent, as :mod:`absflow.facts.driver_table` meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError


class ModelLog:
    """The log of one table; ``step`` is called before each step of a commit."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.log: list[dict[str, Any]] = []
        self.lost_answers = 0

    def read(self, path: str) -> str | None:
        name = path.rpartition("/")[2]
        if name == "_last_checkpoint" or int(name.removesuffix(".json")) >= len(self.log):
            return None
        commit = self.log[int(name.removesuffix(".json"))]
        txn = {"appId": commit["app"], "version": commit["txn"]}
        note = {"userMetadata": json.dumps(commit["note"])}
        return json.dumps({"txn": txn}) + "\n" + json.dumps({"commitInfo": note})

    def append_once(
        self, rows: Any, path: str, app_id: str, txn: int, note: Any, *, if_empty: bool
    ) -> None:
        """As Delta does it: a transaction begins, and later puts its commit."""
        self.step()
        begun = len(self.log)
        if any(c["app"] == app_id and c["txn"] >= txn for c in self.log):
            return
        self.step()
        if any(c["app"] == app_id for c in self.log[begun:]):
            raise Py4JError("ConcurrentTransactionException")
        kinds = [row["kind"] for row in rows.table.to_pylist()]
        self.log.append({"app": app_id, "txn": txn, "note": dict(note), "kinds": kinds})
        if self.lost_answers:
            self.lost_answers -= 1
            raise Py4JError("no answer")
