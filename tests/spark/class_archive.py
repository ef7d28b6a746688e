"""The classes of a driver's JVM, looked up and verified once for all drivers that tests start.

``python class_archive.py`` runs a small job and keeps the classes that it has loaded. A
driver takes half of the CPU time to start with them (:func:`kept`), and needs no Ivy: Delta's jars
are on its class path. Nothing needs this; without, a driver starts as anybody's does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "jvm"
# A JVM that lives half a minute: the optimising compiler would take its time from the tests.
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC"
_PATH, _CLASSES = "classpath", "classes.jsa"
# What Spark does not have itself.
_ORGANISATIONS = ("io.delta", "io.unitycatalog")


def kept() -> dict[str, str]:
    """The conf of a local driver that uses what is kept; empty if nothing is."""
    if not (FOLDER / _CLASSES).exists():
        return {}
    return {
        "spark.jars.packages": "",
        "spark.driver.extraClassPath": (FOLDER / _PATH).read_text(),
        "spark.driver.extraJavaOptions": f"{JAVA} -XX:SharedArchiveFile={FOLDER / _CLASSES}",
    }


def main() -> None:
    """Keep the jars' paths, then the classes of a job in a process of its own."""
    from delta import configure_spark_with_delta_pip
    from diamond import write_source
    from kafka_broker import jars
    from processes import session
    from session import builder

    package = configure_spark_with_delta_pip(builder())._options["spark.jars.packages"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / _CLASSES).unlink(missing_ok=True)  # or the job would use it
    there = jars({package: True}, FOLDER)
    own = [jar for jar in there if any(f"/{each}/" in jar for each in _ORGANISATIONS)]
    (FOLDER / _PATH).write_text(os.pathsep.join(own))
    root = FOLDER / "job"
    shutil.rmtree(root, ignore_errors=True)  # of a try that was cut off
    write_source(root / "a", files=3, rows=20, seed=1)
    aside = FOLDER / f"{_CLASSES}.new"
    conf = {
        "spark.driver.extraClassPath": os.pathsep.join(own),
        "spark.driver.extraJavaOptions": f"{JAVA} -XX:ArchiveClassesAtExit={aside}",
    }
    words = [f"{name}={value}" for name, value in conf.items()]
    chain = str(Path(__file__).with_name("chain.py"))
    command = [sys.executable, chain, str(root), *words]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    driver = subprocess.Popen(command, env={**os.environ, **paths}, start_new_session=True)
    driver.wait()
    while list(session(driver.pid)):  # the JVM writes when Python has gone
        time.sleep(0.1)
    shutil.rmtree(root)
    if driver.returncode:
        raise RuntimeError(f"the job has failed with code {driver.returncode}")
    aside.rename(FOLDER / _CLASSES)


if __name__ == "__main__":
    main()
