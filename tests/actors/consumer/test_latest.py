"""With "latest", a message that is sent after the consumer was created is delivered to some member."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.broker.group_service import GroupService
from escrowmq.actors.client.consumer_groups import FIRST_OFFSETS, coordinator_group
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.calling.answers import Leadership
from escrowmq.replication.errors import Unavailable
from tests.support.brokers import Brokers, ClientCalls, taking
from tests.support.polling import numbered, read, settle, values

PARTITIONS = 2
ConsumerOf = Callable[..., Consumer]
LATEST = {"auto_offset_reset": "latest"}


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    return unique("g")


def test_what_is_sent_before_the_first_poll_is_delivered(
    brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    brokers.produce(topic, 0, [b"old"])
    consumer = consumer_of(brokers, group=group, topics=[topic], **LATEST)
    brokers.produce(topic, 0, [b"new"])
    brokers.produce(topic, 1, [b"other"])
    assert sorted(values(read(consumer, 2))) == [b"new", b"other"]


def test_a_consumer_that_dies_before_its_first_commit_has_kept_the_groups_offset(
    brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    brokers.produce(topic, 0, [b"old"])
    with consumer_of(brokers, group=group, topics=[topic], **LATEST) as first:
        assert (first.committed(topic, 0), first.committed(topic, 1)) == (1, 0)
        brokers.produce(topic, 0, [b"new"])
        read(first, 1)
    brokers.produce(topic, 0, [b"newer"])
    assert values(read(consumer_of(brokers, group=group, topics=[topic], **LATEST), 2)) == [b"new", b"newer"]


def test_offsets_that_a_group_has_stay_as_they_are(
    brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    brokers.produce(topic, 0, numbered(0, 5))
    with consumer_of(brokers, group=group, topics=[topic]) as earlier:
        settle([earlier], lambda: len(earlier.assignment()) == 2)
        earlier.commit({(topic, 0): 2})
    consumer = consumer_of(brokers, group=group, topics=[topic], **LATEST)
    assert (consumer.committed(topic, 0), consumer.committed(topic, 1)) == (2, 0)
    assert values(read(consumer, 3)) == numbered(2, 5)


def test_a_group_with_all_its_offsets_asks_for_no_ends(
    brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    consumer_of(brokers, group=group, topics=[topic], **LATEST).close()
    brokers.asked.clear()
    consumer_of(brokers, group=group, topics=[topic], **LATEST)
    assert not {"offsets", "commit_offsets"} & {method for _, _, method in brokers.asked}


def test_without_a_group_the_offset_is_taken_when_partitions_are_assigned(
    brokers: Brokers, topic: str, consumer_of: ConsumerOf
) -> None:
    brokers.produce(topic, 0, [b"old"])
    consumer = consumer_of(brokers, **LATEST)
    consumer.assign([(topic, 0)])
    brokers.produce(topic, 0, [b"new"])
    consumer.assign([(topic, 0), (topic, 1)])
    brokers.produce(topic, 1, [b"other"])
    assert sorted(values(read(consumer, 2))) == [b"new", b"other"]


def test_no_offset_no_consumer_while_a_leader_is_away(brokers: Brokers, topic: str, group: str) -> None:
    """Without an offset it would be undefined which messages are delivered."""
    config = ConsumerConfig(call_timeout_s=0.5)
    with taking(brokers, lambda *call: call[2] == "offsets"), pytest.raises(Unavailable):
        Consumer(brokers.info, group=group, topics=[topic], config=config, calls=ClientCalls(brokers))


def race(brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf, monkeypatch: Any) -> int | None:
    """Two consumers of a new group. One has found no offsets and is slow to look up the ends; meanwhile the
    other one is created, and a message is sent. Returns the group's offset after both are created."""
    brokers.produce(topic, 0, [b"old"])
    look_up = OffsetReader._found
    found, go_on = threading.Event(), threading.Event()

    def slowly(self: OffsetReader, *args: Any) -> Any:
        if threading.current_thread() is slower and not found.is_set():
            found.set()
            assert go_on.wait(10.0)
        return look_up(self, *args)

    monkeypatch.setattr(OffsetReader, "_found", slowly)
    made: list[Consumer] = []
    slower = threading.Thread(
        target=lambda: made.append(consumer_of(brokers, group=group, topics=[topic], **LATEST))
    )
    slower.start()
    assert found.wait(10.0)
    faster = consumer_of(brokers, group=group, topics=[topic], **LATEST)
    brokers.produce(topic, 0, [b"new"])
    go_on.set()
    slower.join(10.0)
    assert len(made) == 1
    return faster.committed(topic, 0)


