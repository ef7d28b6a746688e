"""A manifest has the digest of each of its sets, whoever wrote them."""

from building import Job

from absflow.facts.records import compacted_of, stage_of, stage_row
from absflow.facts.summary import read_summary, text_of
from absflow.protocol.checkpoints import SetDigest, StageManifest, StageReport
from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    HistoryFound,
    StageReported,
    WriteCompletion,
)
from absflow.protocol.known import Known
from absflow.protocol.lineage import Compacted, shortened
from absflow.protocol.recovery.savepoint_writer import compose
from absflow.storage.layout import Layout

FIRST, SECOND = SetDigest(1, 3, -77), SetDigest(2, 1, 5)
BOTH = SetDigest(-2, 4, 9)


def complete(job, now_ms, digest):
    """Trigger a checkpoint and have it completed with this digest of its set; its manifest."""
    n = job.trigger(now_ms)
    report = StageReport("a", n, 0, rows_changed=digest.rows if digest else 0)
    said = job.post(StageReported(report), HistoryFound(n, "a", digest=digest))
    job.post(CompletionWritten(n, now_ms))
    (manifest,) = (a.manifest for a in said if isinstance(a, WriteCompletion))
    return manifest


def test_a9_a_manifest_has_the_digests_of_its_whole_lineage():
    """Of its own set, of those before, and of what compaction put in their place."""
    job = Job()
    assert complete(job, 1000, FIRST).stage("a").sets == (FIRST,)
    second = complete(job, 2000, SECOND)
    assert second.stage("a").lineage == (1, 2)
    assert second.stage("a").sets == (FIRST, SECOND)
    unchanged = complete(job, 3000, None)
    assert unchanged.stage("a").sets == (FIRST, SECOND)
    short = shortened(unchanged, [Compacted(2, "a", -2, (1, 2), BOTH)])
    assert (short.stage("a").lineage, short.stage("a").sets) == ((-2,), (BOTH,))
    other = shortened(unchanged, [Compacted(2, "b", -2, (1, 2), BOTH)])
    assert other.stage("a").sets == (FIRST, SECOND)


def test_a9_a_written_savepoint_has_the_digests_of_what_was_given_and_of_its_base():
    """Given state has that of its own set; an empty one has no set."""
    job = Job()
    base = complete(job, 1000, FIRST)
    assert compose(5, 0, base, {"b": 2}, {"b": SetDigest(5, 2, 1)}).stage("a").sets == (FIRST,)
    given = SetDigest(5, 2, 1)
    assert compose(5, 0, base, {"a": 2}, {"a": given}).stage("a").sets == (given,)
    assert compose(5, 0, base, {"a": 0}, {}).stage("a").sets == ()


def test_a9_digests_are_rows_and_back():
    """In manifests and COMPACTED facts; rows of a table without the columns have none."""
    stage = StageManifest(StageReport("a", 2, 0), (1, 2), sets=(FIRST, SECOND))
    row = stage_row(stage)
    assert stage_of(row) == stage
    del row["sets"]
    assert stage_of(row).sets == ()
    fact = {"kind": "COMPACTED", "checkpoint_id": 2, "stage": "a", "set_id": -2}
    fact["replaces"] = [1, 2]
    assert compacted_of([fact]) == (Compacted(2, "a", -2, (1, 2)),)
    whole = {**fact, "set_rows": 4, "set_digest": 9}
    assert compacted_of([whole]) == (Compacted(2, "a", -2, (1, 2), BOTH),)


class Files:
    """A storage root whose summary of facts has this text."""

    def __init__(self, text):
        self.text = text

    def read(self, path):
        return self.text


def test_a9_a_summary_of_old_facts_keeps_the_digests_of_compactions():
    """So that what is read by an old compaction is still compared."""
    facts = (Compacted(2, "a", -2, (1, 2), BOTH), Compacted(3, "b", -3, (1, 3)))
    text = text_of(Known(upto=9, compacted=facts), 7)
    assert read_summary(Files(text), Layout("/job")).compacted == facts
