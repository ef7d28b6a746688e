"""What must hold for the checkout as a whole: sizes, layers, versions, paths and links."""

import ast
import configparser
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "absflow"

# Ratchets: they may go down, never up.
FUNCTION_LINES = 60
FILE_LINES = 400

WITHOUT_SPARK = ("protocol", "simulation", "columnar")

# In pieces, so that this file does not name what it looks for.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("debian", "org"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.~$})>/-])/(?:work|root)(?=[/\s\"'`:,;)\]]|$)", re.MULTILINE)

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)

# Words that had several meanings, or none to somebody from the field. In pieces, as above.
OLD_WORDS = re.compile(
    r"\b(?:"
    + "|".join(
        "".join(parts)
        for parts in (
            ("hand", "writing"),
            ("hand", "written"),
            ("[Ww]ritten[ _-]by[ _-]", "hand"),
            ("state[ _-]by[ _-]", "hand"),
            ("[Ss]he", "l(?:f|ves)"),
            ("[Ss]to", "ck"),
            ("[Tt]o", "ld"),
            ("[Tt]e", "lls?"),
            ("[Hh]ea", "(?:rd|rs?)"),
            ("[Ww]i", "sh(?:es)?"),
            ("Coordinator", "Driver"),
            ("absflow[./]spark[./]", "(?:driver|plan|begin|written|restored?|run|reports)"),
            ("columnar[./]", "restore"),
        )
    )
    + r")\b"
)

# Whose columns have names of absflow's own (pages), and what sees to all others.
MAP_IN_ARROW = {"absflow/storage/delta/transactions.py", "absflow/spark/worker/any_names.py"}

# Who names a table of facts outside of `absflow.facts`, and what for; none of them reads its rows.
FACT_TABLE = re.compile(r"layout\.(?:attempts|barriers|overtakes|checkpoints|requests)\b")
NAMES_FACT_TABLES = {
    "absflow/cli/reader.py": "the command line appends to requests",
    "absflow/history.py": "SQL, for people",
    "absflow/spark/control/retention.py": "a version",
    "absflow/spark/control/old_logs.py": "old commits of their logs go",
    "absflow/spark/control/tidying.py": "small files are put together",
    "absflow/spark/start/attempt.py": "versions",
    "absflow/spark/start/decision.py": "a version, and whether one is there",
    "absflow/spark/start/savepoint_writer.py": "whether they are there",
    "absflow/spark/stream/chain.py": "streams of control rows",
}
WRITES_COLUMNS = {"absflow/cli/asking.py"}

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main()"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each module of the package, or of these of its folders."""
    for folder in [PACKAGE / name for name in folders] or [PACKAGE]:
        for path in sorted(folder.rglob("*.py")):
            yield name_of(path), path.read_text(encoding="utf-8")


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def repository_files() -> list[Path]:
    """Files that are tracked or about to be: what a clone will hold."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def pins() -> dict[str, str]:
    """The exact versions in setup.cfg, by package."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = config["options"]["install_requires"]
    return dict(re.findall(r"^([\w-]+)==([\w.]+)$", wanted, re.MULTILINE))


