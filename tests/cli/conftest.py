"""Fixtures of these tests."""

import pytest
from shared_roots import write_rich_root, write_small_root


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small_root(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return write_rich_root(tmp_path_factory.mktemp("rich"))