def test_of_two_that_begin_a_group_the_first_one_to_commit_decides_the_offset(
    brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert race(brokers, topic, group, consumer_of, monkeypatch) == 1


class Log:
    """A group service's view of its replica; entries are applied when the test says so."""

    def __init__(self) -> None:
        self.term = 1
        self.end: int | None = None
        self.applied_index = 0
        self.applied: dict[str, dict[str, dict[int, int]]] = {}
        self.service = GroupService(
            leadership=lambda: Leadership(True, 0, self.term),
            partitions=lambda topic: 2,
            committed=lambda group: self.applied.get(group, {}),
            group_names=list,
            submit=self._submit,
            clock=lambda: 100.0,
            log_end=lambda: self.end,
            applied=lambda: self.applied_index,
        )
        self.answer: Any = ("ok", [[0]])
        self.written = 0
        self.during: Callable[[], None] = lambda: None

    def _submit(self, request: bytes, turn: Any) -> Any:
        def queue() -> None:
            self.written += 1

        refused = turn(queue)
        if refused is not None:
            return refused
        during, self.during = self.during, lambda: None
        during()
        return self.answer

    def first(self) -> Any:
        return self.service.commit("g", "", FIRST_OFFSETS, {"t": {0: 7}})


def test_first_offsets_wait_for_commits_that_are_under_way() -> None:
    log = Log()
    met: list[Any] = []
    log.during = lambda: met.append(log.first())
    log.service.commit("g", "", 0, {"t": {0: 3}})
    assert met == [("overloaded", 0.02)], "an offset is on its way to the log, and may be another one"
    assert log.first() == ("ok", None) and log.written == 2, "it was refused there: the group has none"
    log.applied = {"g": {"t": {0: 3}}}
    assert log.first() == ("ok", None) and log.written == 2, "what is there stays"


def test_a_commit_whose_outcome_is_not_known_keeps_first_offsets_waiting_until_the_term_ends() -> None:
    log = Log()
    log.answer = ("unknown",)
    log.service.commit("g", "", 0, {"t": {0: 3}})
    log.answer = ("ok", [[0]])
    assert log.first() == ("overloaded", 0.02)
    log.term = 2
    assert log.first() == ("ok", None) and log.written == 2


def test_or_until_it_is_applied_so_that_a_leader_that_stays_deletes_the_group() -> None:
    """The disks of the others hung for a while, say."""
    log = Log()
    log.answer = ("unknown",)
    log.service.commit("g", "", 0, {"t": {0: 3}})
    log.answer = ("ok", [[0]])
    again = ("overloaded", 0.02)
    assert log.first() == again, "it may not be in the log yet"
    log.end, log.applied_index = 7, 6
    assert log.first() == again and log.service.delete("g", {}) == again, "it may be entry 7"
    log.end = 9
    assert log.first() == again
    log.applied_index = 7
    log.applied = {"g": {"t": {0: 3}}}
    assert log.service.delete("g", log.applied["g"]) == ("ok", None)


def test_outcomes_that_are_not_known_do_not_add_up_while_the_log_goes_on() -> None:
    """A leader stays for months, and nobody deletes a group or begins one meanwhile."""
    log = Log()
    log.answer = ("unknown",)
    for number in range(500):
        log.end = number if number % 3 else None  # None: requests wait to be written
        log.applied_index = number
        log.service.commit(f"group-{number}", "", 0, {"t": {0: 3}})
        assert len(log.service.under_way.unknown) <= 3
        assert len(log.service.under_way.queued) <= 3


def test_but_those_that_may_still_be_written_are_all_kept() -> None:
    log = Log()
    log.answer = ("unknown",)
    log.end, log.applied_index = 7, 6
    for number in range(50):
        log.service.commit(f"group-{number}", "", 0, {"t": {0: 3}})
    assert len(log.service.under_way.unknown) == 50
    log.applied_index = 7
    log.service.commit("group-50", "", 0, {"t": {0: 3}})
    assert not log.service.under_way.unknown and not log.service.under_way.queued


def test_what_ends_late_takes_nothing_of_the_next_term_away() -> None:
    log = Log()

    def next_term() -> None:
        log.term = 2
        log.answer = ("unknown",)
        log.service.commit("g", "", 0, {"t": {0: 4}})
        log.answer = ("ok", [[0]])

    log.during = next_term
    log.service.commit("g", "", 0, {"t": {0: 3}})
    assert log.first() == ("overloaded", 0.02), "the second one may be on its way"


def test_a_group_that_took_its_first_offsets_is_not_one_of_an_earlier_leader() -> None:
    """Otherwise its first member would wait for members that never existed to claim their partitions."""
    log = Log()
    assert log.first() == ("ok", None)
    log.applied = {"g": {"t": {0: 7}}}
    status, joined = log.service.join("g", "m", ["t"], 10.0)
    assert status == "ok" and len(joined.assignment.partitions) == 2


def test_a_coordinator_in_another_broker_group_keeps_the_offsets(
    tmp_path_factory: pytest.TempPathFactory, unique: Callable[[str], str], consumer_of: ConsumerOf
) -> None:
    several = Brokers(tmp_path_factory.mktemp("several"), groups=2, replicas=1)
    try:
        topic = unique("orders")
        several.topic(topic, 2)
        for name in ("a", "b"):
            several.produce(topic, 0, [b"old"])
            with consumer_of(several, group=name, topics=[topic], **LATEST) as consumer:
                several.produce(topic, 0, [b"new"])
                several.produce(topic, 1, [b"new"])
                assert values(read(consumer, 2)) == [b"new", b"new"]
        assert {coordinator_group(name, 2) for name in ("a", "b")} == {0, 1}
    finally:
        several.close()
