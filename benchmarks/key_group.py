"""What one key group costs without Spark, beside the same sums in plain pandas.

Prints medians of several runs, and their ratio; figures are for this machine and this run only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from _running_sum import add

from absflow.columnar.packing import Packer
from absflow.columnar.pages import Page, pages_of
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_key_group
from absflow.columnar.stored import KeyGroupState
from absflow.protocol import alignment

KEYS, ROWS, RUNS = 8_000, 4_000, 30
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
STATE = pa.schema([("total", pa.int64())])


def median_ms(work: Callable[[], object]) -> float:
    """The median of several runs after one that is not counted."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def main() -> None:
    """Measure, and print one line each."""
    random = np.random.default_rng(0)
    keys = pa.schema([("k", pa.string())])
    given = InputSpec("rows", SCHEMA, root=True)
    output = pa.schema([*keys, *STATE])
    spec = StageSpec("sums", (given,), keys, STATE, output, {"rows": add}, 1)
    packer = Packer("rows", SCHEMA, ("k",), 1, root=True)

    def packed(numbers: np.ndarray) -> list[Page]:
        table = pa.table({"k": numbers.astype(str), "v": numbers}, schema=SCHEMA)
        return [p for b in packer.pack(table.to_batches(), 0) for p in pages_of(b)]

    batch = Batch(0, 0, alignment.start(["rows"]))

    def run(pages: list[Page], stored: KeyGroupState) -> KeyGroupState:
        made = run_key_group(spec, 0, batch, pages, stored)
        while True:
            try:
                next(made)
            except StopIteration as end:
                return end.value

    stored = run(packed(np.arange(KEYS)), KeyGroupState())
    numbers = random.integers(0, KEYS, ROWS)
    pages = packed(numbers)
    ours = median_ms(lambda: run(pages, stored))

    rows = pa.table({"k": numbers.astype(str), "v": numbers}).to_pandas()
    state = pa.table({"k": np.arange(KEYS).astype(str), "total": np.arange(KEYS)}).to_pandas()
    state = state.set_index("k")["total"]
    pandas = median_ms(lambda: state.add(rows.groupby("k")["v"].sum(), fill_value=0))

    print(f"{ROWS:,} rows into {KEYS:,} keys, median of {RUNS}")
    print(
        f"key group, state decoded and encoded: {ours:6.2f} ms, {ROWS / ours * 1000:10,.0f} rows/s"
    )
    print(f"plain pandas, in memory:              {pandas:6.2f} ms; ratio {pandas / ours:.2f}")


if __name__ == "__main__":
    main()
