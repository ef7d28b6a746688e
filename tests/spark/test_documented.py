"""Every block in README and docs runs, and prints what stands under it.

By the word behind its fence a block is

- ``python``: run in the page's own namespace, on the tests' session;
- ``sql``: its statements are run on the same session;
- ``sh``: its lines are run in a copy of the checkout in which ``make demo`` has been run on the
  first days of the data (``make test`` is not run again);
- ``text``: what the block before it prints. Digits, units, widths of columns and the name of a
  temporary folder, written ``/data``, may differ; ``...`` stands for any lines;
- ``properties``: settings, which are read and checked;
- ``ini``: a file of another program, such as systemd, which is read;
- ``java``: what one writes for Flink, to compare with;
- ``mermaid``: a diagram; those of the state machines are written by ``docs/generated.py``;
- ``ascii``: a drawing.
"""

from __future__ import annotations

import configparser
import contextlib
import datetime as dt
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
import yaml
from kafka_topics import create
from processes import bury, free_ports
from pyspark.sql import SparkSession

from absflow.settings.catalog import PREFIX
from absflow.settings.reading import Settings

ROOT = Path(__file__).parents[2]
_TERMINAL = {"COLUMNS", "LINES"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Those with jobs of 20 s and more; README and the tutorial are in make test.
SOAK = {
    "backpressure.md",
    "kafka.md",
    "outside.md",
    "process-functions.md",
    "recovery.md",
    "sinks.md",
    "time.md",
}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: the word behind the fence, and the text."""
    return re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def words(text: str) -> list[str]:
    """The lines of ``text`` without what changes from run to run."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    plain = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+", "/data", plain)
    lines = (re.sub(r"-?[\d.,:]*\d", "0", line) for line in plain.splitlines())
    lines = (re.sub(r"\b0 (?:(ms|s|min)|[kMG]?B)\b", _unit, line) for line in lines)
    squeezed = (re.sub(r"([-─+])[-─+]*", r"\1", line) for line in lines)
    return [words for line in squeezed if (words := " ".join(line.split()))]


def _unit(size: re.Match[str]) -> str:
    return "0 s" if size[1] else "0 B"


