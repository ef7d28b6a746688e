"""The tables of a world's facts in memory, and a summary of them that may be an older one."""

from dataclasses import replace
from datetime import datetime, timezone

import pyarrow as pa
from retention_model import World

from absflow.facts.columns import BARRIERS, CHECKPOINTS
from absflow.facts.inventory import of_facts
from absflow.facts.matching import expression
from absflow.facts.reading import FactReader
from absflow.facts.summary import text_of
from absflow.protocol.known import summarise
from absflow.storage.delta.log import log_file
from absflow.storage.layout import Layout

LAYOUT = Layout("/job")
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FactTables:
    """A storage reader over rows; counts the rows that it gives."""

    def __init__(self, barriers, checkpoints, summary=None):
        self._tables = {
            LAYOUT.barriers: pa.Table.from_pylist(barriers, schema=BARRIERS),
            LAYOUT.checkpoints: pa.Table.from_pylist(checkpoints, schema=CHECKPOINTS),
        }
        self._summary = summary
        self.given = 0

    def table(self, path, columns, matches=()):
        found = self._tables[path].filter(expression(matches)).select(columns)
        self.given += found.num_rows
        return found

    def read(self, path):
        if path == LAYOUT.summary:
            return self._summary
        newest = log_file(LAYOUT.checkpoints, 0)
        return "{}" if path == newest else None


class FactWorld(World):
    """A world whose inventory is made of its facts, with a summary and without: no difference."""

    def trigger(self, savepoint=False, unaligned=False):
        self.triggers = getattr(self, "triggers", [])
        super().trigger(savepoint, unaligned)
        n = self.next_id - 1
        self.triggers.append((n, self.pending[n].base, self.attempt, savepoint))

    def tables(self, summary=None):
        barriers = [
            {
                **{"checkpoint_id": n, "base_id": base, "completed_id": base, "attempt": attempt},
                "kind": "SAVEPOINT" if savepoint else "CHECKPOINT",
                "triggered_at": AT,
            }
            for n, base, attempt, savepoint in getattr(self, "triggers", [])
        ]
        done = [
            {
                **{"checkpoint_id": c.checkpoint_id, "attempt": c.attempt, "kind": "COMPLETED"},
                "incarnation": 1,
                "type": "SAVEPOINT" if c.checkpoint_id in self.savepoints else "CHECKPOINT",
                "stages": [stage_row(c, stage, lineage) for stage, lineage in c.lineages.items()],
            }
            for c in self.completed
        ]
        ended = [{"checkpoint_id": n, "kind": "ABORTED"} for n in self.aborted]
        gone = [{"checkpoint_id": n, "kind": "DELETED"} for n in self.deleted]
        compacted = [
            {
                **{"checkpoint_id": c.checkpoint_id, "kind": "COMPACTED", "stage": c.stage},
                **{"set_id": c.set_id, "replaces": list(c.replaces)},
            }
            for c in self.compacted
        ]
        return FactTables(barriers, [*done, *ended, *gone, *compacted], summary)

    def known(self, summary=None, asked=()):
        """What is known, and the stages of the manifests that may be needed."""
        facts = FactReader(self.tables(summary), LAYOUT)
        known = facts.known(attempt=self.attempt, named={*self.attempts.values(), *asked} - {0})
        manifests = facts.stages(known.completions.keys())
        self.compacted_seen = facts.compacted(
            (stage.report.stage, stage.lineage) for part in manifests.values() for stage in part
        )
        return known, manifests

    def seen(self, summary=None, asked=()):
        """The inventory with what the facts say."""
        known, manifests = self.known(summary, asked)
        world = super().inventory()
        values = of_facts(known, manifests, self.attempt)
        values["compacted"] = self.compacted_seen
        # Of a trigger's rows in flight its row does not say anything.
        pending = {p.checkpoint_id for p in values["pending"]}
        values["pending"] = tuple(p for p in world.pending if p.checkpoint_id in pending)
        return replace(world, **values)

    def sum_up(self, summary=None):
        """A summary, made with the help of an earlier one."""
        known, manifests = self.known(summary)
        lineages = {
            n: {stage.report.stage: stage.lineage for stage in stages}
            for n, stages in manifests.items()
        }
        named = {*self.attempts.values()} - {0}
        return text_of(summarise(known, lineages, self.compacted_seen, self.attempt, named), 0)


def stage_row(completed, stage, lineage):
    flying = [
        {"input": rows.stage, "attempt": rows.attempt, "epoch": rows.epoch}
        for rows in (completed.in_flight if stage == "right" else ())
    ]
    keys = completed.keys.get(stage, 0)
    return {"stage": stage, "lineage": list(lineage), "in_flight": flying, "keys_total": keys}
