"""Columns as Spark's DDL has them, read where no JVM runs.

Where one runs, Spark's own parser reads them (:mod:`absflow.declared`); a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from pyspark.sql import types as t

__all__ = ["parsed"]

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))", re.ASCII)
_PLAIN: Mapping[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
}
_DECIMALS = {"decimal", "dec", "numeric"}
_Read = TypeVar("_Read")


def parsed(text: str) -> t.DataType:
    """The columns, or the single type, that a text declares.

    Raises:
        ValueError: it is not Spark's DDL, or has a type that is not read here.

    >>> parsed("user string, visits long").simpleString()
    'struct<user:string,visits:bigint>'
    """
    reader = _Reader(text)
    if reader.empty:
        return t.StructType()
    if reader.alone():
        return reader.whole(reader.type_)
    return reader.whole(lambda: t.StructType(reader.several(reader.column)))


class _Reader:
    """The tokens of a text, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # The kind of each token ("name" in backticks, "word", "text", "sign"), and what it says.
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"{text[place:].strip()[:20]!r} is no part of it")
            name, word, quoted, sign = found.groups()
            if name is not None:
                self._tokens.append(("name", name.replace("``", "`")))
            elif word is not None:
                self._tokens.append(("word", word))
            elif quoted is not None:
                self._tokens.append(("text", quoted))
            else:
                self._tokens.append(("sign", sign))
            place = found.end()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self._tokens

    def whole(self, read: Callable[[], _Read]) -> _Read:
        """What is read, if nothing stands behind it."""
        made = read()
        if self._at < len(self._tokens):
            raise self._unexpected("the end")
        return made

    def alone(self) -> bool:
        """Whether it is a type, and no column with one."""
        kind, _ = self._peek()
        if kind != "word":
            return False
        behind = self._tokens[1] if len(self._tokens) > 1 else ("", "")
        return behind == ("", "") or (behind[0] == "sign" and behind[1] in "<(")

    def several(self, read: Callable[[], _Read]) -> list[_Read]:
        """One or more, with commas between."""
        made = [read()]
        while self._takes(","):
            made.append(read())
        return made

    def column(self) -> t.StructField:
        """A name, and its type."""
        kind, name = self._next()
        if kind not in ("name", "word"):
            raise self._unexpected("the name of a column", back=1)
        self._takes(":")
        type_, nullable, metadata = self.type_(), True, {}
        if self._takes_word("not"):
            if not self._takes_word("null"):
                raise self._unexpected("NULL")
            nullable = False
        if self._takes_word("comment"):
            kind, said = self._next()
            if kind != "text":
                raise self._unexpected("a text in quotes", back=1)
            metadata = {"comment": said[1:-1]}
        return t.StructField(name, type_, nullable, metadata)

    def type_(self) -> t.DataType:
        """A type."""
        kind, word = self._next()
        name = word.lower()
        if kind == "word" and name in _PLAIN:
            return _PLAIN[name]()
        if kind == "word" and name in _DECIMALS:
            return self._decimal()
        if kind == "word" and name == "array":
            return self._in_angles(lambda: t.ArrayType(self.type_()))
        if kind == "word" and name == "map":
            return self._in_angles(self._map)
        if kind == "word" and name == "struct":
            return self._in_angles(lambda: t.StructType(self.several(self.column)))
        raise self._unexpected("a type", back=1)

    def _decimal(self) -> t.DecimalType:
        numbers = [10, 0]
        if self._takes("("):
            given = self.several(self._number)
            numbers[: len(given)] = given
            self._expects(")")
        return t.DecimalType(numbers[0], numbers[1])

    def _number(self) -> int:
        _, word = self._next()
        if not word.isdigit():
            raise self._unexpected("a number", back=1)
        return int(word)

    def _map(self) -> t.MapType:
        key = self.type_()
        self._expects(",")
        return t.MapType(key, self.type_())

    def _in_angles(self, read: Callable[[], _Read]) -> _Read:
        self._expects("<")
        made = read()
        self._expects(">")
        return made

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        self._at += 1
        return found

    def _takes(self, sign: str) -> bool:
        taken = self._peek() == ("sign", sign)
        self._at += taken
        return taken

    def _takes_word(self, word: str) -> bool:
        kind, seen = self._peek()
        taken = kind == "word" and seen.lower() == word
        self._at += taken
        return taken

    def _expects(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unexpected(repr(sign))

    def _unexpected(self, expected: str, back: int = 0) -> ValueError:
        at = self._at - back
        seen = repr(self._tokens[at][1]) if at < len(self._tokens) else "the end"
        return ValueError(f"found {seen} where {expected} is expected")