def check_prometheus(text: str) -> None:
    """A configuration of Prometheus beside the alerts, as its own program judges it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "monitoring" / "alerts.yml", folder)
        conf = Path(folder, "prometheus.yml")
        conf.write_text(text)
        subprocess.run(["promtool", "check", "config", str(conf)], check=True)


def check_collector(conf: dict[str, Any]) -> None:
    """Each pipeline of a collector is made of parts that are there."""
    for pipeline in conf["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert set(names) <= conf[part].keys()


def assert_told(expected: str, actual: str) -> None:
    """Every line of ``expected`` is in ``actual``, in its order; without ``...`` no other is."""
    wanted, seen = words(expected), words(actual)
    if "..." not in wanted:
        assert seen == wanted
    place = 0
    for line in wanted:
        if line != "...":
            assert line in seen[place:], f"{line!r} is not printed:\n" + "\n".join(seen)
            place = seen.index(line, place) + 1


@dataclass
class Reader:
    """Somebody who works through a page."""

    spark: SparkSession
    checkout: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""

    def take(self, language: str, text: str) -> None:
        """Do what a block says."""
        match language:
            case "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(text, "job.py", "exec"), self.names)
                self.printed = output.getvalue()
            case "sql":
                frames = [self.spark.sql(statement) for statement in text.split(";")]
                assert all(frame.collect() for frame in frames)
            case "sh":
                self.printed = "".join(self.shell(line) for line in text.splitlines())
            case "text":
                assert_told(text, self.printed)
            case "properties":
                self.check_settings(text)
            case "ini":
                assert configparser.ConfigParser(interpolation=None).read_string(text) is None
            case "yaml" if "scrape_configs" in text:
                check_prometheus(text)
            case "yaml":
                check_collector(yaml.safe_load(text))
            case _:
                assert language in {"mermaid", "ascii", "java"}, f"what is a block of {language!r}?"

    def shell(self, line: str) -> str:
        """What a command prints; the demo has been run already."""
        if line == "make demo":
            return (self.checkout / "demo.log").read_text()
        if line == "make test":
            return ""
        path = f"{self.checkout / '.venv' / 'bin'}:{os.environ['PATH']}"
        # The size of a terminal, which a process of pytest-xdist makes up, is not a reader's.
        own = {name: value for name, value in os.environ.items() if name not in _TERMINAL}
        done = subprocess.run(
            ["bash", "-c", line.replace("make ", "make -o .venv/.setup ", 1)],
            cwd=self.checkout,
            env={**own, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @staticmethod
    def check_settings(text: str) -> None:
        """Refuse lines that no job would take."""
        lines = [line.split(None, 1) for line in text.splitlines() if not line.startswith("#")]
        given = {key: value for key, value in lines if key.startswith(PREFIX)}
        Settings.from_conf({f"{PREFIX}storage.path": "/job", **given})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which ``make demo`` has been run on the first days of the data."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (".ci", "Makefile", "absflow", "conf", "jobs", "setup.cfg", "setup.py"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    sys.path.insert(0, str(ROOT / "jobs"))
    try:
        from flights_data import prepare
    finally:
        sys.path.remove(str(ROOT / "jobs"))
    prepare(folder / "data" / "flights", days=3, until=dt.date(2013, 2, 1))
    with (folder / "demo.log").open("w") as log:
        # The set-up is this very environment.
        command = ["make", "-o", ".venv/.setup", "demo"]
        code = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False).returncode
    assert code == 0, (folder / "demo.log").read_text()[-3000:]
    return folder


@pytest.fixture
def reader(spark: SparkSession, checkout: Path) -> Iterator[Reader]:
    """A reader whose settings and environment nobody else sees."""
    environment, conf = dict(os.environ), dict(spark.conf.getAll)
    yield Reader(spark, checkout)
    os.environ.clear()
    os.environ.update(environment)
    for key, value in dict(spark.conf.getAll).items():
        # A page that builds a session changes what only a new JVM would look at, e.g. its packages.
        # Of settings that are not its own Spark says that they cannot be modified.
        if value != conf.get(key) and (key.startswith(PREFIX) or spark.conf.isModifiable(key)):
            spark.conf.set(key, conf[key]) if key in conf else spark.conf.unset(key)


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    """Of a Redis server, Debian's."""
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with (tmp_path / "redis.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        client = redis.Redis(port=port)
        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 300)
        retry.call_with_retry(client.ping, lambda _: None)
        yield port
    finally:
        bury(server)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=pytest.mark.soak if page.name in SOAK else (),
            id=str(page.relative_to(ROOT)),
        )
        for page in PAGES
    ],
)
def test_a_page_does_what_it_says(
    page: Path, reader: Reader, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Block by block, in order."""
    if page.stem == "kafka":
        servers = request.getfixturevalue("kafka")
        create(reader.spark, servers, "clicks", "totals", "soon")
        reader.names |= {"spark": reader.spark, "servers": servers, "folder": str(tmp_path)}
    if page.stem == "outside":
        reader.names["redis_port"] = request.getfixturevalue("redis_port")
    if page == PAGES[0]:
        reader.names |= {"spark": reader.spark, "folder": clicks(tmp_path)}
    flights = str(reader.checkout / "data" / "flights" / "job")
    if page.stem == "tables":
        reader.names["folder"] = flights
    if page.stem == "operations":
        os.environ["ABSFLOW_STORAGE"] = flights
    for language, text in blocks(page):
        reader.take(language, text)
    assert page.read_text().count("```") == 2 * len(blocks(page))
    if page == PAGES[0]:
        check_visits(reader)


def clicks(folder: Path) -> str:
    """What the README's job reads."""
    (folder / "clicks").mkdir()
    users = pa.table({"user": ["ada", "bob", "ada", None]})
    pq.write_table(users, folder / "clicks" / "1.parquet")
    return str(folder)


def check_visits(reader: Reader) -> None:
    """The README's job has counted right, in its state and in its sink."""
    state = reader.names["history"].state("visits").collect()
    sink = reader.spark.read.format("delta").load(f"{reader.names['folder']}/counts").collect()
    for rows in (state, sink):
        assert {row["user"]: row["visits"] for row in rows} == {"ada": 2, "bob": 1, None: 1}
