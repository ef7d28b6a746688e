"""The demo with its storage root and sinks on a store, whose server is started and ended with it.

``python demo.py STORE [NAME=VALUE ...]``, where STORE is ``s3`` or ``hdfs``, runs the flights job
with this Spark conf besides (``make demo STORE=s3``). Exits as the job does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hdfs_server import hdfs
from minio_server import s3
from on_store import class_path

STORES = ("s3", "hdfs")
CHECKOUT = Path(__file__).resolve().parents[2]


@contextmanager
def place(store: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A URI on a new server of a store, and the Spark conf by which it is found."""
    if store == "s3":
        with s3(folder) as server:
            conf = {**server.conf(), "spark.driver.extraClassPath": class_path(folder)}
            yield server.bucket("flights"), conf
    else:
        with hdfs(folder) as there:
            yield f"{there.root}/flights", there.conf()


def main(store: str, more: Mapping[str, str]) -> int:
    """Run it; the exit code."""
    if store not in STORES:
        print(f"found STORE={store}; expected one of {', '.join(STORES)}, or none for this disk")
        return 2
    with tempfile.TemporaryDirectory(prefix="absflow-demo-") as folder:
        print(f"starting a server of {store} ...", flush=True)
        with place(store, Path(folder)) as (root, conf):
            paths = {
                "spark.absflow.storage.path": f"{root}/job",
                "spark.flights.sink": f"{root}/delays",
                "spark.flights.hourly": f"{root}/hourly",
            }
            given = {**paths, **conf, **more}
            words = [word for pair in given.items() for word in ("--conf", "=".join(pair))]
            submit = [str(Path(sys.executable).with_name("spark-submit"))]
            submit += ["--properties-file", "conf/flights.conf", *words, "jobs/flights.py"]
            return subprocess.run(submit, cwd=CHECKOUT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])))
