"""Requests about share groups and internal topics: what is refused, by whom, and with which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.codec import decode_ops, encode_row
from escrowmq.replication.format.settings import DELAYS_MAX
from escrowmq.replication.limits import NACKED_MAX
from escrowmq.replication.replica.validation import brings_new_work, parse_request

ROW = encode_row(None, b"done", None, None)
MEMBER = "ab" * 16


def ack(*ranges: int, group: str = "g", topic: str = "t", partition: int = 0, topic_id: int = 0) -> bytes:
    return share_ops.share_ack(group, topic, partition, ranges, topic_id)


def create(begin: str) -> bytes:
    return share_ops.share_create("g", "t", 0, begin, 0)


def reply(offsets: list[int], app: str = "shop") -> bytes:
    return share_ops.share_reply("g", "t", 0, app, offsets, [ROW] * len(offsets), 0)


def nack(offsets: list[int], delays: list[int] | None = None, reason: str = "") -> bytes:
    delays = [-1] * len(offsets) if delays is None else delays
    return share_ops.nack("g", "t", 0, offsets, delays, [reason] * len(offsets), MEMBER, "me", 0)


def settings(group: str = "g", number: int = -1, **values: int | str | list[int]) -> bytes:
    return share_ops.group_settings(group, values, number)


def internal(name: str, partitions: int = 2, first: int = 0) -> bytes:
    return ops.create_topic(name, {"partitions": partitions}, first, 0)


GOOD = [
    ack(0, 0, 2, 5),
    create("earliest"),
    create("latest"),
    reply([1, 7]),
    nack([1, 7], [0, -2]),
    settings(max_attempts=1, delays_ms=[0], max_age_ms=-1, dead_letters="drop", kind="share"),
    share_ops.places("g", "t", [0, 5, 2]),
    internal("__retry.g"),
]


@pytest.mark.parametrize("request_", GOOD)
def test_what_is_right_is_accepted(request_: bytes) -> None:
    assert parse_request(request_, group_and_count=(0, 2)) == decode_ops(request_)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (ack(), "SHARE_ACK needs"),
        (ack(1), "pairs"),
        (ack(2, 1), "ascending order"),
        (ack(0, 2, 2, 3), "must not overlap"),
        (ack(4, 5, 0, 1), "ascending order"),
        (ack(-1, 1), "an offset must be"),
        (ack(0, 1 << 60), "an offset must be"),
        (ack(0, 1, partition=-1), "a partition is 0 or more"),
        (ack(0, 1, topic_id=-1), "topic's id"),
        (ack(0, 1, group=""), "1 to 180"),
        (ack(0, 1, group="a/b"), "1 to 180"),
        (ack(0, 1, group="x" * 181), "1 to 180"),
        (ack(0, 1, group="__retry.g"), "are reserved"),
        (ack(0, 1, topic="__retry.other"), "not a topic of group 'g'"),
        (ack(0, 1, topic="__replies.shop"), "not a topic of group 'g'"),
        (create("now"), "a group begins at"),
        (reply([]), "needs 1 to"),
        (reply([2, 1]), "ascending order"),
        (reply([1, 1]), "each once"),
        (reply([1], app="a b"), "1 to 180"),
        (nack([]), "NACK needs"),
        (nack([2, 1]), "ascending order"),
        (nack([1], [-3]), "a delay must be"),
        (nack([1], [1 << 60]), "a delay must be"),
        (nack([1], [1, 2]), "and a delay"),
        (nack(list(range(NACKED_MAX + 1))), "NACK needs"),
        (nack([1], reason="x" * 100_000), "a reason has at most"),
        (settings(max_attempts=0), "max_attempts must be 1"),
        (settings(max_attempts="many"), "max_attempts must be 1"),
        (settings(delays_ms=[]), "a list of 1"),
        (settings(delays_ms=5), "a list of 1"),
        (settings(delays_ms=[1] * (DELAYS_MAX + 1)), "a list of 1"),
        (settings(delays_ms=[-1]), "a delay must be"),
        (settings(delays_ms=[1 << 60]), "a delay must be"),
        (settings(lease_ms=0), "lease_ms must be"),
        (settings(max_age_ms=0), "at least 1"),
        (settings(dead_letters="lose"), "'keep' or 'drop'"),
        (settings(kind="queue"), "'stream' or 'share'"),
        (settings(colour=1), "unknown group setting"),
        (settings(number=-2), "number of a change"),
        (settings("__dead.g"), "are reserved"),
        (share_ops.places("g", "t", [0, 1]), "triples"),
        (share_ops.places("g", "t", [0, 1, -1]), "triples"),
        (share_ops.forward("__retry.g", 0, [0], [ROW]), "leaders only"),
        (internal("__retry.g", 3), "one partition in each of 2"),
        (internal("__dead.g", 2, 1), "from group 0 on"),
        (internal("__replies."), "1 to 180"),
        (internal("__retry.__retry.g"), "are reserved"),
        (ops.message("__retry.g", 0, "p", 0, -1, [ROW]), "only brokers write"),
        (timer_ops.scheduled("__dead.g", 0, "p", 0, 0, [1], [ROW], 1, 0, -1, 0), "only brokers write"),
        (
            ops.prepare("a", "t", ["x"], None, 0, 0, [1], -1, 1)
            + ops.pre_message("__replies.a", 0, [0], [len(ROW)], [ROW]),
            "only brokers write",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused(request_: bytes, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        parse_request(request_, group_and_count=(0, 2))


def test_other_topics_may_begin_like_an_internal_one() -> None:
    """Only the names of internal topics are reserved."""
    parse_request(ops.message("__mine", 0, "p", 0, -1, [ROW]), group_and_count=(0, 2))
    parse_request(ops.create_topic("__mine", {"partitions": 1}), group_and_count=(0, 2))


@pytest.mark.parametrize(("request_", "new"), [(nack([1]), True), (ack(0, 1), False), (reply([1]), False)])
def test_a_copy_needs_room_and_an_acknowledgement_does_not(request_: bytes, new: bool) -> None:
    assert brings_new_work(decode_ops(request_)) is new


def test_frames_of_acknowledgements_are_small() -> None:
    """A range takes at most 18 bytes, 10 below four billion messages."""
    sizes: Callable[[int, int], int] = lambda n, base: len(  # noqa: E731
        ack(*(base + 3 * i + j for i in range(n) for j in (0, 1)))
    )
    assert (sizes(1_001, 1 << 31) - sizes(1, 1 << 31)) / 1_000 < 10.1
    assert (sizes(1_001, 1 << 40) - sizes(1, 1 << 40)) / 1_000 < 18.1


@pytest.mark.parametrize(("topic_id", "accepted"), [(7, True), (0, False)])
def test_dead_letters_are_held_in_the_topic_in_which_they_were_read(topic_id: int, accepted: bool) -> None:
    extra = ops.PrepareExtra(on_timeout=ops.ROLLBACK)
    request = ops.prepare("a", "t", ["x"], None, 0, 0, [0], -1, 1, extra)
    request += share_ops.pre_letters("g", 0, [0, 0], topic_id, "t", "me")
    if accepted:
        assert parse_request(request) == decode_ops(request)
        return
    with pytest.raises(InvalidMessage, match="names the topic of its letters by id"):
        parse_request(request)
