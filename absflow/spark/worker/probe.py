"""Whether workers and driver see the same storage root, asked before anything of a job runs."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Iterable, Iterator

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.spark.worker.asking import SilentWorkersError, ask_workers, looks
from absflow.storage.files import Files
from absflow.storage.stores.contract import Store

__all__ = ["check_root", "unseen"]


def check_root(spark: SparkSession, files: Files, root: str) -> None:
    """See that the driver can write below ``root``, and that workers and driver see the same there.

    The latter costs nothing where the workers are on the driver's machine, else a small job of
    Spark.

    Raises:
        StorageError: the driver cannot, or naming the machines that do not.
    """
    files.check_writable(root)
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return
    count = looks(context)
    numbers = files.reached(spark.range(0, count, 1, count), root).rdd.map(lambda row: int(row[0]))
    if problems := unseen(context, *files.for_workers(root), numbers):
        raise StorageError(
            f"the storage root {root!r} is not the same place for all: {'; '.join(problems)}. "
            "spark.absflow.storage.path must name a directory that is mounted on every machine "
            "with the same path, or an object store"
        )


def unseen(
    context: SparkContext, store: Store, root: str, numbers: RDD[int] | None = None
) -> list[str]:
    """Who does not see what others write, in words; as many looks as cores, so no worker is missed.

    Args:
        context: starts the job.
        store: of the storage root.
        root: its path there.
        numbers: as for :func:`~absflow.spark.worker.asking.ask_workers`.

    Raises:
        StorageError: no worker answers, or one cannot write.
    """
    probe = f"{root}/.absflow-probe-{uuid.uuid4().hex}"

    def look(numbers: Iterable[int]) -> Iterator[tuple[int, str, bool]]:
        for number in numbers:
            sees = store.read(f"{probe}-driver") is not None
            if sees:  # else a file would be left where nobody looks
                store.write(f"{probe}-{number}", b"a worker")
            yield number, platform.node(), sees

    store.write(f"{probe}-driver", b"the driver")
    try:
        found = ask_workers(context, look, numbers)
        blind = {f"workers on {name} do not see the driver's file" for _, name, s in found if not s}
        written = [(n, name) for n, name, sees in found if sees]
        mute = {
            f"the driver does not see the file of a worker on {name}"
            for n, name in written
            if store.read(f"{probe}-{n}") is None
        }
    except SilentWorkersError as error:
        raise StorageError(f"workers could not look at {root!r}: {error}") from error
    finally:
        store.delete([f"{probe}-driver", *(f"{probe}-{n}" for n in range(looks(context)))])
    return sorted(blind | mute)
