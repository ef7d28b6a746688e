"""What is said of a damaged file: whose it is, which checkpoints need it, and which do not."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from absflow.errors import DamagedError
from absflow.facts.attempts import stages_under
from absflow.facts.reading import FactReader, StorageReader
from absflow.facts.stages import whose_completed
from absflow.protocol.checkpoints import ChannelState, SetDigest
from absflow.protocol.lineage import lineage_of
from absflow.storage.layout import Layout

__all__ = [
    "ChannelFile",
    "Needed",
    "SetFile",
    "advice",
    "damage_error",
    "file_in",
    "needed_by",
    "part_error",
    "part_of",
    "set_error",
    "spared",
]

# As Spark says it, of files that are damaged and of those that are gone.
_READING = re.compile(r"FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+?)\.\s")
# As a worker says it that reads files itself (storage.delta.data_rows).
_WORKER = re.compile(r"data file '([^']+)' (is gone|cannot be read)")
# Spark says the same when it was the reader that failed (for want of memory, or interrupted), or
# the way to the store: what comes whole by another try is not damaged.
_OF_THE_READER = re.compile(
    "OutOfMemoryError|Cannot reserve additional contiguous bytes"
    "|ClosedByInterruptException|InterruptedIOException"
    "|Premature end of Content-Length|Connect(?:ion(?:Closed|Reset)?)?Exception|SocketException"
    "|(?:Socket|Connect|ApiCall)\\w*Timeout\\w*Exception|NoHttpResponseException"
    "|UnknownHostException|Unable to execute HTTP request|Service: S3, Status Code: 5"
    "|BlockMissingException|NoRouteToHostException"
    "|org\\.apache\\.hadoop\\.ipc\\."  # a call to a name node
)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SetFile:
    """A file of a set.

    Attributes:
        table: the state history.
        set_id: the set.
    """

    table: str
    set_id: int

    def __str__(self) -> str:
        """For people."""
        return f"set {self.set_id} of state history {self.table!r}"


@dataclass(frozen=True, slots=True)
class ChannelFile:
    """A file of a channel.

    Attributes:
        stage: the stage whose channel it is.
        attempt: the attempt whose channel it is.
        epoch: the epoch of its rows; None for the whole channel.
    """

    stage: str
    attempt: int
    epoch: int | None

    def __str__(self) -> str:
        """For people."""
        part = "" if self.epoch is None else f"epoch {self.epoch} of "
        return f"{part}the channel of stage {self.stage!r}, attempt {self.attempt}"


def part_of(path: str, root: str) -> SetFile | ChannelFile | None:
    """What a data file below a storage root belongs to; None if it is no checkpoint's.

    >>> part_of("file:///job/state/left/set_id=7/part-0.parquet", "file:/job")
    SetFile(table='left', set_id=7)
    """
    inside = _inside(path, root)
    if inside is None:
        return None
    if found := re.fullmatch(r"state/([^/]+)/set_id=(-?\d+)/[^/]+", inside):
        return SetFile(found[1], int(found[2]))
    if found := re.fullmatch(r"channels/([^/]+)/attempt=(\d+)/_epoch=(\d+)/[^/]+", inside):
        return ChannelFile(found[1], int(found[2]), int(found[3]))
    return None


def file_in(text: str, root: str) -> tuple[str, str] | None:
    """The file below a storage root that an error of Spark is about, and what is the matter.

    The path is from the root on; None if the error is of another kind, or says nothing of the file.
    """
    if _OF_THE_READER.search(text):
        return None
    found = [(path, condition == "FILE_NOT_EXIST") for condition, path in _READING.findall(text)]
    found += [(path, what == "is gone") for path, what in _WORKER.findall(text)]
    for path, gone in found:
        if (inside := _inside(path, root)) is not None:
            return inside, "it is gone" if gone else "its bytes are not what was written"
    return None


def _inside(path: str, root: str) -> str | None:
    plain, folder = (unquote(re.sub("^file:/+", "/", each)) for each in (path, root))
    inside = plain.removeprefix(folder.rstrip("/") + "/")
    return inside if inside != plain else None


@dataclass(frozen=True, slots=True)
class Needed:
    """What a checkpoint that is kept is read from.

    Attributes:
        sets: by the lineages that are read now.
        in_flight: the channels with rows in flight.
    """

    sets: frozenset[SetFile]
    in_flight: tuple[ChannelState, ...] = ()


def needed_by(reader: StorageReader, layout: Layout) -> dict[int, Needed]:
    """What each completed checkpoint that is not deleted needs, by the facts alone."""
    facts = FactReader(reader, layout)
    known = facts.known(triggers=False)
    manifests = facts.stages(known.there)
    stages = stages_under(reader, layout)
    lineages = (
        (stage.report.stage, stage.lineage) for each in manifests.values() for stage in each
    )
    compacted = facts.compacted(lineages)
    found: dict[int, Needed] = {}
    for n, manifest in manifests.items():
        described = stages.by_attempt.get(whose_completed(known.completions[n]), {})
        tables = {name: columns.table for name, columns in described.items()}
        sets = (
            SetFile(tables.get(stage.report.stage, stage.report.stage), set_id)
            for stage in manifest
            for set_id in lineage_of(stage.report.stage, stage.lineage, compacted)
        )
        flying = tuple(state for stage in manifest for state in stage.in_flight)
        found[n] = Needed(frozenset(sets), flying)
    return found


def spared(
    needed: Mapping[int, Needed], damaged: Collection[SetFile | ChannelFile]
) -> tuple[list[int], list[int]]:
    """The checkpoints that need something of what is damaged or gone, and those that do not.

    Args:
        needed: :func:`needed_by`.
        damaged: what is.
    """
    harmed = {n for n, each in needed.items() if any(_touches(n, each, part) for part in damaged)}
    return sorted(harmed), sorted(needed.keys() - harmed)


def _touches(checkpoint_id: int, needed: Needed, damaged: SetFile | ChannelFile) -> bool:
    if isinstance(damaged, SetFile):
        return damaged in needed.sets
    place, epoch = (damaged.stage, damaged.attempt), damaged.epoch
    return any(
        (rows.input, rows.attempt) == place
        and (epoch is None or rows.epoch <= epoch <= checkpoint_id)
        for rows in needed.in_flight
    )


def damage_error(reader: StorageReader, layout: Layout, path: str, what: str) -> DamagedError:
    """The error for a damaged file: its place, and which checkpoints do not need it.

    Args:
        reader: looks into the storage root.
        layout: where things lie.
        path: the file, from the root on.
        what: what is the matter with it.
    """
    damaged = part_of(f"{layout.root}/{path}", layout.root)
    seen = f"file {path!r} under {layout.root!r} is damaged: {what}"
    if damaged is None:
        return DamagedError(f"{seen}; bring it back from a copy of the storage root")
    try:
        harmed, whole = spared(needed_by(reader, layout), [damaged])
    except Exception as error:  # whatever it is, more is damaged than this file
        return DamagedError(f"{seen}. It is of {damaged}; what needs it is not known: {error}")
    return DamagedError(f"{seen}. It is of {damaged}. {advice(harmed, whole)}")


def set_error(
    reader: StorageReader,
    layout: Layout,
    table: str,
    due: SetDigest,
    seen: SetDigest,
    files: Collection[str],
) -> DamagedError:
    """The error for a set that has other rows than were written.

    Args:
        reader: looks into the storage root.
        layout: where things lie.
        table: the state history.
        due: what was written.
        seen: what is there.
        files: the files of the set that are there.
    """
    what = f"{seen.rows} rows, but {due.rows} were written"
    if seen.rows == due.rows:
        what = f"{seen.rows} rows, as were written, but with other values"
    names = ", ".join(sorted(path.rpartition("/")[2] for path in files)[:_SHOWN]) or "none"
    seen_is = f"it has {what}. Its files: {names}"
    return part_error(reader, layout, SetFile(table, due.set_id), seen_is)


def part_error(
    reader: StorageReader, layout: Layout, damaged: SetFile | ChannelFile, what: str
) -> DamagedError:
    """The error for a set, or rows of a channel, of which no one file is to blame."""
    return DamagedError(
        f"{damaged} under {layout.root!r} is damaged: {what}. "
        f"{advice(*spared(needed_by(reader, layout), [damaged]))}"
    )


def advice(harmed: Collection[int], whole: Collection[int]) -> str:
    """What is lost with a damaged part, what still works, and the command for it."""
    lost = "No checkpoint needs it"
    if harmed:
        lost = f"Without it {_listed(harmed)} cannot be read or restored"
    if not whole:
        return f"{lost}; there is no other checkpoint: bring the file back from a copy"
    last = max(whole)
    return (
        f"{lost}; {_listed(whole)} can: absflow restore --from {last} "
        f"(spark.absflow.restore.from={last}), or bring the file back from a copy. "
        f"absflow verify {last} looks through that one first"
    )


def _listed(ids: Collection[int]) -> str:
    newest = sorted(ids, reverse=True)
    more = f" and {len(newest) - _SHOWN} older" if len(newest) > _SHOWN else ""
    return f"checkpoint{'s' * (len(newest) > 1)} {', '.join(map(str, newest[:_SHOWN]))}{more}"
