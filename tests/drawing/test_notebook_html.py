"""What notebooks show: well-formed, and every name in it a text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from absflow.columnar.event_time import RootTime
from absflow.columnar.expiry import Expiry
from absflow.columnar.process import Result
from absflow.columnar.timers import Domain
from absflow.drawing.html import escaped, facts, fragment, style, table
from absflow.facts.listing import HistoryRecord, bar_lengths
from absflow.facts.records import CheckpointRecord
from absflow.graph.nodes import SinkNode, SourceNode, StageNode
from absflow.job_shown import job_html
from absflow.protocol.checkpoints import (
    ChannelState,
    FailureReason,
    Kind,
    Manifest,
    StageManifest,
    StageReport,
    Status,
)
from absflow.protocol.event_time import EventTime
from absflow.protocol.load import Backlog, Load
from absflow.protocol.watermarks import StageTime
from absflow.spark.control import shown
from absflow.spark.control.progress import Progress, SinkProgress, StageProgress
from absflow.spark.control.shown import ShownRun

HOSTILE = '<img src=x onerror="alert(1)">&\u202e"\'</style><script>\x00'
NOW = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
K = pa.schema([(HOSTILE, pa.string())])


def parsed(html: str) -> ElementTree.Element:
    """As XML, which it would not be if a name had become a tag."""
    root = ElementTree.fromstring(html)
    tags = {element.tag for element in root.iter()}
    assert tags <= {
        *("div", "style", "h4", "p", "b", "i", "dl", "dt", "dd", "table", "thead", "tbody", "tr"),
        *("th", "td", "svg", "g", "rect", "path", "line", "text", "title"),
    }
    assert not [e for e in root.iter() if any(name.startswith("on") for name in e.attrib)]
    assert "\u202e" not in html
    assert "\x00" not in html
    return root


def texts(root: ElementTree.Element) -> str:
    return " ".join(part for e in root.iter() if e.tag != "style" for part in [e.text or ""])


def report(stage: str, **more: object) -> StageReport:
    times = {"start_delay_ms": 5, "alignment_ms": 20, "sync_ms": 3, "commit_ms": 40, "async_ms": 9}
    given = {"rows_changed": 3, "keys_total": 1234, "bytes_total": 9_000_000, **times, **more}
    return StageReport(stage, 7, 2, {"clicks": HOSTILE}, **given)  # type: ignore[arg-type]


def manifest(name: str = HOSTILE) -> Manifest:
    flying = ChannelState(name, "a", 1, "", 7, 0, (), 12, 99)
    time = EventTime(StageTime({}, 1_700_000_000_000_000))
    first = StageManifest(report(name, time=time), (3, 7), (flying,))
    ended = StageManifest(replace(report("old"), checkpoint_id=4), (4,))
    return Manifest(7, 3, 1_700_000_000_000, (first, ended), Kind.SAVEPOINT, derived_from=2)


def record(number: int = 7, **more: object) -> CheckpointRecord:
    given = {"ended_at": NOW, "duration_ms": 70, "stages": manifest().stages, **more}
    return CheckpointRecord(number, Status.COMPLETED, 1, 3, NOW, **given)  # type: ignore[arg-type]


def test_a_manifest_is_a_table_of_stages_and_a_timeline():
    root = parsed(manifest()._repr_html_())
    said = texts(root)
    for words in ("manifest of savepoint 7", "checkpoint 3", "1,234", "9.0 MB", "old (ended)"):
        assert words in said
    assert "2023-11-14 22:13:20" in said
    assert "40 ms" in said
    phases = [e.get("class") for e in root.iter("rect")]
    assert phases == ["start_delay_ms", "alignment_ms", "sync_ms", "commit_ms", "async_ms"]
    assert Manifest(1, 0, 0, ())._repr_html_().count("<table") == 0


def test_a_checkpoint_says_what_became_of_it():
    said = texts(parsed(record()._repr_html_()))
    assert "COMPLETED" in said
    assert "70 ms" in said
    aborted = CheckpointRecord(
        8, Status.ABORTED, 1, 0, NOW, NOW, 5, FailureReason.EXPIRED.code, HOSTILE, abandoned=True
    )
    said = texts(parsed(aborted._repr_html_()))
    assert "ABORTED, abandoned by a restore" in said
    assert "not every stage reported within its timeout" in said
    assert "<img src=x onerror=" in said  # a text: the parser has found no such tag
    assert aborted.line.startswith("checkpoint 8, ABORTED, 5 ms, abandoned by a restore: not every")


def test_a_history_is_a_strip_and_the_newest_ten():
    aborted = record(3, stages=(), reason="OF_ANOTHER_VERSION")
    records = (aborted, *(record(n) for n in range(4, 30)))
    counts = {Status.COMPLETED: 26, Status.ABORTED: 1, Status.PENDING: 0, Status.DELETED: 0}
    root = parsed(HistoryRecord(records, counts, 70.0).html(f"checkpoints of {HOSTILE}"))
    assert len([e for e in root.iter("rect") if e.get("class") == "reach"]) == len(records)
    rows = [row for row in root.iter("tr") if row[0].get("scope") == "row"]
    assert [row[0].text for row in rows] == [str(n) for n in range(29, 19, -1)]
    empty = HistoryRecord((), dict.fromkeys(Status, 0), None)
    assert "svg" not in {e.tag for e in parsed(empty.html("nothing")).iter()}


def test_what_a_dead_driver_left_overnight_hides_no_bar():
    """Its checkpoint is aborted when the next driver starts."""
    left = CheckpointRecord(5, Status.ABORTED, 1, 0, NOW, NOW, 8 * 3_600_000)
    assert bar_lengths([record(3), left, record(6)]) == [70, 70, 70]
    short = CheckpointRecord(5, Status.ABORTED, 1, 0, NOW, NOW, 20)
    assert bar_lengths([record(3), short, CheckpointRecord(7, Status.PENDING, 1, 0, NOW)]) == [
        70,
        20,
        0,
    ]
    assert bar_lengths([left, short]) == [left.duration_ms, 20]
    assert bar_lengths([]) == []


def nodes() -> tuple[list[SourceNode], list[StageNode], list[SinkNode]]:
    time = RootTime(HOSTILE, 0)
    stage = StageNode(
        HOSTILE, ("clicks", "not there"), (HOSTILE,), K, K, {"clicks": lambda *_: Result()},
        on_timer=lambda *_: Result(), expiry=Expiry(60_000_000, Domain.EVENT),
    )  # fmt: skip
    sink = SinkNode("out", HOSTILE, on_checkpoint=True)
    return [SourceNode("clicks", K, True, HOSTILE, event_time=time)], [stage], [sink]


def test_a_job_is_a_graph_with_its_sources_stages_and_sinks():
    root = parsed(job_html(HOSTILE, *nodes(), {"out": HOSTILE}))
    boxes = [e.get("class") for e in root.iter("rect") if "node" in (e.get("class") or "")]
    assert sorted(boxes) == ["node sink", "node source", "node source", "node stage"]
    assert len(list(root.iter("path"))) == 3
    said = texts(root)
    assert "not declared" in said
    assert "1 min 00 s of event time" in said


def test_a_job_that_is_unfinished_or_wrong_is_shown_all_the_same():
    parsed(job_html("empty", [], [], [], {}))
    circle = [StageNode(n, (o,), ("k",), K, K, {}) for n, o in (("a", "b"), ("b", "a"))]
    root = parsed(job_html("circle", [], circle, [], {}))
    assert "svg" not in {e.tag for e in root.iter()}


def shown_run(state: str = "runs", **more: object) -> ShownRun:
    load = Load(0.73, 0.0, (Backlog("clicks", 1, 1200),))
    stages = {
        HOSTILE: StageProgress(4, 5_000, 321.4, load, NOW, 2),
        "quiet": StageProgress(load=Load(backlogs=None)),
    }
    sinks = {"out": SinkProgress(3, 1, 2.0, 1, HOSTILE)}
    given = {"completed_at": NOW - timedelta(seconds=3), **more}
    progress = Progress(12, 9, (13,), stages, sinks=sinks, **given)  # type: ignore[arg-type]
    said = HOSTILE if state == "failed" else ""
    return ShownRun("shop", HOSTILE, state, said, progress, int(NOW.timestamp() * 1000))


def test_a_run_says_how_old_its_newest_checkpoint_is():
    assert shown_run().line() == (
        "job 'shop' runs; checkpoint 12 completed 3.0 s ago; 1 pending; 321 rows/s in "
        + repr(HOSTILE)
    )
    said = texts(parsed(shown_run().html()))
    for words in ("checkpoint 12 completed 3.0 s ago", "73%", "1,200", "2026-11-27 12:00:00"):
        assert words in said
    assert "of an earlier run" in shown_run(completed_at=None).line()
    failed = shown_run("failed")
    assert failed.line().startswith("job 'shop' failed; checkpoint 12")
    parsed(failed.html())
    nothing = replace(failed, progress=Progress(0, 0, (), {}))
    assert "no checkpoint yet" in nothing.line()


def test_a_terminal_gets_a_line_whenever_something_has_changed(capsys):
    runs = [shown_run(), shown_run(), shown_run("ended")]

    class Done:
        def wait(self, timeout):
            return len(runs) == 1

    shown.watch(lambda: runs.pop(0), Done(), 0.0, None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines] == ["job 'shop' runs", "job 'shop' ended"]


def test_an_interrupt_ends_the_watching_alone(capsys):
    class Interrupted:
        def wait(self, timeout):
            raise KeyboardInterrupt

    shown.watch(shown_run, Interrupted(), 1.0, None)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_watching_ends_in_time(capsys):
    class Never:
        def wait(self, timeout):
            waited.append(timeout)
            return False

    waited: list[float] = []
    shown.watch(shown_run, Never(), 1.0, 2.5)
    assert waited == [1.0, 1.0, 0.5]


def test_tables_and_facts_escape_what_they_are_given():
    html = fragment(table((HOSTILE, "n"), [(HOSTILE, 3)], (1,)), facts([(HOSTILE, HOSTILE)]))
    assert 'class="number">3<' in html
    parsed(html)
    assert escaped("x" * 3_000_000).endswith("…")


def test_the_style_reaches_nothing_else_in_a_notebook():
    """Each rule is for what stands within its own class."""
    rules = [part.strip() for part in style().replace("{ .absflow", "{\n.absflow").split("}")]
    selectors = [rule.split("{")[-2] for rule in rules if rule.count("{")]
    assert len(selectors) > 20
    for selector in selectors:
        for each in selector.strip().split(","):
            assert each.strip().startswith((".absflow", "@media")), each


@pytest.mark.parametrize("state", ["runs", "ended", "failed"])
def test_every_state_has_its_colour(state):
    classes = {e.get("class") for e in parsed(shown_run(state).html()).iter("i")}
    assert classes == {{"runs": "pending", "failed": "aborted"}.get(state, "completed")}
