"""The option ``valueSchema``: what Spark's DDL can say and we can decode, and what is told about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.decode.value_schema import check_value_schema

GOOD = [
    "id BIGINT, price DOUBLE",
    "id:bigint,price : Double",
    "`a column` STRING COMMENT 'it\\'s', `b``c` INT COMMENT \"so, or <so>\"",
    "at TIMESTAMP, day DATE, local timestamp_ntz, n DECIMAL, m DECIMAL(10), o DEC(38, 10), p NUMERIC(3,0)",
    "tags ARRAY<STRING>, rows ARRAY<STRUCT<a: INT, b: STRUCT<c:BOOLEAN,d:ARRAY<ARRAY<FLOAT>>>>>",
    "array INT, struct STRING COLLATE UNICODE",
    "\n  id\tLONG ,\n  s SHORT\n",
]


@pytest.mark.parametrize("schema", GOOD)
@pytest.mark.parametrize("format", ["json", "msgpack", "arrow"])
def test_what_can_be_decoded_passes(schema: str, format: str) -> None:
    check_value_schema(schema, format)


def test_what_only_some_formats_hold() -> None:
    check_value_schema("raw BINARY", "msgpack")
    check_value_schema("raw BINARY, m MAP<STRING, STRUCT<a:INT>>", "arrow")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id FOO", "column 'id' is of type FOO"),
        ("id BIGINT, s STRUCT<a:INT, b:MONEY>", r"column 's\.b' is of type MONEY"),
        ("l ARRAY<VARIANT>", r"column 'l\[\]' is of type VARIANT"),
        ("i INTERVAL DAY TO SECOND", "column 'i' is of type INTERVAL"),
        ("c VARCHAR(3)", "column 'c' is of type VARCHAR, .*read it as STRING"),
        ("x VOID", "column 'x' is of type VOID"),
        ("raw BINARY", "column 'raw' is BINARY; read it as STRING"),
        ("s STRUCT<m: MAP<STRING, INT>>", r"column 's\.m' is a MAP"),
        ("a INT NOT NULL", "column 'a' is NOT NULL"),
        ("a INT, b INT, a STRING", "column 'a' occurs twice"),
        ("s STRUCT<a:INT,a:INT>", r"column 's\.a' occurs twice"),
        ("n DECIMAL(50, 2)", "column 'n': DECIMAL has 1 to 38 digits"),
        ("n DECIMAL(5, 6)", "column 'n': DECIMAL"),
        ("n DECIMAL(x)", "column 'n': DECIMAL.*not 'x'"),
        ("a INT,", "needs the name of a column"),
        ("a", "column 'a' is of type|column 'a' has no type"),
        ("a INT b INT", "unexpected after column 'a': 'b'"),
        ("l ARRAY<INT", r"column 'l' needs '>'"),
        ("l ARRAY", r"column 'l' needs '<'"),
        ("a-b INT", "cannot be parsed at '-b INT'"),
        ("a INT COMMENT none", "the comment of column 'a'"),
        ("a " + 60 * "ARRAY<" + "INT" + 60 * ">", "too deep"),
    ],
)
def test_what_is_wrong_is_named_with_its_column(schema: str, said: str) -> None:
    """Spark told it with a stack of its JVM, or not before the tasks ran."""
    with pytest.raises(ConfigError, match=said) as caught:
        check_value_schema(schema, "json")
    assert "option 'valueSchema'" in str(caught.value)


@given(st.text(max_size=40) | st.text("aINTSRUC<>(),:` '", max_size=60))
def test_any_text_passes_or_is_refused_by_name(schema: str) -> None:
    try:
        check_value_schema(schema, "json")
    except ConfigError as error:
        assert "valueSchema" in str(error)
