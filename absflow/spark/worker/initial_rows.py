"""From initial rows to the state that a stage of a new job begins with, on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.keys import factorize
from absflow.columnar.packing import gathered
from absflow.columnar.process import Call, Process, call
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import KeyedState
from absflow.spark.worker.processor import ProcessorFunction

__all__ = ["initial_rows"]

_FLUSH_ROWS, _FLUSH_BYTES = 65_536, 16 << 20


def initial_rows(
    spec: StageSpec, process: Process, given: pa.Schema, time_ms: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: a stage's key and state columns, out of initial rows.

    Args:
        spec: the stage.
        process: makes state of rows; whatever it emits is dropped.
        given: the columns of the rows, as a stage is given them: with times of UTC.
        time_ms: the time that it is given, ms since 1970 (UTC).

    Returns:
        A function of the rows of one partition, in which those of a key stand together.
    """
    columns = pa.schema([field for field in spec.state if field.name != TOUCHED.name])
    made = pa.schema([*spec.keys, *spec.state])

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, table in enumerate(_whole_keys(batches, given, spec.keys.names)):
            begun = call(
                process, _call(spec, time_ms, number), table, KeyedState.empty(spec.keys, columns)
            )
            for batch in begun.state.live_batches():
                state = pa.Table.from_batches([batch])
                if TOUCHED.name in made.names:  # by whichever time: there is no other yet
                    touched = pa.array(np.full(state.num_rows, time_ms * 1_000))
                    state = state.append_column(TOUCHED, touched.cast(TOUCHED.type))
                yield from state.select(made.names).cast(made).to_batches()
        function: object = process
        if isinstance(function, ProcessorFunction):
            function.close()

    return rows


def _call(spec: StageSpec, time_ms: int, number: int) -> Call:
    return Call(
        stage=spec.name,
        input="initial state",
        key_group=0,
        epoch=1,
        batch_id=0,
        time_ms=time_ms,
        number=number,
        key=tuple(spec.keys.names),
        output=spec.output,
        timed=spec.timed,
    )


def _whole_keys(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, keys: list[str]
) -> Iterator[pa.Table]:
    """Tables of some size, each with all rows of its keys."""
    waiting: list[pa.Table] = []
    for given in gathered(batches, _FLUSH_ROWS, _FLUSH_BYTES):
        table = pa.concat_tables([*waiting, given.cast(columns)])
        codes, _ = factorize(table.select(keys))
        begins = int(np.argmax(codes == codes[-1]))  # the last key may go on in the next batch
        if begins:
            yield table.slice(0, begins)
        waiting = [table.slice(begins)]
    yield from waiting
