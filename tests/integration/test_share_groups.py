"""Share groups on real Ray: poison messages end as dead letters with their reasons, and the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq import GroupNotEmpty, Message, OutcomeUnknown, ShareRecord, Unavailable, UnknownGroup
from escrowmq.actors.admin import group_changes
from tests.support.leaders import leader_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray
Unique = Callable[[str], str]
ROOT = Path(__file__).resolve().parents[2]
GOOD = [f"good-{number}".encode() for number in range(20)]


def send(cluster: Cluster, topic: str, *values: bytes) -> None:
    with cluster.producer(app=f"{topic}-shop") as producer:
        for value in values:
            producer.send(Message(topic, value))


def reasons(cluster: Cluster, group: str) -> dict[bytes, str]:
    return {letter.value: letter.reason for letter in cluster.admin.dead_letters(group)}


def test_a_handler_that_raises_and_one_that_hangs(cluster: Cluster, unique: Unique) -> None:
    topic, group = unique("orders"), unique("mail")
    cluster.admin.create_topic(topic, partitions=2)
    cluster.admin.set_group(group, max_attempts=2, delays_s=[0.1])
    send(cluster, topic, b"raises", b"hangs", *GOOD)
    handled, attempts = [], Counter[bytes]()
    stop, let_go = threading.Event(), threading.Event()

    def handle(record: ShareRecord) -> None:
        attempts[record.value] += 1
        if record.value == b"raises":
            raise ValueError("out of paper")
        if record.value == b"hangs":
            let_go.wait(60)
        handled.append(record.value)

    with cluster.share_consumer(
        group, [topic], auto_offset_reset="earliest", lease_s=1, lease_extend_max_s=2
    ) as queue:
        runner = threading.Thread(target=queue.run, args=(handle,), kwargs={"threads": 2, "stop": stop})
        runner.start()
        wait_until(lambda: len(reasons(cluster, group)) == 2, 30.0, "two dead letters")
        let_go.set()
        stop.set()
        runner.join(20)
    assert reasons(cluster, group) == {
        b"raises": "ValueError: out of paper",
        b"hangs": "the handler did not return within 2 s",
    }
    assert attempts[b"raises"] == attempts[b"hangs"] == 2
    assert sorted(value for value in handled if value in GOOD) == sorted(GOOD)


@pytest.mark.slow
def test_a_message_that_kills_its_consumers(cluster: Cluster, unique: Unique) -> None:
    topic, group = unique("orders"), unique("mail")
    cluster.admin.create_topic(topic)
    cluster.admin.set_group(group, max_attempts=1, delays_s=[0.1])
    cluster.share_consumer(group, [topic], auto_offset_reset="earliest").close()
    for values in GOOD[:10], [b"kills"], GOOD[10:]:  # alone in its batch, or others are leased with it
        send(cluster, topic, *values)
    command = [sys.executable, "-m", "tests.integration.share_member"]
    arguments = [cluster.address, cluster.info.namespace, group, topic]
    printed, deadline = "", time.monotonic() + 100
    deaths = 0
    while time.monotonic() < deadline and not reasons(cluster, group):
        member = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            wait_until(
                lambda member=member: member.poll() is not None or reasons(cluster, group), 60.0, "an end"
            )
            deaths += member.poll() == 9
        finally:
            member.kill()
            printed += member.communicate()[0]
    assert deaths == 3, "the third lease that ends is a failure"
    (letter,) = cluster.admin.dead_letters(group)
    assert (letter.value, letter.by) == (b"kills", "lease")
    assert letter.reason == "3 leases in a row ended without an answer from their consumers"
    with cluster.share_consumer(group, [topic], lease_s=1) as queue:
        rest: list[bytes] = []
        wait_until(
            lambda: _take(queue, rest) or {*printed.encode().split(), *rest} >= set(GOOD), 20.0, "all others"
        )


def _take(queue: Any, rest: list[bytes]) -> None:
    for record in queue.poll(timeout_s=0.5):
        rest.append(record.value)
        queue.ack(record)


def test_coroutines_handle_what_threads_do(cluster: Cluster, unique: Unique) -> None:
    topic, group = unique("orders"), unique("mail")
    cluster.admin.create_topic(topic, partitions=2)
    cluster.admin.set_group(group, max_attempts=2, delays_s=[0.1])
    send(cluster, topic, b"raises", b"hangs", *GOOD)
    handled: list[bytes] = []

    async def handle(record: ShareRecord) -> None:
        if record.value == b"raises":
            raise ValueError("out of paper")
        await asyncio.sleep(60 if record.value == b"hangs" else 0)
        handled.append(record.value)

    async def stop_when_dead(stop: asyncio.Event) -> None:
        await asyncio.to_thread(
            wait_until, lambda: len(reasons(cluster, group)) == 2, 30.0, "two dead letters"
        )
        stop.set()

    async def main() -> None:
        stop = asyncio.Event()
        options = {"auto_offset_reset": "earliest", "lease_s": 1, "lease_extend_max_s": 1}
        async with cluster.share_consumer(group, [topic], **options).aio as queue:
            await asyncio.gather(queue.run(handle, stop=stop), stop_when_dead(stop))

    asyncio.run(asyncio.wait_for(main(), 40))
    assert reasons(cluster, group)[b"hangs"] == "the handler did not return within 1 s"
    assert sorted(handled) == sorted(GOOD)


@pytest.mark.usefixtures("healthy_again")
def test_the_leader_is_killed_when_a_group_is_deleted_and_its_topics_are_not(
    cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = unique("orders"), unique("mail")
    cluster.admin.create_topic(topic)
    with cluster.producer(app=f"{topic}-shop") as producer:
        for number, tag in enumerate(["paid", "sent", "paid", None]):
            producer.send(Message(topic, b"%d" % number, tag=tag)).result(20)
    with cluster.share_consumer(group, [topic], auto_offset_reset="earliest", tags=["paid"]) as queue:
        found = _polled(queue, 2)
        assert [record.value for record in found] == [b"0", b"2"]
        queue.reject(found[0], reason="hopeless")
        queue.nack(found[1], delay_s=3600)
        queue.flush()
        share = cluster.admin.describe_group(group).share
        assert share is not None
        assert (share.lag, share.leased, share.retrying, share.dead) == (0, 0, 1, 1), (
            "others were passed over"
        )
    delete_topics = group_changes.delete_topics

    def leader_dies(*about: Any) -> bool:
        os.kill(leader_of(cluster).details["pid"], signal.SIGKILL)
        return delete_topics(*about)

    def deleted() -> bool:
        try:
            cluster.admin.delete_group(group)
        except GroupNotEmpty:  # its consumer is closed, and may still be waited for
            return False
        except (Unavailable, OutcomeUnknown):  # then it says: repeat it
            pass
        return True

    with monkeypatch.context() as patched:
        patched.setattr(group_changes, "delete_topics", leader_dies)
        wait_until(deleted, 20.0, "nobody uses the group any more")
    with suppress(UnknownGroup):  # all was done
        cluster.admin.delete_group(group)
    names = {info.name for info in cluster.admin.topics(internal=True)}
    assert topic in names and not {f"__retry.{group}", f"__dead.{group}"} & names
    with cluster.share_consumer(group, [topic], auto_offset_reset="earliest") as queue:
        assert {record.topic for record in _polled(queue, 4)} == {topic}, (
            "it begins anew, without old retries"
        )
        assert cluster.admin.dead_letters(group) == []


def _polled(queue: Any, count: int) -> list[ShareRecord]:
    found: list[ShareRecord] = []
    wait_until(lambda: found.extend(queue.poll(timeout_s=0.5)) or len(found) >= count, 20.0, "records")
    return found
