"""What must be in Java of the storage, compiled in the JVM that runs the job.

Delta's log store and the files of a query's checkpoint are classes that Delta and Spark look up by
name, and Hadoop's file systems, which Python reaches by a server in each JVM, are in Java. Spark
brings a compiler of Java for its own generated code (Janino), so there is no jar to build or to
hand to spark-submit. The classes are put into a jar in a directory of the driver: its class loader
has it, and executors fetch it.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import Any
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.errors import StorageError

__all__ = [
    "S3_SCHEMES",
    "behind_server",
    "job_metrics",
    "only_writer",
    "replace_local_files",
    "serve_files",
    "use_s3_classes",
]

# What Hadoop has S3 under.
S3_SCHEMES = ("s3a", "s3", "s3n")
_LOG = logging.getLogger(__name__)
# Each after those that it needs; for local disks only the first.
_FOR_LOCAL = ("LocalCheckpointFiles",)
_SOURCES = (
    *_FOR_LOCAL,
    "S3Create",
    "OwnLogs",
    "S3CreateLogStore",
    "Placed",
    "Served",
    "FileServer",
    "CheckpointFiles",
)
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_OURS, _LOCAL = "absflow.CheckpointFiles", "absflow.LocalCheckpointFiles"
# Spark's own; the second replaces no file, and says nothing.
_BY_CONTEXT, _BY_FILE_SYSTEM = (
    f"org.apache.spark.sql.execution.streaming.checkpointing.{name}CheckpointFileManager"
    for name in ("FileContextBased", "FileSystemBased")
)
_PLAIN = {None, _BY_CONTEXT, _BY_FILE_SYSTEM, _LOCAL, _OURS}
_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_lock = threading.Lock()
_loaded_by: WeakSet[SparkContext] = WeakSet()
_local_by: WeakSet[SparkContext] = WeakSet()


def use_s3_classes(spark: SparkSession) -> None:
    """Have Delta and Spark write to S3 by conditional requests, unless somebody has chosen others.

    Delta's own store for S3 looks whether a version is there, and then puts it: a driver that was
    paused between the two would write over the commit of a newer one. And Spark writes each file of
    a query's checkpoint aside and renames it, which on S3 is a copy.
    """
    jvm: Any = spark.sparkContext._jvm
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    stores = [f"spark.delta.logStore.{scheme}.impl" for scheme in S3_SCHEMES]
    with _lock:
        if not any(conf.contains(name) for name in (*stores, "spark.delta.logStore.class")):
            if not _loaded(spark):
                _LOG.warning(
                    "the driver's JVM takes no classes of absflow's, so Delta's own log store "
                    "writes to S3: it keeps two drivers of one job apart only if it is "
                    "S3DynamoDBLogStore"
                )
                return
            for name in stores:
                conf.set(name, "absflow.S3CreateLogStore")
            # Of tables that were looked at before it knows the store, too.
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        ours = conf.get(stores[0], "") == "absflow.S3CreateLogStore"
        if ours and spark.conf.get(_CHECKPOINT_FILES, None) in _PLAIN:
            spark.conf.set(_CHECKPOINT_FILES, _OURS)


def replace_local_files(spark: SparkSession) -> None:
    """Have Spark put the files of its checkpoints on local disks by a class that replaces.

    In the place of its default, too, which starts two processes for each file where Hadoop has no
    native library (as in a PySpark from pip).
    """
    if spark.conf.get(_CHECKPOINT_FILES, None) not in (None, _BY_FILE_SYSTEM):
        return
    with _lock:
        if _loaded(spark, local=True):
            spark.conf.set(_CHECKPOINT_FILES, _LOCAL)
        else:  # the default replaces
            spark.conf.unset(_CHECKPOINT_FILES)


def serve_files(spark: SparkSession) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Have the JVMs of the application serve Hadoop's file systems to the Python beside them.

    That of the driver begins now. An executor's begins with the first file of a stage's state, or
    with the first row that comes :func:`behind_server`; both are in front of Python.

    Returns:
        The file of the driver's JVM that says where it listens, and what each JVM is to
        add to Hadoop's conf.

    Raises:
        StorageError: the driver's JVM takes no classes, or Spark's files are another's.
    """
    jvm: Any = spark.sparkContext._jvm
    chosen = spark.conf.get(_CHECKPOINT_FILES, None)
    if chosen not in _PLAIN:
        raise StorageError(
            f"{_CHECKPOINT_FILES} is {chosen!r}, but on this storage absflow needs its own class "
            "there, by which workers reach their files; leave it out"
        )
    with _lock:
        if not _loaded(spark):
            raise StorageError(
                "the driver's JVM takes no classes of absflow's, by which workers reach this "
                "storage; start the program by spark-submit or by SparkSession.builder"
            )
        spark.conf.set(_CHECKPOINT_FILES, _OURS)
        words = jvm.absflow.FileServer.options(spark._jsparkSession.sessionState().newHadoopConf())
        place = str(jvm.absflow.FileServer.start())
    found = [str(word) for word in words]
    return place, tuple(zip(found[::2], found[1::2], strict=True))


