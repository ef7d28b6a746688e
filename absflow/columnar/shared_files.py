"""Small files of the key groups of a range, put together into one for each micro-batch.

Each file costs a few requests of an object store or name node, whatever is in it, and a key group
whose recent rows lie in files writes one in each micro-batch. So what the key groups of a range
write in one micro-batch goes into one file together, unless it is large. Each gets the name of a
part of that file (:func:`~absflow.columnar.piece_files.part_name`), and keeps and forgets it as it
would a file of its own.

The file is called after its batch and a checksum, as all files of state are. So a batch that is run
again names the file that it named before, and it does not matter which of the two runs Spark has
kept: after a kill it may be the first one, and with a second run at the same time either of them.

The file goes when no key group of the range names a part of it any more. So a key group that does
not change for long may keep the whole of a file for its own part; the parts are small for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from absflow.columnar.piece_files import StateFiles, file_of, part_name
from absflow.columnar.stored import KeyGroupState, sweep

__all__ = ["SharedFiles"]

# What is larger has a file of its own, which goes when its key group lets it go.
PART_BYTES = 4 << 20
# Parts wait in memory until they are so many bytes.
FILE_BYTES = 32 << 20


class SharedFiles:
    """The files of a range's key groups in one micro-batch: :class:`StateFiles` for each of them.

    To be closed behind the last key group, before anything that names a file is kept.
    """

    def __init__(self, files: StateFiles, folder: str, batch_id: int) -> None:
        """Begin with nothing written.

        Args:
            files: where all lies.
            folder: of the range, for the files that are shared.
            batch_id: the micro-batch.
        """
        self._files, self._folder, self._batch = files, folder, batch_id
        self._parts: list[Any] = []
        self._size, self._digest = 0, hashlib.sha256()
        # The names of files that are written, by what their parts are called before.
        self._names: dict[str, str] = {}

    @property
    def _unnamed(self) -> str:
        # The parts get names before it is known what else the file will have.
        return f"{self._folder}/{self._batch}-unnamed-{len(self._names)}"

    @property
    def max_inline(self) -> int:
        """Of :class:`~absflow.columnar.piece_files.StateFiles`, as all of these."""
        return self._files.max_inline

    def read(self, name: str) -> tuple[Any, bool]:
        """As the files do."""
        return self._files.read(name)

    def write(self, place: str, parts: Iterable[Any], name: Callable[[], str]) -> str:
        """Into the file that is shared, if it is small; then what :meth:`close` will name."""
        mine: list[Any] = []
        size, coming = 0, iter(parts)
        for part in coming:
            mine.append(part)
            size += len(part)
            if size > PART_BYTES:
                return self._files.write(place, chain(mine, coming), name)
        made = part_name(self._unnamed, self._size, size)
        self._parts += mine
        self._size += size
        self._digest.update(f"{name()} {size} ".encode())  # a checksum of the bytes is in the name
        if self._size >= FILE_BYTES:
            self._write_shared()
        return made

    def _write_shared(self) -> None:
        name = f"{self._folder}/{self._batch}-shared-{self._digest.hexdigest()[:16]}"
        parts, self._parts = self._parts, []
        self._files.write(name, parts, lambda: name)
        self._names[self._unnamed] = name
        self._size, self._digest = 0, hashlib.sha256()

    def delete(self, name: str) -> None:
        """Delete a file; a part goes with the last one of its file, when this is closed."""
        if file_of(name) == name:
            self._files.delete(name)

    def names(self, folder: str) -> list[str]:
        """As the files do."""
        return self._files.names(folder)

    def finish(self) -> None:
        """As the files do, of what is written so far."""
        self._files.finish()

    def close(
        self, before: Mapping[int, KeyGroupState], after: Mapping[int, KeyGroupState]
    ) -> dict[int, KeyGroupState]:
        """Write what waits, name all parts, and delete the files of which none is named any more.

        A key group names a part until the batch that replaced it is committed, and Spark runs no
        batch again that is older. What earlier batches have left here and nobody ever named goes,
        too: a worker that was killed has left it.

        Args:
            before: what the key groups of the range have kept.
            after: what they keep from now on, as :meth:`write` has called it.

        Returns:
            What they keep, by the names of the files.

        Raises:
            StorageError: a file cannot be written.
        """
        if self._parts:
            self._write_shared()
        named = {key_group: self._named(kept) for key_group, kept in after.items()}
        old, needed = _shared(before), _shared(named)
        for name in old - needed:
            self._files.delete(name)
        if self._names:
            sweep(self._files, self._folder, self._batch, old | needed)
        return named

    def _named(self, kept: KeyGroupState) -> KeyGroupState:
        base, recent, held = kept.base, kept.recent, kept.held_files
        for unnamed, name in self._names.items():
            base, recent, held = (
                text.replace(f"{unnamed}#", f"{name}#") for text in (base, recent, held)
            )
        return replace(kept, base=base, recent=recent, held_files=held)


def _shared(states: Mapping[int, KeyGroupState]) -> set[str]:
    """The files of which a part is named, be it only to be let go."""
    named = (name for kept in states.values() for name in (*kept.files, *kept.stale.split()))
    files = ((file_of(name), name) for name in named)
    return {file for file, name in files if file != name}
