"""Where a job's sources, sinks and storage root lie: none may read or clean up what another writes.

Spark's file source reads all that lies below its folder, and ``VACUUM`` of a Delta table deletes
all that lies below its path and is not its own. Both pass over names that begin with ``_`` or
``.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from absflow.errors import GraphError

__all__ = ["check_places"]


def check_places(root: str, sources: Mapping[str, str], sinks: Mapping[str, str]) -> None:
    """Refuse places within each other.

    Args:
        root: the storage root; all paths are qualified.
        sources: folders (there may be wildcards in them) and tables, by the source's name.
        sinks: tables, by the sink's name.

    Raises:
        GraphError: naming the two, and what to do.
    """
    storage = ("the storage root", root)
    read = [(f"source {name!r}", path) for name, path in sources.items()]
    written = [(f"sink {name!r}", path) for name, path in sinks.items()]
    for what, path in (*read, *written):
        if _inside(path, root):
            raise GraphError(
                f"{what} lies at {path!r}, within the storage root {root!r}, where only absflow "
                f"writes; give it a place of its own"
            )
    for what, path in read:
        for other, below in (storage, *written):
            if _reaches(path, below):
                raise GraphError(
                    f"{other} lies at {below!r}, where {what} reads ({path!r}): its files would be "
                    "taken for rows, or be deleted by a VACUUM of the table; put it elsewhere, or "
                    "below a folder whose name begins with _"
                )
    for number, (what, path) in enumerate(written):
        others = [w for at, w in enumerate(written) if at != number]
        for other, below in (storage, *read, *others):
            if below.rstrip("/") != path.rstrip("/") and _reaches(path, below):
                raise GraphError(
                    f"{other} lies at {below!r}, within the table of {what} ({path!r}), whose "
                    "VACUUM would delete its files; put it elsewhere"
                )


def _inside(path: str, folder: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _reaches(folder: str, path: str) -> bool:
    """Whether ``path`` is among what is listed below a folder, or is the folder."""
    above, below = folder.rstrip("/").split("/"), path.rstrip("/").split("/")
    if len(below) < len(above):
        return False
    hidden = any(name.startswith(("_", ".")) for name in below[len(above) :])
    return not hidden and all(map(_matches, below, above))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
