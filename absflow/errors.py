"""Everything absflow raises.

::

    AbsflowError
    ├── SettingsError (ValueError)       a spark.absflow.* setting is unknown or malformed
    ├── GraphError (ValueError)          the job's graph cannot run: cycle, missing column, ...
    ├── ProtocolViolation                a machine was given a move that cannot happen
    ├── PageCorruptError                 bytes between two operators are not what was written
    ├── PageSizeError                    a row, or a value that must be whole, is larger than 2 GB
    ├── ProcessError                     a user's process function raised
    │   └── ResultError                  it returned what its stage does not declare
    ├── StorageError                     a table or path of the job could not be read or written
    │   ├── DamagedError                 a file is gone, or is not what was written
    │   └── NotFoundError (LookupError)  the thing asked for is not in the job's history
    ├── RestoreError                     a checkpoint cannot be restored as asked
    ├── SavepointFailedError             a savepoint that was asked for did not complete
    ├── DeletionError                    checkpoints cannot be deleted as asked
    ├── StateError (ValueError)          a DataFrame cannot be the state of a savepoint
    ├── VersionError                     what absflow needs is not installed, or of another version
    ├── ReplayMismatchError              a replayed batch is not what was committed before
    └── JobFailedError                   the job gave up; a cause of Python's is chained
        └── FencedError                  a newer driver of the job took over

A message says what was seen, what was expected, and what to do.
"""

from __future__ import annotations

__all__ = [
    "AbsflowError",
    "DamagedError",
    "DeletionError",
    "FencedError",
    "GraphError",
    "JobFailedError",
    "NotFoundError",
    "PageCorruptError",
    "PageSizeError",
    "ProcessError",
    "ProtocolViolation",
    "ReplayMismatchError",
    "RestoreError",
    "ResultError",
    "SavepointFailedError",
    "SettingsError",
    "StateError",
    "StorageError",
    "VersionError",
]


class AbsflowError(Exception):
    """Base of all errors that absflow raises on purpose."""


class SettingsError(AbsflowError, ValueError):
    """You set a ``spark.absflow.*`` key that does not exist, or to a value it cannot take."""


class GraphError(AbsflowError, ValueError):
    """You declared a job that cannot run; nothing was started."""


class ProtocolViolation(AbsflowError):
    """A state machine was given an event that its table does not allow; its state is unchanged."""


class PageCorruptError(AbsflowError):
    """A page's bytes fail their checksum or do not decode; the batch is not committed."""


class PageSizeError(AbsflowError):
    """A row, or state that cannot be cut, is larger than Spark and Arrow can carry (2 GB)."""


class ProcessError(AbsflowError):
    """Your process function raised, or returned what its stage does not declare."""


class ResultError(ProcessError):
    """Your process function returned what its stage does not declare; it is not called again."""


class StorageError(AbsflowError):
    """A path or table under the storage root could not be read or written."""


class DamagedError(StorageError):
    """A file of the job is gone or damaged; the message says which checkpoints do not need it."""


class NotFoundError(StorageError, LookupError):
    """You asked for a checkpoint, stage or key that the job's history does not hold."""


class RestoreError(AbsflowError):
    """A checkpoint cannot be restored as you asked; nothing was changed."""


class SavepointFailedError(AbsflowError):
    """The savepoint you asked for was aborted or refused; the job goes on as before."""


class DeletionError(AbsflowError):
    """A checkpoint cannot be deleted as you asked; none that you named was."""


class StateError(AbsflowError, ValueError):
    """The state that you gave cannot be written as a savepoint; nothing was written."""


class ReplayMismatchError(AbsflowError):
    """A replayed micro-batch produced other rows than it had committed: not deterministic."""


class JobFailedError(AbsflowError):
    """The job stopped by itself; the message says why, and ``__cause__`` where in your code."""


class FencedError(JobFailedError):
    """You started the job again while it ran; the newer driver goes on, this one has stopped."""


class VersionError(AbsflowError):
    """Something that absflow needs is not installed, or of another version; nothing was read."""
