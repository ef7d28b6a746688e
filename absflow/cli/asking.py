"""Asking a job's driver for something: a row into ``requests``, and the wait for its answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from absflow.cli.reader import Reader
from absflow.errors import DeletionError, NotFoundError, SavepointFailedError, StorageError
from absflow.facts.columns import REQUESTS
from absflow.facts.reading import Answer
from absflow.facts.records import request_row
from absflow.facts.stages import sentence_of
from absflow.protocol.checkpoints import FactKind
from absflow.storage import clock

__all__ = ["ask", "ask_to_delete", "await_answer", "await_deletion"]

_LOOK_EVERY_S = 0.5


def ask(reader: Reader, *, stop: bool, drain: bool, fire_timers: bool = False) -> tuple[str, int]:
    """Ask the newest driver of a job; the request, and that driver's incarnation.

    Raises:
        NotFoundError: no job has ever started there, or its driver has ended.
        StorageError: the row could not be written.
    """
    incarnation, ended = reader.driver()
    if ended:
        raise NotFoundError(
            f"the job under {reader.root!r} is not running (its driver, incarnation {incarnation}, "
            f"has {ended}), so there is nothing to stop, and nobody to take a savepoint"
        )
    wanted = {"stop": stop, "drain": drain, "fire_timers": fire_timers}
    return _write(reader, incarnation=incarnation, **wanted), incarnation


def ask_to_delete(reader: Reader, checkpoint_ids: Sequence[int]) -> str:
    """Ask whichever driver of a job comes; the request.

    Raises:
        StorageError: the row could not be written.
    """
    return _write(reader, delete=list(checkpoint_ids))


def _write(reader: Reader, **wanted: Any) -> str:
    request = uuid.uuid4().hex
    row = request_row(request, clock.now_ms(), **wanted)
    table = pa.Table.from_pylist([row], schema=REQUESTS)
    try:
        # A table of an earlier version gets the columns that it lacks.
        write_deltalake(
            reader.requests,
            table,
            mode="append",
            schema_mode="merge",
            storage_options=dict(reader.storage.client.options),
        )
    except (DeltaError, OSError) as error:
        raise StorageError(f"could not write a request under {reader.root!r}: {error}") from error
    return request


def await_deletion(reader: Reader, request: str, timeout_s: float) -> bool:
    """Whether ``request`` was obeyed; False if no driver runs that could, and it stands.

    Raises:
        DeletionError: it was refused, or there is no answer.
    """
    for incarnation, ended, answer in _looks(reader, request, timeout_s):
        newest = incarnation
        if answer is not None:
            if answer.kind == FactKind.DELETED.value:
                return True
            raise DeletionError(f"nothing was deleted: {answer.cause}")
        if ended:
            return False
    raise DeletionError(
        f"no answer within {timeout_s:g} s. The request stands: driver incarnation {newest} "
        "obeys it if it is alive, else the next one does; 'absflow history' shows when"
    )


def await_answer(reader: Reader, request: str, incarnation: int, timeout_s: float) -> int:
    """The savepoint that answers ``request``.

    Raises:
        SavepointFailedError: it was aborted or refused, or there is no answer.
    """
    for newest, ended, answer in _looks(reader, request, timeout_s):
        if answer is not None:
            if answer.kind == FactKind.COMPLETED.value:
                return int(answer.checkpoint_id or 0)
            why = answer.reason and f"{answer.reason}: {sentence_of(answer.reason)}"
            reasons = "; ".join(part for part in (why, answer.cause) if part)
            raise SavepointFailedError(f"there is no savepoint: {reasons}")
        if newest != incarnation or ended:
            raise SavepointFailedError(
                f"driver incarnation {incarnation} has gone without an answer; ask again when the "
                "job runs"
            )
    raise SavepointFailedError(
        f"no answer within {timeout_s:g} s. The request stands: if driver incarnation "
        f"{incarnation} is alive it still obeys it; 'absflow history' shows the savepoint"
    )


def _looks(
    reader: Reader, request: str, timeout_s: float
) -> Iterator[tuple[int, str, Answer | None]]:
    """The newest driver, how it has ended, and the answer if there is one: until time is up."""
    until = time.monotonic() + timeout_s
    while True:
        # The driver before the answer: one that ends answers first.
        incarnation, ended = reader.again().driver()
        yield incarnation, ended, reader.again().answer(request)
        if time.monotonic() > until:
            return
        time.sleep(_LOOK_EVERY_S)
