"""What a source is made of, read from the analysed plan of its streaming DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from absflow.errors import GraphError

__all__ = ["SourceDescription", "check_source", "describe_source", "paths_read"]

_V1 = "org.apache.spark.sql.execution.streaming.runtime.StreamingRelation"
_V2 = "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2"
_REGISTER = "org.apache.spark.sql.sources.DataSourceRegister"
# Logical operators that keep state when they stand in a stream.
_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """A source as it was given to ``spark.readStream``.

    Attributes:
        format: its short name ("kafka", "delta", "parquet", "rate", ...), whatever name of it the
            author used; a Python data source's own name.
        is_files: whether it is Spark's file source, of any format.
        options: by name in lower case, for Spark ignores case. They may hold secrets:
            write nothing of them anywhere but what is known to hold none.
        schema: the columns that the source itself gives, before what the author made of them.
    """

    format: str
    is_files: bool
    options: Mapping[str, str] = field(repr=False)
    schema: StructType


def check_source(name: str, frame: DataFrame) -> None:
    """Refuse a source that is not exactly one stream, without state of its own.

    Raises:
        GraphError: if the frame is a batch frame, or reads several streams: a barrier would cut
            them at one point only by luck, and its position would not be known. Or if it keeps
            state in Spark, which would be in no checkpoint, or has a watermark, which no stage
            would see.
    """
    nodes = [n for n in _nodes(frame._jdf.queryExecution().analyzed()) if n.isStreaming()]
    for node in nodes:
        if node.nodeName() in _STATEFUL:
            raise GraphError(
                f"source {name!r} has a stateful operator ({node.nodeName()}), whose state no "
                "checkpoint would hold; do this in a stage"
            )
        if node.nodeName() == "EventTimeWatermark":
            raise GraphError(
                f"source {name!r} has a watermark of Spark's, which no stage would see; leave "
                "withWatermark out, and declare source(..., event_time=..., watermark=...)"
            )
    streams = sum(node.children().isEmpty() for node in nodes)
    if streams != 1:
        seen = "is not a streaming DataFrame" if not streams else f"reads {streams} streams"
        raise GraphError(
            f"source {name!r} {seen}; declare one source for each spark.readStream, and let a "
            "stage read several of them"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    """Every node of a logical plan."""
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def describe_source(frame: DataFrame) -> SourceDescription:
    """Describe the one stream that ``frame`` reads.

    Raises:
        GraphError: it does not read exactly one, or one that Spark made in a way unknown here.
    """
    leaves = [leaf for leaf in _leaves(frame) if leaf.isStreaming()]
    if len(leaves) != 1:
        raise GraphError(f"a source must read one stream; this one reads {len(leaves)}")
    leaf = leaves[0]
    schema = StructType.fromJson(json.loads(leaf.schema().json()))
    kind = str(leaf.getClass().getName())
    if kind == _V1:
        given = leaf.dataSource()
        name = _short_name(frame, given.providingInstance(), given.className())
        is_files = str(leaf.sourceName()).startswith("FileSource[")
        options = _options(given.options().iterator())
        return SourceDescription(name, is_files, options, schema)
    if kind == _V2:
        provider = leaf.source().getOrElse(None)
        name = _short_name(frame, provider, leaf.sourceName())
        pairs = leaf.extraOptions().asCaseSensitiveMap()
        options = {str(key).lower(): str(value) for key, value in pairs.items()}
        return SourceDescription(name, False, options, schema)
    raise GraphError(
        f"a source is read by {kind}, which this version of absflow does not know; expected a "
        f"frame made by spark.readStream ({_V1} or {_V2})"
    )


def paths_read(frames: Mapping[str, DataFrame]) -> dict[str, str]:
    """The paths that sources of files and Delta tables read, as they were given, by source."""
    given = {name: describe_source(frame) for name, frame in frames.items()}
    return {
        name: source.options["path"]
        for name, source in given.items()
        if "path" in source.options and (source.is_files or source.format == "delta")
    }


def _leaves(frame: DataFrame) -> Iterator[Any]:
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return (leaves.apply(number) for number in range(leaves.size()))


def _short_name(frame: DataFrame, provider: Any, given: Any) -> str:
    """The name that the provider registers; a Python data source has only what was ``given``."""
    gateway = frame.sparkSession.sparkContext._gateway
    return str(provider.shortName() if is_instance_of(gateway, provider, _REGISTER) else given)


def _options(pairs: Any) -> dict[str, str]:
    options = {}
    while pairs.hasNext():
        pair = pairs.next()
        options[str(pair._1()).lower()] = str(pair._2())
    return options
