"""What cannot be encoded is refused by a typed error, whichever way it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message
from escrowmq.testing import InMemoryCluster

BAD: list[tuple[str, dict[str, Any]]] = [
    ("orders", {"value": 1 << 70}),
    ("orders", {"value": object()}),
    ("orders", {"value": "\ud800"}),
    ("\ud800", {}),
    ("orders", {"headers": {"\ud800": b""}}),
]


@pytest.mark.parametrize(("topic", "rest"), BAD)
def test_numbered_messages(cluster: InMemoryCluster, topic: str, rest: dict[str, Any]) -> None:
    """Their digest is made before anything else looks at them."""
    with cluster.producer("shop", transactional_id="one") as producer:
        with pytest.raises(InvalidMessage):
            producer.send_numbered(1, Message(topic, **rest))
        assert producer.send_numbered(1, Message("orders", b"x"))


@pytest.mark.parametrize("headers", [[("a", b"b")], "abc", 5])
def test_headers_that_are_no_mapping(headers: Any) -> None:
    with pytest.raises(InvalidMessage, match="headers must map"):
        Message("orders", b"x", headers=headers)
