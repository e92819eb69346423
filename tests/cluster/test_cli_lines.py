"""The lines of the command line: what ``consume --format json`` prints, ``produce --json`` takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.cluster.cli.consuming import _line, template
from escrowmq.cluster.cli.output import Format
from escrowmq.cluster.cli.producing import _Parser
from escrowmq.replication.errors import ConfigError, InvalidMessage
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


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%k %v\n", b"\xffk v\x00\n"),
        ("%t/%p@%o %T", b"orders/3@42 1700000000000"),
        (r"%h|%x|%K|%V", b"a=1,b=\xfe|tx-1|2|2"),
        (r"100%% \\n\t\r\0\x41ö", "100% \\n\t\r\0Aö".encode()),
        ("", b""),
    ],
)
def test_a_template_prints_the_parts_of_a_record_byte_for_byte(text: str, printed: bytes) -> None:
    record = ConsumerRecord(
        "orders", 3, 42, 1_700_000_000_000, b"\xffk", b"v\x00", {"a": b"1", "b": b"\xfe"}, "tx-1"
    )
    assert template(text)(record) == printed


def test_a_record_without_a_key_and_an_id_leaves_their_places_empty() -> None:
    record = ConsumerRecord("orders", 3, 42, 1_700_000_000_000, None, b"v", {}, None)
    assert template("[%k %K %h %x]")(record) == b"[ -1  ]"


@pytest.mark.parametrize("text", ["%z", "a%", r"a\q", "a\\", r"\x4"])
def test_a_letter_that_stands_for_nothing_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"-f does not know .*%v"):
        template(text)


def test_a_delay_is_that_of_every_message() -> None:
    for as_json, line in ((False, b"v"), (True, b'{"value": "v"}')):
        message = _Parser("t", None, None, {}, None, as_json, 1.5)(1, line)
        assert (message.value, message.delay_s) == (b"v", 1.5)
