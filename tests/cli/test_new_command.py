"""What ``absflow new`` writes and refuses; that it runs is tests/spark/test_new_job.py."""

import pytest
from commands_run import run, succeed

from absflow.settings.catalog import PREFIX
from absflow.settings.reading import Settings


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_job_its_settings_a_test_and_input_are_written(tmp_path):
    """No placeholder is left, and the settings are ones that a job takes."""
    succeed(None, "new", "shop")
    texts = {
        file.relative_to(tmp_path / "shop").as_posix(): file.read_text()
        for file in (tmp_path / "shop").rglob("*")
        if file.is_file()
    }
    assert sorted(texts) == ["data/clicks/1.json", "job.conf", "job.py", "test_job.py"]
    assert [name for name, text in texts.items() if "$" in text] == []
    assert 'absflow.Job("shop", spark)' in texts["job.py"]
    lines = (line.split(None, 1) for line in texts["job.conf"].splitlines() if line)
    given = {key: value for key, value in lines if key.startswith(PREFIX)}
    assert Settings.from_conf(given).storage_path == "data/job"


def test_a_directory_that_is_there_is_left_alone(tmp_path):
    """Nothing is written over."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "job.py").write_text("mine")
    done = run(None, "new", "shop")
    assert done.exit_code == 2
    assert "'shop' is there already, and nothing of it was changed" in done.stderr
    assert [file.read_text() for file in (tmp_path / "shop").iterdir()] == ["mine"]


def test_a_name_that_no_job_may_have_is_refused(tmp_path):
    """Before a start would, and nothing is written."""
    done = run(None, "new", "my shop")
    assert done.exit_code == 2
    assert "'my shop' is not a letter followed by" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