@contextmanager
def only_writer(spark: SparkSession, folders: Iterable[str]) -> Iterator[None]:
    """Within the block nobody but this driver writes tables in these folders.

    Only the log store for S3 asks for that.
    """
    jvm: Any = spark.sparkContext._jvm
    with ExitStack() as owned:
        for folder in folders if spark.sparkContext in _loaded_by else ():
            owned.callback(jvm.absflow.OwnLogs.disown, folder)
            jvm.absflow.OwnLogs.own(folder)
        yield


def behind_server(rows: DataFrame) -> DataFrame:
    """The same rows; the JVM of a task serves files before it hands the first of them on."""
    return rows.where(F.expr("reflect('absflow.FileServer', 'start') is not null"))


def job_metrics(spark: SparkSession) -> Any:
    """A ``JobMetrics`` in the driver's JVM; no executor needs the class."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    return (
        _compile(jvm, "JobMetrics", loader)
        .getClassLoader()
        .loadClass("absflow.JobMetrics")
        .newInstance()
    )


def _loaded(spark: SparkSession, *, local: bool = False) -> bool:
    """See that the driver has the classes, and executors get them; false if the driver cannot.

    All of them, or those for local disks.
    """
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    while loader is not None and loader.getClass().getName() != _LOADER:
        loader = loader.getParent()
    if loader is None:
        return False
    loaded = _local_by if local else _loaded_by
    if spark.sparkContext in loaded:
        return True
    folder = tempfile.mkdtemp(prefix="absflow-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Spark serves a jar by its name.
    jar = f"{folder}/absflow-local.jar" if local else f"{folder}/absflow.jar"
    with zipfile.ZipFile(jar, "w") as file:
        for name, code in _compiled(jvm, loader, _FOR_LOCAL if local else _SOURCES).items():
            file.writestr(f"{name.replace('.', '/')}.class", code)
    loader.addURL(jvm.java.io.File(jar).toURI().toURL())
    spark.sparkContext._jsc.addJar(jar)
    loaded.add(spark.sparkContext)
    return True


def _compiled(jvm: Any, loader: Any, sources: Iterable[str]) -> dict[str, bytes]:
    """The byte code of each class by its name."""
    found: dict[str, bytes] = {}
    for name in sources:
        compiler = _compile(jvm, name, loader)
        loader = compiler.getClassLoader()
        codes = compiler.getBytecodes()
        found |= {str(each): bytes(codes[each]) for each in codes}
    return found


def _compile(jvm: Any, name: str, loader: Any) -> Any:
    """The compiler with a class of ours; ``loader`` has what that names."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(files(__package__).joinpath(f"{name}.java").read_text())
    return compiler