def compose_versions() -> dict[str, str]:
    """The `x-versions` block of docker-compose.yml; too plain to need a YAML parser."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (block,) = re.findall(r"^x-versions:\n((?:  .*\n)+)", text, re.MULTILINE)
    return dict(re.findall(r"^  (\w+): &[\w-]+ (\S+)$", block, re.MULTILINE))


def compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            answer = subprocess.run([*command, "version"], capture_output=True, check=False)
            if answer.returncode == 0:
                return command
    return None


def test_files_that_the_second_process_gets_are_there():
    """A name that is no file's would be seen by nothing but the time that the tests take."""
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (second,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECOND"
    ]
    assert second <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_functions_are_short():
    """No function of the package is longer than the ratchet allows."""
    too_long = [
        f"{name}:{node.lineno} {node.name}: {lines} lines"
        for name, text in modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert too_long == []


def test_files_are_short():
    """No file of code, tests and benchmarks is longer than the ratchet allows."""
    too_long = [
        f"{name_of(path)}: {lines} lines"
        for path in repository_files()
        if path.suffix == ".py"
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES
    ]
    assert too_long == []


def test_files_of_tests_have_names_of_their_own():
    """Test folders are no packages: pytest takes two files of one name for one module."""
    tests = (path for path in repository_files() if ROOT / "tests" in path.parents)
    names = [path.name for path in tests if path.match("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_old_words_are_gone():
    """Code, tests and docs use the words of the glossary, and none of the old ones."""
    found = []
    for path in repository_files():
        if path.suffix in {".py", ".md", ".cfg", ".conf"} and path.name != "CHANGELOG.md":
            text = path.read_text(encoding="utf-8")
            found += [f"{name_of(path)}: {match[0]}" for match in OLD_WORDS.finditer(text)]
    assert found == []


def test_names_are_quoted_in_one_place():
    """Only absflow/storage/sql.py puts names into backticks, and `F.col` gets them from there."""
    found = []
    for name, text in modules():
        for node in ast.walk(ast.parse(text)):
            if name != "absflow/storage/sql.py" and _puts_in_backticks(node):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
            match node:
                case ast.Call(func=ast.Attribute(attr="col"), args=[argument]):
                    if not (isinstance(argument, ast.Constant) or "quoted" in ast.unparse(node)):
                        found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_columns_of_any_names_are_mapped_by_place():
    """PySpark's mapInArrow finds columns by name; for those of users it is called in one place."""
    calling = {
        name
        for name, text in modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "mapInArrow"
    }
    assert calling == MAP_IN_ARROW


def _puts_in_backticks(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr(values=parts):
            pairs = itertools.pairwise(parts)
            return any(
                isinstance(a, ast.Constant)
                and str(a.value).endswith("`")
                and isinstance(b, ast.FormattedValue)
                for a, b in pairs
            )
        case ast.BinOp(op=ast.Add(), left=ast.Constant(value="`")):
            return True
    return False


def test_rows_of_facts_stay_in_their_package():
    """Nobody else names a table of facts but for its versions, streams and SQL, or its columns."""
    outside = {n: text for n, text in modules() if not n.startswith("absflow/facts/")}
    assert {n for n, text in outside.items() if FACT_TABLE.search(text)} == {*NAMES_FACT_TABLES}
    knows = "absflow.facts.columns"
    assert {n for n, text in outside.items() if knows in {*imported(ast.parse(text))}} == {
        *WRITES_COLUMNS
    }


def test_the_wings_have_few_files_beside_them():
    """absflow/spark itself has no more than four files: a new one belongs into a wing."""
    assert len(list((PACKAGE / "spark").glob("*.py"))) <= 4


def test_the_known_versions_are_the_pinned_ones():
    """absflow/spark/versions.py and setup.cfg name the same Spark and Delta."""
    versions = importlib.import_module("absflow.spark.versions")
    assert (versions.SPARK, versions.DELTA) == (pins()["pyspark"], pins()["delta-spark"])


def test_every_module_says_what_it_is():
    """Every module of the package has a docstring."""
    assert [name for name, text in modules() if not ast.get_docstring(ast.parse(text))] == []


def test_the_core_does_not_know_spark():
    """Protocol, simulation and columnar import neither pyspark nor delta, not even lazily."""
    offenders = [
        f"{name} imports {module}"
        for name, text in modules(*WITHOUT_SPARK)
        for module in imported(ast.parse(text))
        if module.split(".")[0] in {"pyspark", "delta"}
    ]
    assert offenders == []


def test_public_names_are_sorted_and_exist():
    """`absflow.__all__` is sorted, without repetition, and each of its names can be had."""
    absflow = importlib.import_module("absflow")
    names = list(absflow.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(absflow, name)] == []


def test_imports_go_one_way(tmp_path):
    """The contracts between the subpackages in setup.cfg hold."""
    done = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--cache-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cluster_runs_the_pinned_versions():
    """The image and the jar in docker-compose.yml are of the versions that setup.cfg pins."""
    spark, delta = pins()["pyspark"], pins()["delta-spark"]
    versions = compose_versions()
    assert versions["spark"].split(":")[1].split("-")[0] == spark
    short = ".".join(spark.split(".")[:2])
    assert versions["delta"] == f"io.delta:delta-spark_{short}_2.13:{delta}"
    tested = (ROOT / "tests/spark/on_store.py").read_text(encoding="utf-8")
    assert f'HADOOP_AWS = {{"{versions["s3"]}": True}}' in tested


def test_what_a_session_is_started_with_has_the_pinned_versions():
    """The jar in conf/absflow.conf and in what `absflow new` writes is the one of setup.cfg."""
    keys = importlib.import_module("absflow.settings.session_keys").SESSION_KEYS
    (jar,) = [key.value for key in keys if key.name == "spark.jars.packages"]
    short = ".".join(pins()["pyspark"].split(".")[:2])
    assert jar == f"io.delta:delta-spark_{short}_2.13:{pins()['delta-spark']}"


def test_docker_compose_accepts_the_file():
    """Docker's own reader finds no fault in docker-compose.yml, and sees all five services."""
    command = compose_command()
    if command is None:
        pytest.skip("no docker client with compose on this machine")
    done = subprocess.run(
        [*command, "-f", "docker-compose.yml", "config", "--services"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"s3", "master", "worker-1", "worker-2", "flights"}


def test_no_file_names_one_machine():
    """No file holds a path of the machine that it was written on, nor a package registry's host."""
    found = []
    for path in repository_files():
        text = path.read_text(encoding="utf-8", errors="ignore")
        found += [f"{name_of(path)}: {host}" for host in REGISTRIES if host in text]
        found += [f"{name_of(path)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_links_resolve():
    """Each relative link in a Markdown file leads to a file of the repository."""
    known = set(repository_files())
    known |= {folder for path in known for folder in path.parents}
    broken = []
    for path in sorted(path for path in known if path.suffix == ".md"):
        for groups in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
            target = "".join(groups)
            goal = (path.parent / target.split("#")[0]).resolve()
            if not re.match(r"[a-z]+:|#", target) and goal not in known:
                broken.append(f"{name_of(path)}: {target}")
    assert broken == []


@pytest.mark.parametrize(
    ("version", "accepted"),
    [(None, False), ("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("25-ea", True)],
)
def test_java_check_wants_17(tmp_path, version, accepted):
    """The check before a setup takes Java 17 and newer, and says the rest in one line."""
    if version:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
    done = subprocess.run(
        ["sh", ".ci/java_check.sh"],
        cwd=ROOT,
        env=os.environ | {"JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is accepted
    assert len(done.stderr.splitlines()) == (0 if accepted else 1)
    assert accepted or (version or "no working Java") in done.stderr
