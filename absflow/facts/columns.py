"""The columns of the tables of facts, as today's version writes them.

Tables are created with these columns. One that an earlier version has begun lacks the later ones,
so a reader leaves out what is not there (:meth:`absflow.facts.reading.StorageReader.table`); what
rows mean is in :mod:`absflow.facts.records`.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["ATTEMPTS", "BARRIERS", "CHECKPOINTS", "OVERTAKES", "REFUSED", "REQUESTS"]

# Written without Spark, by the command line, and read with it. A row with `delete` wants these
# checkpoints deleted, and is for whichever driver comes; tables that were begun by earlier versions
# get that column with the first such row. Any other row wants a savepoint of the driver that it
# names.
REQUESTS = pa.schema(
    [
        ("request", pa.string()),
        ("incarnation", pa.int64()),
        ("stop", pa.bool_()),
        ("drain", pa.bool_()),
        ("requested_at", pa.timestamp("us", tz="UTC")),
        ("delete", pa.list_(pa.int64())),
        ("fire_timers", pa.bool_()),
    ]
)
_TIME = pa.timestamp("us", tz="UTC")
ATTEMPTS = pa.schema(
    [
        ("attempt", pa.int32()),
        ("incarnation", pa.int64()),
        ("kind", pa.string()),
        ("at", _TIME),
        ("fingerprint", pa.string()),
        ("details", pa.string()),
        ("restored_from", pa.string()),
    ]
)
BARRIERS = pa.schema(
    [
        ("attempt", pa.int32()),
        ("checkpoint_id", pa.int64()),
        ("base_id", pa.int64()),
        ("completed_id", pa.int64()),
        ("kind", pa.string()),
        ("request", pa.string()),
        ("stage", pa.string()),
        ("input", pa.string()),
        ("triggered_at", _TIME),
        ("exhausted", pa.list_(pa.struct([("stage", pa.string()), ("input", pa.string())]))),
    ]
)
OVERTAKES = pa.schema(
    [
        ("attempt", pa.int32()),
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("base_id", pa.int64()),
        ("completed_id", pa.int64()),
        ("triggered_at", _TIME),
        ("at", _TIME),
    ]
)
_IN_FLIGHT = pa.struct(
    [
        ("input", pa.string()),
        ("attempt", pa.int32()),
        ("position", pa.string()),
        ("epoch", pa.int64()),
        ("from_seq", pa.int64()),
        ("files", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_BACKLOG = pa.struct(
    [
        ("input", pa.string()),
        ("commits", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("age_ms", pa.int64()),
    ]
)
_SET = pa.struct([("set_id", pa.int64()), ("rows", pa.int64()), ("digest", pa.int64())])
_STAGE = pa.struct(
    [
        ("stage", pa.string()),
        ("checkpoint_id", pa.int64()),
        ("batch_id", pa.int64()),
        ("lineage", pa.list_(pa.int64())),
        ("positions", pa.map_(pa.string(), pa.string())),
        ("in_flight", pa.list_(_IN_FLIGHT)),
        ("rows_changed", pa.int64()),
        ("bytes_changed", pa.int64()),
        ("keys_total", pa.int64()),
        ("bytes_total", pa.int64()),
        ("rows_out", pa.int64()),
        ("held_rows", pa.int64()),
        ("held_bytes", pa.int64()),
        ("start_delay_ms", pa.int64()),
        ("alignment_ms", pa.int64()),
        ("sync_ms", pa.int64()),
        ("async_ms", pa.int64()),
        ("commit_ms", pa.int64()),
        ("busy", pa.float64()),
        ("backpressured", pa.float64()),
        ("backlogs", pa.list_(_BACKLOG)),
        ("sets", pa.list_(_SET)),
        ("watermark", _TIME),
        ("late_rows", pa.int64()),
        ("event_time", pa.string()),
        ("expired_upto", _TIME),
        ("late_emitted", pa.int64()),
        ("early_rows", pa.int64()),
    ]
)
# A row of `checkpoints` that is no fact of a checkpoint: the answer to a request that got none.
REFUSED = "REFUSED"
CHECKPOINTS = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("type", pa.string()),
        ("request", pa.string()),
        ("reason", pa.string()),
        ("cause", pa.string()),
        ("attempt", pa.int32()),
        ("incarnation", pa.int64()),
        ("base_id", pa.int64()),
        ("derived_from", pa.int64()),
        ("triggered_at", _TIME),
        ("ended_at", _TIME),
        ("duration_ms", pa.int64()),
        ("stages", pa.list_(_STAGE)),
        ("stage", pa.string()),
        ("set_id", pa.int64()),
        ("replaces", pa.list_(pa.int64())),
        ("set_rows", pa.int64()),
        ("set_digest", pa.int64()),
        ("fingerprint", pa.string()),
        ("versions", pa.map_(pa.string(), pa.string())),
    ]
)
