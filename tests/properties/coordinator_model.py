"""A small model of the coordinator, written from the rules in words and not from the code.

It answers each event with the actions that are due, as plain tuples. Reports, finds and commits
are kept in one flat record per checkpoint, and everything is decided again from these records.
"""

from dataclasses import dataclass, field

STAGES = {"a": (), "b": (), "c": ("a", "b")}
ROOTS = ("a", "b")


@dataclass
class Record:
    base: int
    triggered_ms: int
    awaited: set
    written: bool = False
    committing: bool = False
    request: str = ""
    stop: bool = False
    overtaken: bool = False
    reported: set = field(default_factory=set)
    found: set = field(default_factory=set)

    @property
    def ready(self):
        return self.written and self.awaited <= self.found and not self.committing


class Model:
    def __init__(self, interval, timeout, pause, most, tolerated, patience, aligned):
        self.interval, self.timeout, self.pause = interval, timeout, pause
        self.most, self.tolerated, self.patience = most, tolerated, patience
        self.aligned = aligned
        self.newest = self.completed = self.failures = self.now = self.triggered_ms = 0
        self.completed_ms = None
        self.pending = {}
        self.exhausted, self.ended = {}, set()
        self.stopping = self.stopped = False

    def awaited(self):
        live = set(ROOTS) - self.ended
        return live | {"c"} if live else live

    def abort(self, number, reason, counted):
        request = self.pending.pop(number).request
        self.failures += counted and number > self.completed and not request
        return [("abort", number, reason, request)]

    def settle(self, due):
        """What follows from the records after any event."""
        ready = [n for n, r in self.pending.items() if r.ready]
        if ready and not any(r.committing for r in self.pending.values()):
            self.pending[min(ready)].committing = True
            due = [*due, ("commit", min(ready), self.pending[min(ready)].request)]
        if self.failures > self.tolerated and not self.stopping:
            due = [*due, ("fail",), *self.stop()]
        if self.stopping and not self.pending and not self.stopped:
            self.stopped = True
            due = [*due, ("stopped",)]
        return due

    def stop(self):
        if self.stopping:
            return []
        self.stopping = True
        doomed = [n for n, r in self.pending.items() if not r.committing]
        return [a for n in doomed for a in self.abort(n, "JOB_STOPPED", False)]

    def tick(self, now):
        self.now = now
        late = [
            n
            for n, r in self.pending.items()
            if now - r.triggered_ms >= (self.patience if r.request else self.timeout)
            and not r.committing
        ]
        due = [a for n in late for a in self.abort(n, "EXPIRED", True)]
        due += self.overtake(now)
        if self.may_trigger():
            self.triggered_ms = now
            due += self.trigger(Record(self.completed, now, self.awaited()))
        return self.settle(due)

    def may_overtake(self, number):
        record = self.pending[number]
        behind_a_savepoint = any(r.request for n, r in self.pending.items() if n <= number)
        silent = record.awaited - record.reported
        return self.aligned is not None and silent and not (record.overtaken or behind_a_savepoint)

    def overtake(self, now):
        late = [
            n
            for n, r in self.pending.items()
            if self.aligned is not None and r.written and now - r.triggered_ms >= self.aligned
        ]
        return [a for n in late if self.may_overtake(n) for a in self.jump(n)]

    def jump(self, number):
        self.pending[number].overtaken = True
        return [("overtake", number)]

    def held(self, number):
        """A stage holds too much for a checkpoint."""
        if number not in self.pending or self.pending[number].overtaken:
            return self.settle([])
        if self.may_overtake(number):
            return self.settle(self.jump(number))
        return self.failed(number, "HELD_TOO_MUCH", True)

    def trigger(self, record):
        self.newest += 1
        self.pending[self.newest] = record
        return [("trigger", self.newest, record.base, record.request)]

    def ask(self, request, stop):
        """A person wants a savepoint."""
        if request in {r.request for r in self.pending.values()}:
            return self.settle([])
        if self.stopping:
            return self.settle([("refuse", request)])
        return self.settle(
            self.trigger(Record(0, self.now, self.awaited(), False, False, request, stop))
        )

    def may_trigger(self):
        if self.stopping or len(self.pending) >= self.most or self.failures > self.tolerated:
            return False
        if any(r.stop for r in self.pending.values()):
            return False
        if len(self.exhausted) == len(ROOTS):
            last = max(self.exhausted.values())
            if any(n > last for n in self.pending) or self.completed <= last:
                return not any(n > last for n in self.pending)
        paused = self.completed_ms is not None and self.now < self.completed_ms + self.pause
        return self.now >= self.triggered_ms + self.interval and not paused

    def written(self, number):
        if number in self.pending:
            self.pending[number].written = True
            return self.settle(self.overtake(self.pending[number].triggered_ms))
        return self.settle([])

    def useless(self, number, stage):
        if number in self.pending and stage in self.pending[number].awaited:
            return None
        known = number not in self.pending and number <= self.newest
        return [("discard", number, stage, "late" if known else "unknown")]

    def received(self, kind, number, stage):
        """A report or a find."""
        if (due := self.useless(number, stage)) is None:
            seen = getattr(self.pending[number], kind)
            due = [("discard", number, stage, "duplicate")] if stage in seen else []
            seen.add(stage)
        return self.settle(due)

    def failed(self, number, reason, counted):
        record = self.pending.get(number)
        if record is None or record.ready or (record.committing and reason != "FINALIZE_FAILED"):
            return self.settle([])
        return self.settle(self.abort(number, reason, counted))

    def committed(self, number, now, flying):
        stop = self.pending.pop(number).stop
        if number > self.completed:
            self.completed, self.completed_ms, self.failures = number, now, 0
        older = [n for n, r in self.pending.items() if n < number and not r.request]
        due = [a for n in older for a in self.abort(n, "SUBSUMED", False)]
        whole = {root for root, mark in self.exhausted.items() if mark < number and not flying}
        if whole == set(ROOTS):
            due += [("finish", number), *self.stop()]
        elif len(self.exhausted) < len(ROOTS):
            due += [("end", root) for root in whole - self.ended]
            self.ended |= whole
        due += self.stop() if stop else []
        return self.settle(due)

    def exhaust(self, root):
        self.exhausted.setdefault(root, self.newest)
        return self.settle([])
