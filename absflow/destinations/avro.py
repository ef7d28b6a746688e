"""Rows as Avro in the wire format of schema registries: a zero, the schema's id, and the value.

The schema follows from the types of the columns. Each may be null, and null is its default, so a
column that comes or goes later is a change that readers of either schema can take.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from fastavro import parse_schema, schemaless_writer

from absflow.errors import GraphError, StorageError

__all__ = ["Registry", "avro_schema"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEAD = struct.Struct(">bI")
_NOT_FOUND = 404
_NOT_ALLOWED = (401, 403)
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
)


@dataclass(frozen=True, slots=True)
class Registry:
    """A subject of a schema registry, with Confluent's interface.

    Attributes:
        url: of the registry.
        conf: more of its client's options, whose values may be of any kind, so it has no hash;
            there may be a password among them.
        subject: the subject, by convention ``<topic>-value``.
    """

    url: str
    conf: Mapping[str, Any] = dataclasses.field(repr=False, hash=False)
    subject: str

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Avro has no name or type for; errors as of :func:`avro_schema`."""
        avro_schema(self.subject, schema)

    def register(self, schema: pa.Schema) -> int:
        """Have the registry know the schema of rows; its id.

        Raises:
            GraphError: it takes no such schema for the subject.
            StorageError: it does not answer, or not to this client.
        """
        text = json.dumps(avro_schema(self.subject, schema))
        return _schema_id(self, text)

    def values(self, rows: pa.RecordBatch) -> list[bytes]:
        """Each row as a value.

        Raises:
            GraphError, StorageError: as of :meth:`register`.
        """
        text = json.dumps(avro_schema(self.subject, rows.schema))
        head, parsed = _HEAD.pack(0, _schema_id(self, text)), _parsed(text)
        values = []
        for row in rows.cast(_stored(rows.schema)).to_pylist(maps_as_pydicts="strict"):
            value = io.BytesIO()
            value.write(head)
            schemaless_writer(value, parsed, row)
            values.append(value.getvalue())
        return values

    def __str__(self) -> str:
        return f"subject {self.subject!r} of the schema registry {_shown(self.url)}"


def avro_schema(subject: str, schema: pa.Schema) -> dict[str, Any]:
    """The schema of a record with these columns, each of which may be null.

    Raises:
        GraphError: Avro has no such name or type; naming the column.
    """
    name = re.sub(r"\W", "_", subject.removesuffix("-value"), flags=re.ASCII)
    return _record(name if _NAME.fullmatch(name) else f"_{name}", schema, "")


def _record(name: str, fields: Any, inside: str) -> dict[str, Any]:
    made = []
    for field in fields:
        path = f"{inside}{field.name}"
        if not _NAME.fullmatch(field.name):
            raise GraphError(
                f"column {path!r}: Avro's names have letters without accents, digits and _; "
                "rename it in the stage's output"
            )
        kind = ["null", _type(field.type, f"{name}_{field.name}", path)]
        made.append({"name": field.name, "type": kind, "default": None})
    return {"type": "record", "name": name, "fields": made}


def _type(of: pa.DataType, name: str, path: str) -> Any:
    for fits, plain in _PLAIN:
        if fits(of):
            return plain
    if pa.types.is_timestamp(of):
        local = "" if of.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if pa.types.is_decimal(of):
        digits = {"precision": of.precision, "scale": of.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_list(of):
        return {"type": "array", "items": ["null", _type(of.value_type, name, path)]}
    if pa.types.is_map(of) and pa.types.is_string(of.key_type):
        return {"type": "map", "values": ["null", _type(of.item_type, name, path)]}
    if pa.types.is_struct(of):
        return _record(name, of, f"{path}.")
    raise GraphError(f"column {path!r}: Avro has no type for {of}; make it text or bytes")


def _stored(schema: pa.Schema) -> pa.Schema:
    """With times as the numbers that Avro has for them, which Python's own may not reach."""
    kinds = {pa.types.is_timestamp: pa.int64(), pa.types.is_date: pa.int32()}
    fields = []
    for field in schema:
        number = next((to for fits, to in kinds.items() if fits(field.type)), None)
        fields.append(field if number is None else field.with_type(number))
    return pa.schema(fields)


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    return parse_schema(json.loads(text))


@lru_cache(maxsize=64)
def _schema_id(registry: Registry, text: str) -> int:
    """Asked once in each process. Who may only read finds what somebody else has registered."""
    try:
        client = SchemaRegistryClient({"url": registry.url, **registry.conf})
    except (TypeError, ValueError) as error:
        raise GraphError(f"{registry}: its client does not take the options: {error}") from error
    schema = Schema(text, "AVRO")
    try:
        try:
            return _found(client.lookup_schema(registry.subject, schema).schema_id)
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise
        return _found(client.register_schema(registry.subject, schema))
    except SchemaRegistryError as error:
        if error.http_status_code in _NOT_ALLOWED:
            raise StorageError(
                f"{registry} does not let this client in: {error.error_message}; credentials go "
                "into registry_conf, as basic.auth.user.info"
            ) from error
        raise GraphError(
            f"{registry} does not take the schema of the stage's output: {error.error_message}"
        ) from error
    except Exception as error:  # of its HTTP client, whichever that is
        raise StorageError(f"{registry} does not answer: {error}") from error


def _found(number: int | None) -> int:
    assert number is not None
    return number


def _shown(url: str) -> str:
    """Without what stands before an @, which may be a password."""
    return re.sub(r"//[^/@]*@", "//", url)
