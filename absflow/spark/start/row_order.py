"""What the order of a source's rows depends on: how Spark cuts it into partitions.

The rows of a source are numbered by partition, and a function may depend on their order. How files
become partitions follows from these settings and, where they say nothing, from the number of cores.
So their values are recorded with the attempt, and hold as long as it lives: a batch that is run
again on another cluster has its rows in the order that they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from absflow.errors import GraphError
from absflow.spark.model import JobSpec
from absflow.spark.sources.describe import describe_source

__all__ = ["RowOrder", "check_row_order", "row_order_conf", "row_order_now"]

# JSON, as the STARTED fact has it.
RowOrder = Mapping[str, str | None]

_MIN_PARTITIONS = "spark.sql.files.minPartitionNum"
_LEAVES = "spark.sql.leafNodeDefaultParallelism"
# Spark's FilePartition goes by these alone.
_FILES = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.maxPartitionNum",
)
# No setting of a session: a source asks for it when its frame is made.
_CORES = "spark.default.parallelism"
_BY_CORES = ("rate", "rate-micro-batch")


def row_order_now(spark: SparkSession) -> RowOrder:
    """What an attempt that begins now is to keep."""
    cores = str(spark.sparkContext.defaultParallelism)
    leaves = spark.conf.get(_LEAVES, None)
    return {
        **{key: spark.conf.get(key, None) for key in _FILES},
        _MIN_PARTITIONS: spark.conf.get(_MIN_PARTITIONS, None) or leaves or cores,
        _LEAVES: leaves or cores,
        _CORES: cores,
    }


def row_order_conf(order: RowOrder) -> RowOrder:
    """The conf of a session in which rows come in this order."""
    return {key: value for key, value in order.items() if key != _CORES}


def check_row_order(spark: SparkSession, job: JobSpec, order: RowOrder) -> None:
    """Refuse sources whose order cannot be put back, as it was fixed with their frames.

    Raises:
        GraphError: naming each of them, and the option that puts it back.
    """
    now, then = str(spark.sparkContext.defaultParallelism), order.get(_CORES)
    if then is None or now == then:
        return
    for name in _cut_by_cores(spark, job):
        raise GraphError(
            f"source {name!r} has no option numPartitions, so its rows come in {now} partitions, "
            f"as many as there are cores. The attempt began with {then}, and in another order its "
            f"last batch would not give the same; set .option('numPartitions', {then})"
        )


def _cut_by_cores(spark: SparkSession, job: JobSpec) -> Sequence[str]:
    sources = {name: describe_source(frame) for name, frame in job.frames.items()}
    return [
        name
        for name, source in sources.items()
        if source.format in _BY_CORES and "numpartitions" not in source.options
    ]
