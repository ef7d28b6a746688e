"""The manifests of a folder of files: which of these count.

Below the path of a sink are three folders. ``files`` has the rows; a file there may be of a task
that died. ``manifests`` has a text for each checkpoint that was published, with a line for each of
its files, so whoever reads what the manifests name sees each row once (Hive, Trino and Athena read
such a folder by ``SymlinkTextInputFormat``). ``withdrawn`` has the manifests of checkpoints that a
restore has left; in ``manifests`` they are empty.

A manifest is created under a name that must be free. Of a driver that publishes again, and of one
that has been replaced and does not know it yet, the first one has it. A restore takes the names
that the older driver may still come with (it *seals* them). It notes first what it is about to
change, and a start after a kill does that again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from absflow.sinks import SinkCut, SinkRestore
from absflow.storage.stores.contract import Store

__all__ = ["Manifest", "ManifestFolder", "ManifestsRestore"]

_NAME = re.compile(r"(?P<job>.+)-(?P<checkpoint>\d{10,})-attempt(?P<attempt>\d+)-(?P<sink>.+)")
# The withdrawn text of one that was never published.
_SEALED = b"not published\n"
_AT_ONCE = 8


@dataclass(frozen=True, slots=True, order=True)
class Manifest:
    """The name of a manifest.

    Attributes:
        job_id: of the storage root, so that no two jobs share a name.
        checkpoint_id: the checkpoint.
        attempt: the attempt that took it.
        sink: the sink's name then.
    """

    job_id: str
    checkpoint_id: int
    attempt: int
    sink: str

    def __str__(self) -> str:
        return f"{self.job_id}-{self.checkpoint_id:010d}-attempt{self.attempt}-{self.sink}"

    @classmethod
    def from_name(cls, name: str) -> Manifest | None:
        """What :meth:`__str__` gave; None for any other text."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(found["job"], int(found["checkpoint"]), int(found["attempt"]), found["sink"])


@dataclass(frozen=True, slots=True)
class ManifestsRestore(SinkRestore):
    """What a restore means for manifests.

    Attributes:
        withdrawn: those that become empty.
        returned: those that come back.
        sealed: names that nobody is to create any more.
    """

    withdrawn: tuple[Manifest, ...] = ()
    returned: tuple[Manifest, ...] = ()
    sealed: tuple[Manifest, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestFolder:
    """The folder of a sink.

    Attributes:
        store: has it.
        path: its path there.
    """

    store: Store
    path: str

    def files(self, name: Manifest) -> str:
        """Where the files of a manifest belong."""
        return f"{self.path}/files/{name}"

    def has(self, name: Manifest) -> bool:
        """Whether it was published, or sealed."""
        return self.store.read(self._manifest(name)) is not None

    def publish(self, name: Manifest, paths: Iterable[str]) -> None:
        """Make files visible, unless the manifest is there."""
        self.store.create(self._manifest(name), "".join(f"{path}\n" for path in paths).encode())

    def tidy(self, name: Manifest) -> None:
        """Delete what tasks that died have left beside the files that a manifest names."""
        text = self.store.read(self._manifest(name)) or b""
        named = {line.rpartition("/")[2] for line in text.decode().splitlines()}
        folder = self.files(name)
        left = [file for file in self.store.names(folder) if file not in named]
        self.store.delete([f"{folder}/{file}" for file in left])

    def plan(self, cut: SinkCut) -> ManifestsRestore:
        """What puts the folder back to a cut; changes nothing."""
        names = _of_job(self.store.names(f"{self.path}/manifests"), cut.job_id)
        gone = _of_job(self.store.names(f"{self.path}/withdrawn"), cut.job_id)
        text = self.store.read(self._journal)
        # A restore was about to change these when it died; they may be either.
        unsure = set() if text is None else _of_job(json.loads(text), cut.job_id)
        behind = {n for n in names | gone if cut.behind.holds(n.attempt, n.checkpoint_id)}
        # Publications go in order: an older driver may come with those behind the newest only.
        newest: dict[int, int] = {}
        for name in names - gone:
            newest[name.attempt] = max(name.checkpoint_id, newest.get(name.attempt, 0))
        sealed = {
            Manifest(cut.job_id, checkpoint_id, attempt, sink)
            for attempt, checkpoint_id in cut.left
            for sink in {cut.sink, *(name.sink for name in names)}
            if checkpoint_id > newest.get(attempt, 0)
        }
        withdrawn = sorted(((names - gone) | unsure) - behind)
        returned = sorted((gone | unsure) & behind)
        kept = behind - {name for name in returned if self._is_sealed(name)}
        return ManifestsRestore(
            self.path,
            undone=tuple(f"checkpoint {n.checkpoint_id} (attempt {n.attempt})" for n in withdrawn),
            published=max((name.checkpoint_id for name in kept), default=None),
            withdrawn=tuple(withdrawn),
            returned=tuple(returned),
            sealed=tuple(sorted(sealed - names)),
        )

    def carry_out(self, planned: ManifestsRestore) -> None:
        """Do as planned; again after a kill, by a plan that is made anew."""
        changed = [*planned.withdrawn, *planned.returned, *planned.sealed]
        if not changed:
            return
        self.store.write(self._journal, json.dumps([str(name) for name in changed]).encode())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for change, names in (
                (self._seal, planned.sealed),
                (self._withdraw, planned.withdrawn),
                (self._give_back, planned.returned),
            ):
                list(pool.map(change, names))
        self.store.delete([self._journal])

    def _withdraw(self, name: Manifest) -> None:
        """Its text is kept first, and of two the first one."""
        text = self.store.read(self._manifest(name))
        if text is not None:
            self.store.create(self._copy(name), text)
            self.store.write(self._manifest(name), b"")

    def _give_back(self, name: Manifest) -> None:
        """Make a manifest what it was; one that was sealed may be created again."""
        text = self.store.read(self._copy(name))
        if text is None:
            return
        if text == _SEALED:
            self.store.delete([self._manifest(name)])
        else:
            self.store.write(self._manifest(name), text)
        self.store.delete([self._copy(name)])

    def _seal(self, name: Manifest) -> None:
        """One that somebody has created meanwhile is withdrawn."""
        self.store.create(self._copy(name), _SEALED)
        if not self.store.create(self._manifest(name), b""):
            self.store.delete([self._copy(name)])
            self._withdraw(name)

    def _is_sealed(self, name: Manifest) -> bool:
        return self.store.read(self._copy(name)) == _SEALED

    @property
    def _journal(self) -> str:
        return f"{self.path}/restoring"

    def _manifest(self, name: Manifest) -> str:
        return f"{self.path}/manifests/{name}"

    def _copy(self, name: Manifest) -> str:
        return f"{self.path}/withdrawn/{name}"


def _of_job(names: Iterable[str], job_id: str) -> set[Manifest]:
    found = (Manifest.from_name(name) for name in names)
    return {name for name in found if name is not None and name.job_id == job_id}
