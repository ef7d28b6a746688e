"""`absflow report`: the page as one file; what a browser makes of it is tested with a browser."""

import html
import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest
from commands_run import document, failure, run, succeed
from storage_roots import Checkpoint, Stage, end_driver, write_root

EMPTY = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta"}


class Reading(HTMLParser):
    """The text of a page, its tags, and whether they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.said = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in EMPTY:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if given.get("href", "").startswith("#"):
            self.links.append(given["href"][1:])

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.said.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.said).split())


def page(root, *arguments):
    return Reading(succeed(root, "report", "--output", "-", *arguments))


def test_it_says_how_the_job_is(small):
    read = page(small)
    assert f"of {small.path}" in read.text
    assert re.search(r"newest completed checkpoint \d+ d \d+ h old", read.text)
    assert "driver 2, which has not ended" in read.text
    assert "pending checkpoint 9" in read.text
    for stage in small.stages:
        assert stage in read.text
    assert len(read.ids) == len(set(read.ids))
    assert {*read.links} <= {*read.ids}


def test_every_checkpoint_is_there(small):
    """The newest completed one is chosen; each has its section, with its stages and phases."""
    read = page(small)
    shown = {f"c{c['checkpoint_id']}" for c in document(small, "history")["checkpoints"]}
    assert {i for i in read.ids if re.fullmatch(r"c\d+", i)} == shown
    (chosen,) = (given["id"] for _, given in read.tags if "chosen" in given.get("class", ""))
    assert chosen == "c8"
    last = document(small, "show", "8")
    for stage in last["stages"]:
        assert f"{stage['keys_total']:,}" in read.text
    assert f"absflow show 8 --storage {small.path}" in read.text
    assert "critical path" in read.text


def test_few_if_few_are_asked_for(small):
    read = page(small, "--limit", "2")
    assert [i for i in read.ids if re.fullmatch(r"r\d+", i)] == ["r9", "r8"]


def test_a_file_is_written(small, tmp_path):
    """And nothing in it asks for anything else."""
    target = tmp_path / "page.html"
    assert succeed(small, "report", "-o", str(target)).startswith(f"wrote {target}, ")
    text = target.read_text()
    asked = re.findall(r"""(?:src|href)=["']?([^"'> ]+)|url\(([^)]*)\)|@import""", text)
    assert all(link.startswith(("#", "data:,")) for link, _ in asked)
    said = document(small, "report", "-o", str(target))
    assert said["file"] == str(target)
    assert said["bytes"] == len(text.encode()) > 10_000


def test_a_place_that_cannot_be_written(small, tmp_path):
    words = failure(small, "report", "-o", str(tmp_path / "none" / "page.html"))
    assert words.startswith("absflow: could not write ")
    assert words.endswith("give another --output")


def test_no_job(tmp_path):
    assert run(tmp_path, "report", "-o", "-").exit_code == 1


def test_a_job_without_a_checkpoint(tmp_path):
    """It has a page all the same."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    root = write_root(tmp_path / "job", [Stage("x", keys, columns)], [])
    read = page(root)
    assert "newest completed checkpoint there is none" in read.text
    assert "None was triggered yet." in read.text


HOSTILE = [
    "<script>alert(1)</script>\"'>",
    "&lt;b&gt; &amp; ]]>",
    "x" * 1_000_000,
    "\u202eright to left\u202c \x1b[31m \x07",
    "</title><img src=x onerror=alert(1)>",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=["tag", "entity", "long", "control", "title"])
def test_what_is_in_the_tables_is_text(tmp_path, hostile):
    """Names of stages and inputs, positions, and causes: none of them is ever a tag."""
    keys, columns = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    stage = Stage("x", keys, columns, {1: [{"k": 1, "n": 1}]}, positions={hostile: hostile})
    checkpoints = [Checkpoint(1), Checkpoint(2, 1, "ABORTED", "TIMEOUT", hostile), Checkpoint(3, 1)]
    root = write_root(tmp_path / "job", [stage], checkpoints)
    end_driver(root)
    text = succeed(root, "report", "--output", "-")
    read = Reading(text)
    plain = write_root(
        tmp_path / "plain",
        [Stage("x", keys, columns, {1: [{"k": 1, "n": 1}]}, positions={"p": "p"})],
        [Checkpoint(1), Checkpoint(2, 1, "ABORTED", "TIMEOUT", "p"), Checkpoint(3, 1)],
    )
    end_driver(plain)
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in page(plain).tags]
    assert len(text) < 500_000
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", html.unescape(text))
