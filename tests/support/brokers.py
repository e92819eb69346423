"""Real broker services behind a network that obeys the test: no Ray, so no seconds of start-up.

Only the way of a call is a double: it runs in a thread pool, answers are pickled, and calls to a replica that
is *silent* get no answer, as with a killed process whose death Ray has not noticed yet.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from escrowmq.actors.broker.broker import BranchWork
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.format import codec, ops
from escrowmq.replication.model import BY_NAME, NO_ID, first_group, group_of
from escrowmq.replication.replica.entry_writing import Submission
from tests.support.broker_group import BrokerGroup, Member
from tests.support.requests import message
from tests.support.waiting import wait_until

#: Which part answers a call of the Broker actor, and by which method.
_PARTS = {
    "requests": ["submit", "follow"],
    "reads": ["fetch", "fetch_ends", "offsets", "topics", "topic_names", "partition_bounds", "committed"],
    "due_checks": ["due_pairs", "lock_pairs", "open_pairs", "release_locks", "check_again"],
    "inspection": ["tx_states", "transactions", "find_transaction", "audit", "status"],
    "instruments": ["metrics"],
    "watching": ["watch", "spans"],
    "running": ["whoami", "levels"],
}
_ANSWERS = {method: (part, method) for part, methods in _PARTS.items() for method in methods} | {
    "failed_attempts": ("reads", "attempts"),
    "group_join": ("groups", "join"),
    "held_places": ("reads", "places"),
    "group_heartbeat": ("groups", "heartbeat"),
    "group_leave": ("groups", "leave"),
    "commit_offsets": ("groups", "commit"),
    "group_delete": ("groups", "delete"),
    "group_list": ("groups", "names"),
    "group_describe": ("groups", "describe"),
    "scheduled": ("scheduled", "messages"),
    "share_members": ("share_reports", "members"),
    "share_places": ("share_reports", "places"),
    "share_final": ("share_reports", "final"),
    "find": ("messages", "find"),
    "message_at": ("messages", "message_at"),
    "group_places": ("messages", "group_places"),
    "share_states": ("messages.shares", "progress"),
    "members": ("members", "members"),
    "client_link": ("client_link", "__call__"),
    "change_members": ("members", "change"),
}


class Brokers:
    """A cluster in this process, and the ``ReplicaCalls`` of its clients."""

    def __init__(self, path: Path, groups: int = 1, replicas: int = 3, **settings: Any) -> None:
        config = BrokerConfig(**settings)
        self.info = ClusterInfo("c", "test", groups, replicas)
        self.groups = [BrokerGroup(path / f"g{gid}", config, replicas, gid, groups) for gid in range(groups)]
        self.silent: set[tuple[int, int]] = set()
        #: Gets each call first; true: it has taken it, to lose or to delay it.
        self.takes: Callable[[int, int, str, tuple[Any, ...], OnAnswer], bool] = lambda *call: False
        #: Calls by replica and method, to see who was asked.
        self.asked: list[tuple[int, int, str]] = []
        self._threads = ThreadPoolExecutor(64)
        #: What brokers say of transactions over several groups.
        self.reported: list[str] = []
        for group in self.groups:
            if groups > 1:
                group.branch_work = self.branch_work
            group.ask_levels = self.ask_levels  # type: ignore[method-assign]
        for group in self.groups:
            group.start()
        for group in self.groups:
            group.leader()

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self._threads.shutdown(wait=False)

    def branch_work(self, parts: Parts) -> BranchWork:
        """As a Broker actor has it, over this network."""
        return BranchWork(parts.running, self.info, report=self.reported.append, calls=ClientCalls(self))

    def ask_levels(self) -> dict[tuple[int, int], LevelReport | None]:
        """Of all replicas of all groups."""
        return {key: report for group in self.groups for key, report in BrokerGroup.ask_levels(group).items()}

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        self.asked.append((gid, rid, method))
        if (gid, rid) not in self.silent and not self.takes(gid, rid, method, args, done):
            self.carry(gid, rid, method, args, done)

    def carry(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        self._threads.submit(self._run, gid, rid, method, args, done)

    def _run(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        try:
            part, name = _ANSWERS[method]
            answer = attrgetter(f"{part}.{name}")(self.groups[gid].alive[rid].parts)(*args)
            if method != "fetch":  # its buffers are the broker's business
                answer = pickle.loads(pickle.dumps(answer))  # noqa: S301
        except Exception as error:
            answer, failure = None, error
        else:
            failure = None
        if (gid, rid) not in self.silent:  # it may have died meanwhile
            done(answer, failure)

    def leader(self, gid: int = 0) -> int:
        return self.groups[gid].leader().rid

    def group_number(self, topic: str, partition: int) -> int:
        """The group of a partition, which the topic says."""
        known = self.groups[0].leader().parts.running.replica.state.topics.topics[topic].info
        return group_of(first_group(known), partition, self.info.groups)

    def group_of(self, topic: str, partition: int) -> BrokerGroup:
        return self.groups[self.group_number(topic, partition)]

    def leader_of(self, topic: str, partition: int) -> Member:
        return self.group_of(topic, partition).leader()

    def topic(self, name: str, partitions: int = 1, first: int = BY_NAME, **settings: Any) -> None:
        """In every group, as a client creates it. ``first``: where it begins, else where its name says."""
        topic_id = NO_ID
        for group in self.groups:
            topic_id = group.topic(name, partitions, first, topic_id, **settings)

    def delete(self, name: str) -> None:
        for group in self.groups:
            group.submit(ops.delete_topic(name))

    def produce(self, topic: str, partition: int, values: Iterable[bytes], tx_id: str | None = None) -> None:
        (result,) = self.group_of(topic, partition).submit(message(topic, partition, [*values], tx_id=tx_id))
        assert result[0] == 0, result

    def trim(self, topic: str, starts: Mapping[int, int], gid: int = 0) -> None:
        """What the leader's retention does when messages are too old; on every replica on return."""
        frame = ops.trim(topic, starts)
        done = False
        while not done:  # there may be another election on a busy machine
            running = self.groups[gid].leader().parts.running
            answer: Future[Any] = Future()
            submission = Submission(frame, codec.decode_ops(frame), answer.set_result)
            running.driver.submit(lambda r=running, sub=submission: r.replica.admission.offer(sub) and None)
            done = answer.result(10.0)[0] == "ok"

        def trimmed() -> bool:
            bounds = [
                member.parts.reads.partition_bounds(topic) for member in self.groups[gid].alive.values()
            ]
            return all(each[p][0] >= start for each in bounds for p, start in starts.items())

        wait_until(trimmed, what="the trim on every replica")

    def everywhere(self, topic: str, ends: Mapping[int, int], gid: int = 0) -> None:
        """Waits until every replica that lives has these partitions up to these offsets."""
        replicas = self.groups[gid].alive.values()

        def has_all() -> bool:
            bounds = [member.parts.reads.partition_bounds(topic) for member in replicas]
            return all(each.get(p, (0, 0))[1] >= end for each in bounds for p, end in ends.items())

        wait_until(has_all, what="the messages on every replica")

    def lose(self, gid: int, rid: int) -> None:
        """The replica's process dies; nobody is told."""
        self.silent.add((gid, rid))
        self.groups[gid].stop(rid)


class ClientCalls:
    """One client's calls: closing it leaves the brokers to the others."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._closed = brokers, False

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if not self._closed:
            self._brokers.call(gid, rid, method, args, done)

    def close(self) -> None:
        self._closed = True


class BehindCalls:
    """One client's calls: fetches are answered by the brokers ``before``, which lack what is newer, and all
    others by those of ``now``; closing it leaves both to the others."""

    def __init__(self, now: Brokers, before: Brokers) -> None:
        self._now, self._before = now, before

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        (self._before if method == "fetch" else self._now).call(gid, rid, method, args, done)

    def close(self) -> None: ...


@contextmanager
def taking(
    brokers: Brokers, takes: Callable[[int, int, str, tuple[Any, ...], OnAnswer], bool]
) -> Iterator[None]:
    """A block in which calls are taken so."""
    before, brokers.takes = brokers.takes, takes
    try:
        yield
    finally:
        brokers.takes = before
