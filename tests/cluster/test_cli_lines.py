"""The lines of the command line: what ``consume --format json`` prints, ``produce --json`` takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.cluster.cli.consuming import _line
from escrowmq.cluster.cli.options import Format
from escrowmq.cluster.cli.producing import _Parser
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import ConsumerRecord, Message

PARSE = _Parser("copy", None, None, {}, None, True)


@given(
    key=st.none() | st.binary(),
    value=st.binary() | st.text().map(str.encode),
    headers=st.dictionaries(st.text(), st.binary()),
    tx_id=st.none() | st.text(min_size=1),
)
def test_a_record_that_was_printed_is_sent_as_it_was(
    key: bytes | None, value: bytes, headers: dict[str, bytes], tx_id: str | None
) -> None:
    record = ConsumerRecord("orders", 3, 42, 1_700_000_000_000, key, value, headers, tx_id)
    assert PARSE(1, _line(record, Format.json).encode()) == Message("copy", value, key, headers, 3)


@pytest.mark.parametrize(
    "entry",
    [
        {"value": "v", "topic": "elsewhere"},  # a message's topic is the command's: nothing is passed over
        {"value": {"base64": "no!"}},
        {"value": {"base64": "AA==", "more": 1}},
        {"value": None, "offset": 1},
        {"value": "\ud800"},
        {"value": "v", "headers": ["h"]},
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_number(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match="line 7"):
        PARSE(7, json.dumps(entry).encode())
