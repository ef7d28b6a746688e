"""What goes of a log is never what a reader, or a checkpoint under way, may still ask for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.facts.inventory import JobInventory
from absflow.spark.control.old_logs import OldLogs
from absflow.spark.model import JobSpec
from absflow.storage.delta.log import log_file
from absflow.storage.files import Files
from absflow.storage.layout import Layout

LAYOUT = Layout("/job")
CHANNEL = LAYOUT.channel("from", 1)
READERS = ("a", "b")


def graph() -> JobSpec:
    """Two queries that read the channel of a third."""
    source = SimpleNamespace(inputs=[SimpleNamespace(name="rows", root=True, channel=False)])
    reader = SimpleNamespace(inputs=[SimpleNamespace(name="from", root=False, channel=True)])
    stages = {"from": source, **dict.fromkeys(READERS, reader)}
    made = SimpleNamespace(stages=stages, chains=[(name,) for name in stages])
    return cast(JobSpec, SimpleNamespace(graph=made))


class Job:
    """A channel with a commit in every step, two readers, and checkpoints that overtake."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.newest = -1
        self.batches = dict.fromkeys(READERS, 0)
        self.at = dict.fromkeys(READERS, 0)
        self.triggered = 0
        self.pending: dict[int, dict[str, int]] = {}  # what it has overtaken, by reader
        self.logs = OldLogs(cast(Any, None), cast(Files, self), LAYOUT, graph())
        self.logs._ids = dict.fromkeys((CHANNEL, LAYOUT.barriers, LAYOUT.overtakes), "id")
        self.commit()

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, directory: str) -> list[str]:
        inside = (path.removeprefix(f"{directory}/") for path in self.files)
        return [name for name in inside if "/" not in name]

    def delete(self, path: str) -> None:
        del self.files[path]

    def commit(self) -> None:
        """Somebody writes to the channel, and Delta and a VACUUM go along."""
        self.newest += 1
        note = json.dumps({"commitInfo": {"timestamp": 1}})
        self.files[log_file(CHANNEL, self.newest)] = note
        log = f"{CHANNEL}/_delta_log"
        self.files[f"{log}/_last_checkpoint"] = json.dumps({"version": self.newest})
        info = {"latestCommitVersionOutsideOfRetentionWindow": self.newest}
        self.files[f"{log}/_last_vacuum_info"] = json.dumps(info)

    def batch(self, reader: str) -> None:
        """A reader reads what is there, and its batch is committed."""
        place = LAYOUT.spark_checkpoint(reader, 1)
        self.at[reader] = self.newest
        position = {"reservoirId": "id", "reservoirVersion": self.newest, "index": -1}
        text = json.dumps({**position, "isStartingVersion": False})
        self.files[f"{place}/offsets/{self.batches[reader]}"] = text
        self.files[f"{place}/commits/{self.batches[reader]}"] = ""
        self.batches[reader] += 1

    def overtake(self, reader: str) -> None:
        for overtaken in self.pending.values():
            overtaken.setdefault(reader, self.at[reader])

    def plan(self) -> None:
        pending = [
            SimpleNamespace(barrier=SimpleNamespace(checkpoint_id=n)) for n in sorted(self.pending)
        ]
        found = SimpleNamespace(
            inventory=SimpleNamespace(
                attempt=1, channels=[SimpleNamespace(stage="from", attempt=1)]
            ),
            known=SimpleNamespace(triggered=self.triggered, pending=pending),
            sets={},
        )
        for _, act in self.logs.due(cast(JobInventory, found)):
            act()

    def first(self) -> int:
        names = self.names(f"{CHANNEL}/_delta_log")
        return min(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def check(self) -> None:
        """The last committed batch of each reader can be asked for again, and what is in flight."""
        for reader in READERS:
            if self.batches[reader] > 1:
                place = LAYOUT.spark_checkpoint(reader, 1)
                text = self.files[f"{place}/offsets/{self.batches[reader] - 2}"]
                assert self.first() <= json.loads(text)["reservoirVersion"]
            else:
                assert self.first() == 0
        for overtaken in self.pending.values():
            assert self.first() <= min(overtaken.values(), default=self.newest)


STEPS = st.sampled_from(
    ["go", "plan", "plan", "batch a", "batch b", "trigger", "overtake a", "overtake b", "end"]
)


@settings(max_examples=200)
@given(st.lists(STEPS, min_size=10, max_size=60))
def test_what_may_still_be_asked_for_stays(steps: list[str]) -> None:
    """In any order of batches, triggers, overtakes, ends and plans."""
    job = Job()
    for step in steps:
        what, _, reader = step.partition(" ")
        match what:
            case "go":
                for each in READERS * 2:
                    job.commit()
                    job.batch(each)
            case "batch":
                job.batch(reader)
            case "trigger":
                job.triggered += 1
                job.pending[job.triggered] = {}
            case "overtake":
                job.overtake(reader)
            case "end" if job.pending:
                del job.pending[min(job.pending)]
            case "plan":
                job.plan()
        job.check()


def test_a_log_stays_short() -> None:
    """Whatever a job that goes on has written, of each channel a few commits are left."""
    job = Job()
    for number in range(1, 200):
        job.triggered = number
        job.pending = {number: {}}
        job.commit()
        for reader in READERS:
            job.batch(reader)
            job.overtake(reader)
        job.pending = {}
        job.plan()
        assert job.newest - job.first() < 6
