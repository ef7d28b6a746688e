"""Where a job's tables and files lie below its storage root; known with and without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from absflow.errors import StorageError

__all__ = ["Layout", "check_place"]

# Spark takes some of them for wildcards where it reads files, and Hadoop a backslash for a slash;
# delta-rs, by which the command line reads, decodes %20 once too often, and finds other places;
# and Delta creates no table in a path with quotes around a part of it.
_REFUSED = re.compile(r"%[0-9A-Fa-f]{2}|[\\?*\[\]{}|^`\"\x00-\x1f\x7f]")


def check_place(root: str) -> None:
    """Refuse a storage root where not all that reads it would look at the same place.

    Raises:
        StorageError: naming what of the path it is.
    """
    if found := _REFUSED.search(root):
        raise StorageError(
            f"the storage root {root!r} has {found[0]!r} in its path, with which Spark, Delta or a "
            "reader of Delta without a JVM fails, or looks elsewhere; choose a path without it, "
            r"and without any of \ ? * [ ] { } | ^ ` and double quotes and line breaks"
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below a storage root. Tables and working directories never nest."""

    root: str

    @property
    def attempts(self) -> str:
        """Table: starts of attempts and drivers."""
        return f"{self.root}/attempts"

    @property
    def barriers(self) -> str:
        """Table: triggers."""
        return f"{self.root}/barriers"

    @property
    def overtakes(self) -> str:
        """Table: aborts, read directly by every stage."""
        return f"{self.root}/overtakes"

    @property
    def checkpoints(self) -> str:
        """Table: terminal facts."""
        return f"{self.root}/checkpoints"

    @property
    def summary(self) -> str:
        """File: what old facts come to; without it all are read."""
        return f"{self.root}/summary.json"

    @property
    def states(self) -> str:
        """Directory: the state histories."""
        return f"{self.root}/state"

    @property
    def channels(self) -> str:
        """Directory: of each stage, its channels."""
        return f"{self.root}/channels"

    @property
    def works(self) -> str:
        """Directory: the working directories of attempts."""
        return f"{self.root}/work"

    @property
    def own_tables(self) -> tuple[str, ...]:
        """Tables, and directories of them: what nobody but the job's driver writes while it runs.

        And what it need not ask for, to see that there is a newer one.
        """
        return (self.channels, self.states, self.checkpoints, self.barriers, self.overtakes)

    @property
    def positions(self) -> str:
        """Directory: of each attempt, what positions need."""
        return f"{self.root}/positions"

    @property
    def retention_failures(self) -> str:
        """File: what of retention failed when it was tried last; none if nothing ever has."""
        return f"{self.root}/retention-failures.json"

    def positions_of(self, attempt: int) -> str:
        """Directory: all that the positions of an attempt need."""
        return f"{self.root}/positions/attempt={attempt}"

    @property
    def requests(self) -> str:
        """Table: requests from outside, written by the command line."""
        return f"{self.root}/requests"

    @property
    def facts(self) -> tuple[str, ...]:
        """Tables: all that the driver writes facts into."""
        return self.attempts, self.barriers, self.overtakes, self.checkpoints

    def state(self, table: str) -> str:
        """Table: a state history; ``table`` is the stage's name, until its columns change."""
        return f"{self.root}/state/{table}"

    def channel(self, stage: str, attempt: int) -> str:
        """Table: what a stage sends to its consumers in one attempt."""
        return f"{self.root}/channels/{stage}/attempt={attempt}"

    @property
    def lates(self) -> str:
        """Directory: the late rows."""
        return f"{self.root}/late"

    def late(self, source: str) -> str:
        """Table: the late rows of a source, of all attempts."""
        return f"{self.lates}/{source}"

    def spark_checkpoint(self, stage: str, attempt: int) -> str:
        """Directory: Spark's own checkpoint of the stage's query."""
        return f"{self.root}/work/attempt={attempt}/{stage}/spark"

    def alignment(self, stage: str, attempt: int) -> str:
        """Directory: the stage's alignment after each batch with a control row."""
        return f"{self.root}/work/attempt={attempt}/{stage}/alignment"

    def work(self, attempt: int) -> str:
        """Directory: all that only this attempt needs."""
        return f"{self.root}/work/attempt={attempt}"

    def restored(self, stage: str, attempt: int) -> str:
        """Directory: the state that the attempt begins with, as pages, until it is in."""
        return f"{self.root}/work/attempt={attempt}/{stage}/restored"

    def in_flight(self, stage: str, attempt: int) -> str:
        """Directory: rows in flight that the attempt begins with, until they have been read."""
        return f"{self.root}/work/attempt={attempt}/{stage}/in-flight"

    def nothing(self, attempt: int) -> str:
        """Directory: empty for ever; what there is nothing to read from any more, or not yet."""
        return f"{self.root}/work/attempt={attempt}/nothing"

    def source_log(self, stage: str, source: str, attempt: int) -> str:
        """Directory: what a position of a source needs beside itself."""
        return f"{self.root}/positions/attempt={attempt}/{stage}/{source}"

    def published(self, sink: str, attempt: int) -> str:
        """File: the newest checkpoint that the attempt has published to an on-checkpoint sink."""
        return f"{self.root}/positions/attempt={attempt}/_published/{sink}"

    def state_files(self, stage: str, attempt: int) -> str:
        """Directory: what of the stage's state does not lie in Spark's state store."""
        return f"{self.root}/work/attempt={attempt}/{stage}/state"

    def staging(self, stage: str, attempt: int) -> str:
        """Directory: snapshots on their way to the state history."""
        return f"{self.root}/work/attempt={attempt}/{stage}/staging"
