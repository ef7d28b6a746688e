"""Tables of the flights job, and its stages run in memory."""

import datetime as dt
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import flights_data
import flights_stages
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from absflow.columnar.event_time import RootTime, TimeReport, watermark_payload
from absflow.columnar.packing import Packer
from absflow.columnar.pages import Page, PageKind, channel_schema, decode, page_batch, pages_of
from absflow.columnar.pages import unpack as unpack_pages
from absflow.columnar.piece_files import INLINE
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_key_group, run_range
from absflow.columnar.state import state_schema
from absflow.columnar.stored import KeyGroupState, in_range, load
from absflow.columnar.timers import timer_fields
from absflow.protocol import alignment
from absflow.protocol.watermarks import WatermarkStatus

NOON = dt.datetime(2013, 7, 1, 12, tzinfo=dt.timezone.utc)
TYPES = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def ddl(text: str) -> pa.Schema:
    """The Arrow schema of Spark DDL, as far as the job uses it; Spark's own parser needs a JVM."""
    words = iter(re.findall(r"\w+|[<>,:]", text))

    def columns() -> list[pa.Field]:
        fields = []
        for name in words:
            word = next(words)
            type_, end = one(word if word != ":" else next(words))
            fields.append(pa.field(name, type_))
            if end != ",":
                break
        return fields

    def one(word: str) -> tuple[pa.DataType, str | None]:
        if word not in ("array", "struct"):
            return TYPES[word], next(words, None)
        assert next(words) == "<"
        type_ = pa.struct(columns()) if word == "struct" else pa.list_(one(next(words))[0])
        return type_, next(words, None)

    return pa.schema(columns())


LEGS, WEATHER = ddl(flights_data.LEGS), ddl(flights_data.WEATHER)
ROTATED = ddl(flights_stages.AIRCRAFT_OUTPUT)
DEPARTURES = ddl("leg_id long, origin string, dep_delay int, at timestamp, hour timestamp")


@dataclass
class Stage:
    """A stage in memory: what Spark does around :func:`run_key_group`, without Spark."""

    spec: StageSpec
    stored: dict[int, KeyGroupState] = field(default_factory=dict)
    batch_id: int = 0

    def run(self, **inputs: list[pa.Table]) -> pa.Table:
        """One micro-batch: for each input the rows of each of its partitions."""
        pages = []
        for name, parts in inputs.items():
            given = self.spec.input(name)
            packer = Packer(
                given.name, given.schema, tuple(self.spec.keys.names), self.key_groups, given.root
            )
            for partition, rows in enumerate(parts):
                for batch in packer.pack(rows.to_batches(), partition):
                    pages += pages_of(batch)
        batch = Batch(self.batch_id, 0, alignment.start([i.name for i in self.spec.inputs]))
        pages.sort(key=lambda page: page.key_group)
        emitted = []
        for group, mine in itertools.groupby(pages, key=lambda page: page.key_group):
            emitted += self._emitted(group, batch, list(mine))
        rows = unpack_pages([page_batch(emitted)], self.spec.output, self.batch_id)
        self.batch_id += 1
        return pa.Table.from_batches(rows, channel_schema(self.spec.output))

    def _emitted(self, group: int, batch: Batch, pages: list[Page]) -> Iterator[Page]:
        before = self.stored.get(group, KeyGroupState())
        self.stored[group] = yield from run_key_group(self.spec, group, batch, pages, before)

    @property
    def key_groups(self) -> int:
        return self.spec.key_groups

    def state(self) -> pa.Table:
        schema = state_schema(self.spec.keys, self.spec.state)
        stored = [kept for kept in self.stored.values() if kept.state]
        tables = [pa.Table.from_batches([decode(kept.state, schema, "state")]) for kept in stored]
        names = [*self.spec.keys.names, *self.spec.state.names]
        return pa.concat_tables([schema.empty_table(), *tables]).select(names)


def aircraft(key_groups: int = 128) -> Stage:
    legs = InputSpec("legs", LEGS, root=True, bounded=True)
    return Stage(
        StageSpec(
            name="aircraft",
            inputs=(legs,),
            keys=ddl("tailnum string"),
            state=ddl(flights_stages.AIRCRAFT_STATE),
            output=ROTATED,
            process={"legs": flights_stages.rotate},
            key_groups=key_groups,
        )
    )


def airports(key_groups: int = 128, root: bool = False) -> Stage:
    """The second stage; ``root``: its legs do not come through a channel."""
    return Stage(
        StageSpec(
            name="airports",
            inputs=(
                InputSpec("aircraft", ROTATED, root),
                InputSpec("weather", WEATHER, root=True, bounded=True),
            ),
            keys=ddl("origin string"),
            state=ddl(flights_stages.AIRPORTS_STATE),
            output=ddl(flights_stages.AIRPORTS_OUTPUT),
            process={
                "aircraft": flights_stages.legs_at_airport,
                "weather": flights_stages.weather_at_airport,
            },
            key_groups=key_groups,
        )
    )


