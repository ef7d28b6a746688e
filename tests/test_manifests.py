"""Manifests of files: what counts is what the job has published and not left, whoever dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.destinations.manifests import Manifest, ManifestFolder
from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.branch import Branch, branch_ids, branch_of
from absflow.sinks import SinkCut

JOB = "0b5c-77"
ROOT = "file:/job"


class KilledError(Exception):
    """The driver dies."""


@dataclass
class Store:
    """A storage in memory; whoever uses it dies before a change, if it is that one's turn."""

    files: dict[str, bytes] = field(default_factory=dict)
    left: int | None = None

    def _change(self) -> None:
        if self.left == 0:
            raise KilledError
        if self.left is not None:
            self.left -= 1

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def write(self, path: str, data: Any) -> None:
        self._change()
        self.files[path] = bytes(data)

    add = write

    def create(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return self.files[path] == data
        self.write(path, data)
        return True

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, folder: str) -> list[str]:
        return sorted(
            path.rpartition("/")[2] for path in self.files if path.rpartition("/")[0] == folder
        )

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._change()
            self.files.pop(path, None)


@dataclass
class Job:
    """A job whose drivers complete checkpoints and publish them to one folder."""

    store: Store = field(default_factory=Store)
    attempts: list[Attempt] = field(default_factory=lambda: [Attempt(1, None, ready=True)])
    completed: dict[int, int] = field(default_factory=dict)
    # Of the attempt of now, what its driver counts as published.
    published: int = 0
    # What each older driver was about to publish, in its order, when it was replaced.
    late: list[list[int]] = field(default_factory=list)

    @property
    def folder(self) -> ManifestFolder:
        return ManifestFolder(self.store, "file:/out")

    @property
    def branch(self) -> list[int]:
        """The checkpoints of the job as it is now, oldest first."""
        ids, _ = branch_ids(ROOT, self.attempts, self.completed, {})
        return ids[::-1]

    def complete(self) -> None:
        self.completed[len(self.completed) + 1] = self.attempts[-1].attempt

    def publish(self, n: int) -> None:
        """Files of this name; another driver's have the same rows."""
        name = Manifest(JOB, n, self.completed[n], "out")
        if not self.folder.has(name):
            self.folder.publish(name, [f"{self.folder.files(name)}/{n}"])
        self.folder.tidy(name)

    def publish_next(self) -> None:
        due = [n for n in self.branch if n > self.published]
        if due:
            self.publish(due[0])
            self.published = due[0]

    def restore(self, target: int, dies_after: int | None) -> None:
        """Begin an attempt with a checkpoint; a driver that dies leaves it to the next."""
        attempt = Attempt(len(self.attempts) + 1, Origin(ROOT, target), ready=True)
        found = branch_of(ROOT, [*self.attempts, attempt], self.completed, {})
        behind = Branch(found.parts[1:])
        left = tuple((a, n) for n, a in self.completed.items() if not behind.holds(a, n))
        cut = SinkCut("j", 1, target, None, JOB, "out", behind, left)
        planned = self.folder.plan(cut)
        self.store.left = dies_after
        try:
            self.folder.carry_out(planned)
        finally:
            self.store.left = None
        held = planned.published
        noted = self.published if self.attempts[-1].attempt == self.completed[target] else 0
        self.late.append([n for n in self.branch if n > self.published])
        self.attempts.append(attempt)
        self.published = min(target, noted if held is None else held)

    def visible(self) -> list[str]:
        """What a reader finds that knows nothing of absflow."""
        found: list[str] = []
        for path, text in self.store.files.items():
            if path.startswith("file:/out/manifests/"):
                found += [line.rpartition("/")[2] for line in text.decode().splitlines()]
        return sorted(found, key=int)


@settings(max_examples=1500)
@given(st.data())
def test_readers_see_what_is_on_the_branch(data: st.DataObject) -> None:
    """Over restores to any checkpoint, killed at any change, with older drivers that wake up."""
    job = Job()
    things = st.sampled_from(["complete", "complete", "publish", "publish", "restore", "late"])
    for thing in data.draw(st.lists(things, max_size=25)):
        if thing == "complete":
            job.complete()
        elif thing == "publish":
            job.publish_next()
        elif thing == "restore" and job.completed:
            target = data.draw(st.sampled_from(sorted(job.completed)))
            for dies_after in data.draw(st.lists(st.integers(0, 6), max_size=2)):
                try:
                    job.restore(target, dies_after)
                    break
                except KilledError:
                    target = data.draw(st.sampled_from([target, *job.completed]))
            else:
                job.restore(target, None)
        elif thing == "late" and job.late:
            waiting = data.draw(st.sampled_from(job.late))
            if waiting:
                job.publish(waiting.pop(0))
        assert set(job.visible()) <= {str(n) for n in job.branch}
    while job.published < max(job.branch, default=0):
        job.publish_next()
    assert job.visible() == [str(n) for n in job.branch]


def test_names_of_manifests() -> None:
    """Other files of the folder are none."""
    name = Manifest("8f-1", 12, 3, "out-2")
    assert str(name) == "8f-1-0000000012-attempt3-out-2"
    assert Manifest.from_name(str(name)) == name
    assert Manifest.from_name(".hidden") is None


def test_what_a_killed_task_left_is_deleted() -> None:
    store = Store()
    folder, name = ManifestFolder(store, "file:/out"), Manifest(JOB, 1, 1, "out")
    mine, other = f"{folder.files(name)}/a.csv", f"{folder.files(name)}/b.csv"
    store.files = {mine: b"", other: b""}
    folder.publish(name, [mine])
    folder.publish(name, [other])  # of a driver that comes late
    folder.tidy(name)
    assert mine in store.files
    assert other not in store.files
