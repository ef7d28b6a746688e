"""What a job needs is looked at before it is started, and each thing that is missing has a line."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from commands_run import run

from absflow.spark import versions
from absflow.spark.versions import FoundSession, java_check, package_checks, session_checks

PACKAGES = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "pandas": "2.3.3", "pyarrow": "18.0.0"}
SESSION = FoundSession(
    "4.2.0",
    17,
    "4.4.0",
    "org.example.Mine, io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.spark.sql.delta.catalog.DeltaCatalog",
)


def wrong(checks):
    return [str(check) for check in checks if not check.holds]


def fake_package(folder, name, version):
    """A package of another version, found before the one that is installed."""
    if name == "pyspark":  # which is asked itself
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f'__version__ = "{version}"\n')
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def python_with(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_what_absflow_needs_is_right():
    """With other extensions beside Delta's, too."""
    assert wrong(package_checks(PACKAGES)) == []
    assert wrong(session_checks(SESSION)) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"pyspark": "4.0.1"}, "pyspark: found 4.0.1, expected 4.2.0; pip install pyspark==4.2.0"),
        ({"pyspark": None}, "pyspark: found none, expected 4.2.0; pip install pyspark==4.2.0"),
        (
            {"delta-spark": None},
            "delta-spark: found none, expected 4.4.0; pip install delta-spark==4.4.0",
        ),
        (
            {"pandas": "3.0.1"},
            "pandas: found 3.0.1, expected 2.2 or newer, but below 3; pip install 'pandas>=2.2,<3'",
        ),
        (
            {"pyarrow": "17.0.0"},
            "pyarrow: found 17.0.0, expected 18 or newer; pip install 'pyarrow>=18'",
        ),
    ],
)
def test_each_wrong_package_is_one_line(changed, line):
    """What was found, what was expected, what to do."""
    assert wrong(package_checks({**PACKAGES, **changed})) == [line]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"spark": "4.1.0"}, "Spark: found 4.1.0, expected 4.2.0; unset SPARK_HOME"),
        ({"delta": None}, "Delta jar: found none, expected 4.4.0; give --packages io.delta:"),
        ({"delta": "4.4.1"}, "Delta jar: found 4.4.1, expected 4.4.0"),
        ({"java": 11}, "Java: found 11, expected 17 or newer; install one, and set JAVA_HOME"),
        ({"extensions": ""}, "spark.sql.extensions: found none, expected io.delta.sql.Delta"),
        ({"catalog": "x.Y"}, "spark.sql.catalog.spark_catalog: found x.Y, expected org.apache."),
    ],
)
def test_each_difference_of_a_session_is_one_line(changed, words):
    """Of the JVM, its jars and its conf."""
    (line,) = wrong(session_checks(replace(SESSION, **changed)))
    assert line.startswith(words)


def test_no_java_is_a_line():
    """Spark itself speaks of a gateway that exited."""
    assert str(java_check(None)).startswith("Java: found none, expected 17 or newer; install one")


@pytest.mark.parametrize(
    ("name", "version", "line"),
    [
        ("pyspark", "4.0.1", "pyspark: found 4.0.1, expected 4.2.0; pip install pyspark==4.2.0"),
        ("pandas", "3.0.1", "pandas: found 3.0.1, expected 2.2 or newer, but below 3; pip install"),
    ],
)
def test_absflow_with_another_package_says_so(tmp_path, name, version, line):
    """And no ImportError from its insides; `import absflow` and the doctor work all the same."""
    fake_package(tmp_path, name, version)
    code, _, said = python_with(tmp_path, "-c", "from absflow import Job")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"absflow.errors.VersionError: {line}")
    code, printed, said = python_with(tmp_path, "-m", "absflow.cli.main", "doctor")
    assert (code, said) == (1, "")
    assert f"WRONG {line}" in printed


@pytest.mark.parametrize(
    ("version", "line"),
    [
        (None, "WRONG Java: found none, expected 17 or newer"),
        ("1.8.0_392", "WRONG Java: found 8, expected"),
        ("11.0.2", "WRONG Java: found 11, expected"),
        ("17.0.15", "ok    Java: 17"),
    ],
)
def test_the_doctor_looks_at_the_java_that_spark_would_start(tmp_path, version, line):
    """That of JAVA_HOME."""
    if version:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
    done = run(None, "doctor", env={"JAVA_HOME": str(tmp_path)})
    assert done.exit_code == (0 if line.startswith("ok") else 1)
    assert line in done.stdout
    assert "Spark was not started; give --properties-file or --conf" in done.stdout


def test_the_doctor_writes_a_document(monkeypatch):
    """With --json."""
    monkeypatch.setattr(versions, "DELTA", "9.9.9")
    done = run(None, "doctor", "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["whole"]) == (1, False)
    lines = [check["line"] for check in document["checks"] if not check["holds"]]
    assert lines == ["delta-spark: found 4.4.0, expected 9.9.9; pip install delta-spark==9.9.9"]


@pytest.mark.spark
def test_the_doctor_starts_spark_as_the_job_would(tmp_path):
    """And looks at jar, extensions and workers; without Delta's jar no error of Java is printed."""
    conf = ("--conf", "spark.master=local[1]", "--conf", "spark.ui.enabled=false")
    done = run(None, "doctor", *conf, env={"SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert "ok    Spark: 4.2.0" in lines
    assert sum("Java:" in line for line in lines) == 1
    assert any(line.startswith("ok    pyarrow on workers (") for line in lines)
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert [line.split(":")[0] for line in wrong] == [
        "WRONG Delta jar",
        "WRONG spark.sql.extensions",
        "WRONG spark.sql.catalog.spark_catalog",
    ]


@pytest.mark.spark
def test_the_doctor_says_why_spark_does_not_start():
    """In one line, too."""
    done = run(None, "doctor", "--conf", "spark.master=nothing")
    assert done.exit_code == 1
    assert "WRONG Spark: found that it does not start (" in done.stdout
    assert "Master must" in done.stdout.splitlines()[-1]