class Hourly:
    """Stage ``hourly`` in memory: all key groups as one range, with event time."""

    def __init__(self, key_groups: int = 16) -> None:
        time = RootTime("at", 6 * 3_600_000_000, ("origin",))
        given = InputSpec("departures", DEPARTURES, True, True, event_time=time, timed=True)
        self.spec = StageSpec(
            name="hourly",
            inputs=(given,),
            keys=ddl("origin string, hour timestamp"),
            state=pa.schema([*ddl(flights_stages.HOURLY_STATE), *timer_fields()]),
            output=ddl(flights_stages.HOURLY_OUTPUT),
            process={"departures": flights_stages.count_departures},
            key_groups=key_groups,
            on_timer=flights_stages.end_hour,
        )
        self.time, self.stored, self.batch_id = self.spec.begin_time(), b"", 0

    def run(self, rows: pa.Table, ended: bool = False) -> tuple[pa.Table, pa.Table]:
        """One micro-batch, at a barrier if the source has ended: the hours, and what was late."""
        (given,) = self.spec.inputs
        keys, groups = tuple(self.spec.keys.names), self.spec.key_groups
        packer = Packer(
            given.name, given.schema, keys, groups, True, event_time=given.event_time, timed=True
        )
        pages = [p for made in packer.pack(rows.to_batches(), 0, self.time) for p in pages_of(made)]
        if ended:
            said = watermark_payload(None, WatermarkStatus.ENDED)
            pages += [
                Page(group, PageKind.BARRIER, given.name, checkpoint_id=1, payload=said)
                for group in range(groups)
            ]
        batch = Batch(self.batch_id, 0, alignment.start([given.name]), self.time)
        made = list(self._emitted(batch, pages))
        for page in made:
            if page.kind is PageKind.REPORT and b'"alignment"' not in page.payload:
                self.time = TimeReport.from_payload(page.payload.decode()).time
        self.batch_id += 1
        return (
            _decoded(made, PageKind.DATA, self.spec.output),
            _decoded(pages, PageKind.LATE, given.schema),
        )

    def _emitted(self, batch: Batch, pages: list[Page]) -> Iterator[Page]:
        self.stored = yield from run_range(self.spec, batch, pages, self.stored)

    def state(self) -> pa.Table:
        kept = in_range(self.stored, "") if self.stored else {}
        tables = [
            load(k, self.spec.keys, self.spec.state, INLINE, "").flat().table for k in kept.values()
        ]
        names = self.spec.output.names
        schema = self.spec.output
        live = [t.filter(pc.invert(t["_deleted"])).select(names).cast(schema) for t in tables]
        return pa.concat_tables([schema.empty_table(), *live])


def _decoded(pages: list[Page], kind: PageKind, schema: pa.Schema) -> pa.Table:
    tables = [decode(page.payload, schema, "") for page in pages if page.kind is kind]
    return pa.Table.from_batches(tables, schema)


def departures(rows: pa.Table) -> pa.Table:
    """The legs of a file that left, as the job selects them."""
    legs = rows.filter(rows["dep_delay"].is_valid())
    late = pa.array(legs["dep_delay"].to_numpy().astype("timedelta64[m]").astype("timedelta64[us]"))
    at = pc.add(legs["sched"], late)
    hour = pc.floor_temporal(at, unit="hour")
    return pa.table(
        [legs["leg_id"], legs["origin"], legs["dep_delay"], at, hour], schema=DEPARTURES
    )


def lists(state: pa.Table, name: str) -> pd.DataFrame:
    """One row per element of a list column in the state of ``airports``."""
    rows = [
        {"origin": row["origin"], **element}
        for row in state.select(["origin", name]).to_pylist()
        for element in row[name]
    ]
    names = [field.name for field in state.schema.field(name).type.value_type]
    return pd.DataFrame(rows, columns=["origin", *names])


def read(folder: Path) -> list[pa.Table]:
    return [pq.read_table(path) for path in flights_data.files(folder)]


def weather(hour: dt.datetime = NOON, **values) -> dict:
    """A fine hour, if nothing else is said."""
    usual = {"origin": "EWR", "temp": 60.0, "precip": 0.0, "visib": 10.0, "wind_speed": 5.0}
    return {"hour": hour, **usual, **values}


def cut(rows: pa.Table, parts: int, random: np.random.Generator) -> list[pa.Table]:
    """``rows`` in so many pieces of random sizes, some of them empty or a single row."""
    edges = np.sort(random.integers(0, rows.num_rows + 1, parts - 1))
    edges[1::5] = edges[0::5][: len(edges[1::5])]
    edges = np.sort(np.concatenate([edges, edges[::7] + 1]).clip(max=rows.num_rows))
    return [rows.slice(a, b - a) for a, b in itertools.pairwise([0, *edges, rows.num_rows])]


def feed(stage: Stage, legs: list[pa.Table], hours: list[pa.Table], turns: str) -> tuple:
    """The output and the last state, in an order that the job does not promise."""
    given = {"l": iter(legs), "w": iter(hours)}
    output = []
    for turn in turns:
        if turn == "b":
            output.append(stage.run(aircraft=[next(given["l"])], weather=[next(given["w"])]))
        else:
            name = "aircraft" if turn == "l" else "weather"
            output.append(stage.run(**{name: [next(given[turn])]}))
    assert [next(rows, None) for rows in given.values()] == [None, None]
    rows = pa.concat_tables(output).select(stage.spec.output.names).sort_by("leg_id")
    return rows, stage.state().sort_by("origin")
