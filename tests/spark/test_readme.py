"""The README's job runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_readme_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Its sink and its last state are what it promises."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "clicks").mkdir()
    users = pa.table({"user": ["ada", "bob", "ada", None]})
    pq.write_table(users, tmp_path / "clicks" / "1.parquet")
    # Its function is pickled by value only if it seems to come from the main program.
    names = {"spark": spark, "folder": str(tmp_path), "__name__": "__main__"}
    try:
        exec(compile(blocks[0], "README.md", "exec"), names)
    finally:
        for key in ("storage.path", "checkpoint.interval"):
            spark.conf.unset(f"spark.absflow.{key}")
    run, history = names["run"], names["history"]
    state = history.state("visits", checkpoint=run.finished_checkpoint).collect()
    assert {row["user"]: row["visits"] for row in state} == {"ada": 2, "bob": 1, None: 1}
    sink = spark.read.format("delta").load(str(tmp_path / "counts")).collect()
    assert {row["user"]: row["visits"] for row in sink} == {"ada": 2, "bob": 1, None: 1}
