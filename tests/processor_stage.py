"""A stage of a StatefulProcessor, and processors that say what they find."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from one_key_group import OneKeyGroup
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    Row,
    StringType,
    StructType,
    TimestampType,
)

from absflow.spark.worker.processor import ProcessorStage
from absflow.spark.worker.processor_init import asked_variables

OUTPUT = pa.schema([("k", pa.string()), ("what", pa.string())])
TTL_MS = 100


def columns(**types: DataType) -> StructType:
    made = StructType()
    for name, type_ in types.items():
        made = made.add(name, type_)
    return made


INT, TEXT = columns(x=IntegerType()), columns(s=StringType())


def no_ddl(what: str, schema: str | StructType) -> StructType:
    assert isinstance(schema, StructType), f"{what}: DDL needs a JVM"
    return schema


class Stage(OneKeyGroup):
    """A stage of a processor that emits Rows of key and text."""

    def __init__(
        self, processor: StatefulProcessor, mode: str = "none", *, in_pandas: bool = False
    ) -> None:
        variables = asked_variables("s", processor, mode, no_ddl)
        made = ProcessorStage("s", processor, variables, mode, "UTC", in_pandas=in_pandas)
        on_rows, on_timer = made.functions()
        state = to_arrow_schema(
            StructType([variable.field for variable in variables.values()]), timezone="UTC"
        )
        timed = mode == "eventtime"
        super().__init__(on_rows, on_timer, state=state, output=OUTPUT, timed=timed)
        self.made = made

    def texts(self, *rows: tuple[str, int, int], now_ms: int = 0) -> list[str]:
        """What the processor says in a micro-batch."""
        return [text for _, text in self.batch(*rows, now_ms=now_ms)]


class Says(StatefulProcessor):
    """Emits what a function returns for each call for rows."""

    def handleInputRows(self, key, rows, timerValues):
        values = [row.v for row in rows]
        yield Row(k=key[0], what=repr(self.says(key[0], values, timerValues)))


class Wide(Says):
    """Keeps a row of many types, and says what it finds."""

    schema = columns(
        d=DoubleType(),
        s=StringType(),
        n=LongType(),
        t=TimestampType(),
        a=ArrayType(IntegerType()),
        m=MapType(StringType(), IntegerType()),
        r=StructType().add("x", IntegerType()),
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.row = row

    def init(self, handle):
        self.value = handle.getValueState("value", self.schema)

    def says(self, _key, _values, _times):
        found = self.value.get()
        self.value.update(self.row)
        return found
