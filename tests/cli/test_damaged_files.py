"""What the commands say of files that are damaged or gone."""

import shutil

import pytest
from commands_run import document, failure
from damaging import checked, flip_in_values


def file_of(root, table, set_id):
    (path,) = (root / "state" / table / f"set_id={set_id}").glob("*.parquet")
    return path


@pytest.mark.parametrize("gone", [False, True])
def test_a14_a_damaged_file_is_named_with_the_checkpoints_that_do_not_need_it(
    small, tmp_path, gone
):
    """Set 4 is of checkpoints 4 and 5; 8, which begins with the full 6, is the newest without."""
    root = tmp_path / "job"
    shutil.copytree(small.path, root)
    path = file_of(root, "aircraft", 4)
    before = document(root, "state", "aircraft", "--at", "5")
    checked(path)
    assert document(root, "state", "aircraft", "--at", "5") == before
    flip_in_values(path, "legs")
    if gone:
        path.unlink()
    said = failure(root, "state", "aircraft", "--at", "5")
    assert f"file '{path.relative_to(root)}' under " in said
    assert "is damaged: " + ("it is gone" if gone else "could not verify page integrity") in said
    assert "It is of set 4 of state history 'aircraft'." in said
    assert "Without it checkpoints 5, 4 cannot be read or restored" in said
    assert "absflow restore --from 8 " in said
    assert document(root, "state", "aircraft", "--at", "8")["keys"] == 2
