"""Notebooks: those of the docs run from above to below, and cells that are run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import class_archive
import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _kernels_find_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def executed(notebook: Any, folder: Path) -> Any:
    """Run every cell in a kernel of its own; an error of one is raised."""
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return notebook


def outputs(notebook: Any, cell_id: str, kind: str = "text/html") -> Iterator[str]:
    """What a cell has shown, of one kind; ``text`` is what it has printed."""
    (cell,) = (each for each in notebook.cells if each.id == cell_id)
    for output in cell.outputs:
        if kind == "text" and output.output_type == "stream" and output.name == "stdout":
            yield output.text
        elif kind != "text" and kind in output.get("data", {}):
            yield output.data[kind]


def test_those_of_the_docs_hold_no_outputs() -> None:
    """They would be of another day, and of another machine."""
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []


def test_the_first_job_runs_as_the_notebook_says(tmp_path: Path) -> None:
    done = executed(nbformat.read(NOTEBOOKS[0], as_version=4), tmp_path)
    assert "'visits': 2" in next(outputs(done, "function", "text/plain"))
    assert "graph of the job" in next(outputs(done, "job"))
    (live,) = outputs(done, "start")  # one display, brought up to date
    assert "runs" in live
    assert "job 'shop' runs already on" in "".join(outputs(done, "again", "text"))
    assert "completed in this run" in next(reversed([*outputs(done, "more")]))
    assert "|ada |     3|" in " ".join(outputs(done, "history", "text")).replace(" ada|", "ada |")
    assert "savepoint" in next(outputs(done, "history"))


@pytest.mark.soak
def test_the_history_reads_as_the_notebook_says(tmp_path: Path) -> None:
    done = executed(nbformat.read(NOTEBOOKS[1], as_version=4), tmp_path)
    assert "True" in "".join(outputs(done, "job", "text"))
    assert "checkpoints of" in next(outputs(done, "history"))
    assert "Where its time went" in next(outputs(done, "checkpoint"))
    assert "manifest of checkpoint" in next(outputs(done, "manifest"))
    table = "".join(outputs(done, "restore", "text"))
    assert "19" in table
    assert "20" not in table
    assert "abandoned by a restore" in next(outputs(done, "after"))


SESSION = f"""
import tempfile, absflow
from absflow.testing import local_session
folder = tempfile.mkdtemp()
spark = local_session({class_archive.kept()!r} | {{
    "spark.absflow.storage.path": f"{{folder}}/job",
    "spark.absflow.key-groups": "2",
    "spark.absflow.checkpoint.interval": "1s",
}})
import pyarrow as pa, pyarrow.parquet as pq, pathlib
pathlib.Path(folder, "in").mkdir()
pq.write_table(pa.table({{"k": ["a", "b"]}}), f"{{folder}}/in/1.parquet")
"""
DECLARED = """
def count(state, row):
    n = (state[0] if state else 0) + 1
    return (n,), [(row[0], n)]

def declared(process=count, sink="out", where="k IS NOT NULL"):
    job = absflow.Job("cells", spark)
    frame = spark.readStream.schema("k string").parquet(f"{folder}/in").where(where)
    stage = job.stage("count", job.source("rows", frame), key="k", state="n long",
                      output="k string, n long", process=process, form="per-row")
    job.sink("sink", stage, absflow.DeltaSink(f"{folder}/{sink}"))
    return job

run = declared().start()
run.savepoint()
"""
REFUSED = """
def refused(job):
    try:
        job.start()
    except absflow.StorageError as error:
        print(str(error).split("another job:")[1])

def other(state, row):
    return (1,), None

refused(declared(other))
refused(declared(sink="elsewhere"))
refused(declared(where="k = 'a'"))
spark.conf.set("spark.absflow.checkpoint.interval", "2s")
refused(declared())
spark.conf.set("spark.absflow.checkpoint.interval", "1s")
"""
ENDED = """
found = declared().start()
print(found.is_active, found.progress().checkpoint_id > 0)
run.stop()
print(found.is_active, found)
found = declared(other).start()
print(found.is_active)
found.stop()
"""


def test_a_cell_that_is_run_again_finds_its_job_and_no_other(tmp_path: Path) -> None:
    """What differs is said; when the job has ended, the cell starts one."""
    notebook = nbformat.v4.new_notebook()
    cells = {"session": SESSION, "declared": DECLARED, "again": DECLARED}
    for name, source in {**cells, "refused": REFUSED, "ended": ENDED}.items():
        cell = nbformat.v4.new_code_cell(source)
        cell["id"] = name
        notebook.cells.append(cell)
    done = executed(notebook, tmp_path)
    assert "runs already" not in "".join(outputs(done, "declared", "text"))
    assert "job 'cells' runs already on" in "".join(outputs(done, "again", "text"))
    lines = [line for line in "".join(outputs(done, "refused", "text")).splitlines() if line]
    assert [line.strip() for line in lines] == [
        "stage 'count': its function for 'rows' is another one",
        "sink 'sink' writes to another place, or in another way",
        "source 'rows': its frame selects something else",
        "spark.absflow.checkpoint.interval is another than at its start",
    ]
    ended = "".join(outputs(done, "ended", "text"))
    assert "True True" in ended
    assert "False <Run: job 'cells' ended" in ended
    assert ended.rstrip().endswith("True")
