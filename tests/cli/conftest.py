"""Fixtures of these tests."""

import pytest
from shared_roots import write_rich_root, write_small_root


@pytest.fixture
def job_program(tmp_path_factory, monkeypatch):
    """A program, ``job.py``, in the working directory; nothing runs it."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "job.py").touch()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small_root(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return write_rich_root(tmp_path_factory.mktemp("rich"))
