"""Checks the option ``valueSchema``, columns as DDL, before Spark parses it.

Spark parses the text in its JVM and reports a mistake with a JVM stack trace, or only when tasks run. So
types that cannot be decoded are found here, and the error names the column and its type. Spark then gets the
text unchanged. A column is ``name type [COMMENT 'text']``, with an optional colon after the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from escrowmq.replication.errors import ConfigError

#: Types without parameters, as Spark's DDL names them.
_PLAIN = frozenset(
    (
        "BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT",
        "REAL", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "STRING", "BINARY",
    )
)  # fmt: skip
_DECIMAL = frozenset(("DECIMAL", "DEC", "NUMERIC"))
#: Maximum number of digits of Spark's decimals.
_DIGITS_MAX = 38
#: Maximum nesting of types; a deeper schema is certainly a mistake.
_DEPTH_MAX = 50
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")


class _Token(NamedTuple):
    """``kind``: "name" (in backticks), "word", "text" (in quotation marks), or the mark itself."""

    kind: str
    text: str


def check_value_schema(schema: str, value_format: str) -> None:
    """Raises ConfigError for a column that cannot be decoded; the error names the column and its type."""
    reader = _Reader(schema, value_format)
    reader.columns("", until="")


class _Reader:
    """A recursive-descent parser that reads the text once, from left to right."""

    def __init__(self, schema: str, value_format: str) -> None:
        self._schema, self._format = schema, value_format
        self._tokens = list(_tokens(schema))
        self._at = 0

    def columns(self, inside: str, until: str, depth: int = 0) -> None:
        """Read columns separated by commas up to the mark ``until`` ("": the end of the text).

        ``inside``: the column that contains them.
        """
        names: set[str] = set()
        while True:
            token = self._next()
            if token.kind not in ("name", "word"):
                self._fail(f"{inside or 'it'} needs the name of a column, not {token.text or 'its end'!r}")
            column = f"{inside}.{token.text}" if inside else token.text
            if token.text in names:
                self._fail(f"column {column!r} occurs twice")
            names.add(token.text)
            self._skip(":")
            self._type(column, depth)
            if self._skip("NOT"):
                self._fail(f"column {column!r} is NOT NULL; leave that out, because a value may lack it")
            if self._skip("COMMENT") and self._next().kind != "text":
                self._fail(f"the comment of column {column!r} must be text in quotation marks")
            token = self._next()
            if token.kind == until:
                return
            if token.kind != ",":
                self._fail(f"unexpected after column {column!r}: {token.text or 'its end'!r}")

    def _type(self, column: str, depth: int) -> None:
        token = self._next()
        kind = token.text.upper()
        if depth > _DEPTH_MAX:
            self._fail(f"column {column!r} is nested too deeply")
        if token.kind != "word":
            self._fail(f"column {column!r} has no type")
        if kind == "STRUCT":
            self._expect("<", column)
            self.columns(column, ">", depth + 1)
        elif kind == "ARRAY":
            self._expect("<", column)
            self._type(f"{column}[]", depth + 1)
            self._expect(">", column)
        elif kind == "MAP":
            self._map(column, depth)
        elif kind in _DECIMAL:
            self._decimal(column)
        elif kind == "STRING" and self._skip("COLLATE"):
            self._next()  # the collation: it changes how Spark compares, not the text itself
        elif kind == "BINARY" and self._format == "json":
            self._fail(f"column {column!r} is BINARY; read it as STRING and use unbase64 or unhex")
        elif kind not in _PLAIN:
            hint = "; read it as STRING" if kind in ("CHAR", "CHARACTER", "VARCHAR") else ""
            self._fail(
                f"column {column!r} is of type {token.text}, which cannot be decoded{hint}; supported types "
                f"are {', '.join(sorted(_PLAIN))}, DECIMAL(p, s), ARRAY<...>, STRUCT<...> and, with "
                "valueFormat=arrow, MAP<..., ...>"
            )

    def _map(self, column: str, depth: int) -> None:
        if self._format != "arrow":
            self._fail(f"column {column!r} is a MAP; valueFormat={self._format} can read a STRUCT instead")
        self._expect("<", column)
        self._type(f"{column} (keys)", depth + 1)
        self._expect(",", column)
        self._type(f"{column} (values)", depth + 1)
        self._expect(">", column)

    def _decimal(self, column: str) -> None:
        if not self._skip("("):
            return
        digits, scale = self._number(column), 0
        if self._skip(","):
            scale = self._number(column)
        self._expect(")", column)
        if not (1 <= digits <= _DIGITS_MAX and scale <= digits):
            self._fail(
                f"column {column!r}: DECIMAL has 1 to {_DIGITS_MAX} digits, and a scale not above them"
            )

    def _number(self, column: str) -> int:
        token = self._next()
        if token.kind != "word" or not token.text.isdecimal() or len(token.text) > 3:
            self._fail(f"column {column!r}: DECIMAL(p, s) needs two numbers, not {token.text!r}")
        return int(token.text)

    def _next(self) -> _Token:
        if self._at == len(self._tokens):
            return _Token("", "")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, text: str) -> bool:
        """Consume this mark or word if it comes next."""
        found = self._at < len(self._tokens) and self._tokens[self._at]
        if found and found.kind != "name" and found.text.upper() == text:
            self._at += 1
            return True
        return False

    def _expect(self, sign: str, column: str) -> None:
        token = self._next()
        if token.kind != sign:
            self._fail(f"the type of column {column!r} needs {sign!r}, not {token.text or 'its end'!r}")

    def _fail(self, problem: str) -> NoReturn:
        raise ConfigError(f"option 'valueSchema': {problem}: {self._schema!r}")


def _tokens(schema: str) -> Iterator[_Token]:
    at, end = 0, len(schema.rstrip())
    while at < end:
        found = _TOKEN.match(schema, at, end)
        if found is None:
            raise ConfigError(
                f"option 'valueSchema' cannot be parsed at {schema[at : at + 20]!r}; write columns as in: "
                f"id BIGINT, price DOUBLE (names with special characters in backticks): {schema!r}"
            )
        name, word, text, sign = found.groups()
        if name is not None:
            yield _Token("name", name[1:-1].replace("``", "`"))
        elif word is not None:
            yield _Token("word", word)
        else:
            yield _Token("text", text) if text is not None else _Token(sign, sign)
        at = found.end()
