"""Members of share groups that are the clients' own code: what asks, extends leases and gathers acks
(``ShareSession``), what is in hand, and how one message is settled, over the real channels.

Only the application around it is simulated: it polls, and handles each message in a fibre of its own, since
settling blocks. Its process may pause for longer than leases run, with everything that it has, and go on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.results import outcome
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.core import Settling
from escrowmq.actors.share_consumer.held_batches import (
    Batch,
    HeldBatches,
    Ranges,
    ShareRecord,
    TopicIdPartition,
)
from escrowmq.actors.share_consumer.session import AskedGroup, ShareSession
from escrowmq.actors.share_consumer.statistics import ShareCounted
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.errors import (
    DiskFull,
    EscrowMQError,
    LeaseLost,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format.share_ops import BY_TABLE, EARLIEST, LATEST, REJECT
from escrowmq.replication.model import ResultCode
from tests.sim.across.share_calls import LEASE_S, Told
from tests.sim.across.turns import WorldTurns
from tests.sim.across.wire import Wire
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import Violation, World
from tests.sim.sharing.deletions import make
from tests.sim.sharing.members import DIES, FATES, HANDLES_S, IN_THE_CALM, LEAVES, PAUSED_S, PAUSES
from tests.sim.sharing.records import Address, Record, Taken, check_life, rows_of

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

POLLS_S = (0.01, 0.05, 0.2)
RECORDS = (1, 5, 20)
CALL_TIMEOUT_S = 4.0
EXTEND_MAX_S = 1.5  # then the lease of a message ends whose handler hangs
AGAIN_S = 0.3  # until a handler tries again to settle a message
LEAVES_WITHIN_S = 2.0


class Clients(NamedTuple):
    """What all of them need of their world."""

    wire: Wire
    info: ClusterInfo
    fibres: Fibres


class _Turns(WorldTurns):
    """The turns of a process that may pause."""

    paused_until = 0.0

    def _run(self) -> None:
        left_s = self.paused_until - self._world.now
        if left_s > 0 and not self.dead:
            self._world.later(left_s, self._run)
        else:
            super()._run()


class _Answer:
    """A future for a fibre to wait for."""

    def __init__(self, future: Future[Any], fibres: Fibres) -> None:
        self._future, self._fibres = future, fibres

    def result(self, timeout: float) -> Any:
        fibre = self._fibres.current()
        if not self._future.done():
            self._future.add_done_callback(lambda future: self._fibres.wake(fibre))
        while not self._future.done():
            self._fibres.wait()
        return self._future.result()


class _BlockingCalls:
    """The router, as code that blocks sees it."""

    def __init__(self, turns: WorldTurns, fibres: Fibres) -> None:
        self._turns, self._fibres = turns, fibres
        self.clock, self.info = turns.clock, turns.info

    def submit(self, gid: int, request: bytes, timeout_s: float) -> _Answer:
        return _Answer(self._turns.submit(gid, request, timeout_s), self._fibres)

    def leader_call(self, gid: int, method: str, *args: Any, timeout_s: float) -> _Answer:
        return _Answer(self._turns.leader_call(gid, method, *args, timeout_s=timeout_s), self._fibres)


class _Session(ShareSession):
    """The session, and what it does for the history."""

    #: The next two are set directly behind the creation.
    world: ShareGroups
    name: str

    def begin(self, world: ShareGroups, group: str, name: str) -> None:
        self.world, self.name, self.shared = world, name, {"group": group}
        self._asked: dict[int, int] = {}
        self._extending: dict[int, int] = {}
        #: Address -> acks of it that the history waits for.
        self.acks: dict[Address, list[int]] = {}

    def _ask(self, asked: AskedGroup) -> None:
        about = {"member": self.name, "since_ms": self.world.since_ms(asked.gid)}
        self._asked[asked.gid] = self.world.recorder.invoke("share-acquire", **self.shared, **about)
        super()._ask(asked)

    def _acquired(self, asked: AskedGroup, answer: Any, asked_at: float) -> None:
        if not isinstance(answer, EscrowMQError):
            told: Told = answer[1]
            taken = [each for row in told if row[2] == ResultCode.OK for each in _taken(AcquiredRow(*row))]
            about = {"leader": told.leader, "lease_ms": LEASE_S * 1000}
            records = [each.told for each in taken]
            self.world.recorder.ok(self._asked[asked.gid], **about, records=records)
            check_life(taken)
            self.world.took(taken)
            self.world.done["taken by clients"] += len(taken)
        super()._acquired(asked, answer, asked_at)

    def _extend(self, gid: int, batches: list[Batch], lease_s: float) -> None:
        addresses = [_address(batch.source, offset) for batch in batches for offset in sorted(batch.tended)]
        about = {"member": self.name, "lease_ms": lease_s * 1000, "records": addresses}
        self._extending[id(batches)] = self.world.recorder.invoke("share-extend", **self.shared, **about)
        super()._extend(gid, batches, lease_s)

    def _extended(self, batches: list[Batch], answer: Any, asked_at: float) -> None:
        op = self._extending.pop(id(batches))
        if not isinstance(answer, EscrowMQError):
            # Leases that were lost meanwhile count as refused, whichever of these they are.
            refused = list(range(10_000)) if answer[1] else []
            self.world.recorder.ok(op, leader=answer[1].leader, refused=refused)
            self.world.done["extended by clients"] += 1
        super()._extended(batches, answer, asked_at)

    def give_back(self) -> None:
        given = [
            _address(batch.source, n) for batch in self._held_batches._ready for n in sorted(batch.waiting)
        ]
        if given:
            recorder = self.world.recorder
            recorder.ok(recorder.invoke("share-release", **self.shared, records=given))
            self.world.done["given back by clients"] += len(given)
        super().give_back()

    def _acked(self, gid: int, acks: Mapping[TopicIdPartition, Ranges], answer: Any, asked_at: float) -> None:
        for at, (source, ranges) in enumerate(acks.items()):
            code = None if isinstance(answer, EscrowMQError) else answer[1][at][0]
            offsets = [offset for first, last in ranges for offset in range(first, last + 1)]
            if code in (ResultCode.OK, ResultCode.DUPLICATE):
                for op in [op for n in offsets for op in self.acks.pop(_address(source, n), ())]:
                    self.world.recorder.ok(op)
        super()._acked(gid, acks, answer, asked_at)
        given_up, self.ack_given_up = self.ack_given_up, None
        if given_up is not None and not self.world.is_gone(self.shared["group"], given_up):
            raise Violation(f"acks {acks} were given up: {given_up!r}", "unexpected-answer")


class Client:
    """One process with a share consumer, for all broker groups."""

    def __init__(self, world: ShareGroups, clients: Clients, group: str, name: str) -> None:
        self.group, self.name, self.alive = group, name, True
        self._world, self._fibres = world, clients.fibres
        self._clock: World = world.desks[0].world
        self._rng = self._clock.stream(f"share-client-{name}")
        self._turns = _Turns(self._clock, clients.wire, clients.info, ChannelConfig(), self._rng)
        self._held_batches = HeldBatches(EXTEND_MAX_S, tags=world.tags.bytes_of(group))
        self._condition, counted = threading.Condition(threading.Lock()), ShareCounted()
        config = self._config(self._rng)
        blocking = cast(Router, _BlockingCalls(self._turns, self._fibres))
        router = cast(Router, self._turns)
        self._born_calm, self._topics = world.calm, frozenset(world.topics)  # what it knows of
        if world.layout.narrow is not None:
            self._topics &= world.ids.keys()
        topics = world.layout.topics_of(self._topics)
        of_consumer = self._condition, self._held_batches, counted
        begun = frozenset[TopicIdPartition]()  # partitions that the group does not know are begun as new ones
        self._session = _Session(group, name, topics, begun, LEASE_S, config, router, *of_consumer)
        self._session.begin(world, group, name)
        self._settling = Settling(
            blocking, group, name, self._held_batches, self._condition, counted, CALL_TIMEOUT_S, self._sleep
        )
        self._turns.attach(self._session)
        self._fibres.start(name, self._poll)

    @staticmethod
    def _config(rng: random.Random) -> ShareConsumerConfig:
        return ShareConsumerConfig(
            prefetch_records=rng.choice((0, 5, 20)),
            acquire_bytes=4_000,
            acquire_wait_s=rng.choice((0.1, 0.5)),
            ack_linger_ms=rng.choice((0.0, 5.0, 50.0)),
            ack_records=rng.choice((1, 5, 500)),
            groups_at_a_time=rng.choice((1, 8)),
            call_timeout_s=CALL_TIMEOUT_S,
        )

    @property
    def _now(self) -> float:
        return self._clock.now

    def _sleep(self, seconds: float) -> None:
        """Also through a pause of the process."""
        self._fibres.wait(seconds)
        while self._now < self._turns.paused_until:
            self._fibres.wait(self._turns.paused_until - self._now)

    # -------------------------------------------------------------- polling

    def pause(self, seconds: float) -> None:
        """Its process stands still."""
        self._turns.paused_until = max(self._turns.paused_until, self._now + seconds)

    def _begin_again(self) -> None:
        """As the consumer does it whose group was deleted."""
        calls = _BlockingCalls(self._turns, self._fibres)
        groups = self._turns.info.groups

        def submit(gid: int, request: bytes) -> tuple[int, Any]:
            return outcome(calls.submit(gid, request, CALL_TIMEOUT_S).result(CALL_TIMEOUT_S)[0])

        try:
            ids = make(submit, groups, self.group)
            if ids is None:
                return
            sources = self._world.begin_all(self.group, submit, self._rng.choice((EARLIEST, LATEST)))
        except (DiskFull, Overloaded, Unavailable, OutcomeUnknown):
            return  # the application polls again
        self._world.ids |= ids
        self._world.done["begun again by clients"] += 1
        with self._condition:
            self._session.begun_again(sources)

    def _poll(self) -> None:
        while True:
            if self._session.forgotten:
                self._begin_again()
            records = self._take(self._rng.choice(RECORDS))
            if (records and not self._world.calm and self._leaves()) or self._restarted():
                return
            for record in records:
                self._fibres.start(self.name, self._handle, record)
            self._sleep(self._rng.choice(POLLS_S))

    def _take(self, most: int) -> list[ShareRecord]:
        """As the consumer's ``poll`` does it."""
        session = self._session
        with self._condition:
            if session.failure is not None:
                raise Violation(f"a share consumer failed: {session.failure!r}", "client-failed")
            records, unreadable = self._held_batches.take(most, self._now)
            self._ack_passed_over()
            if session.polled(most, len(records), self._now):
                self._turns.wakeup.set()
        if unreadable:
            raise Violation(f"a message cannot be read: {unreadable[0].reason}", "client-failed")
        self._world.polled(self.group, [self._address_of(record) for record in records])
        return records

    def _ack_passed_over(self) -> None:
        """As the consumer does it."""
        passed = self._held_batches.passed_over
        for batch, offset in passed:
            address = _address(batch.source, offset)
            op = self._world.settled_unasked(self.group, [address])
            self._session.acks.setdefault(address, []).append(op)
            if self._session.ack_accumulator.add(batch.gid, batch.source, offset, self._now):
                self._turns.wakeup.set()
        passed.clear()

    def _address_of(self, record: ShareRecord) -> Address:
        return _address(self._held_batches.find(record).source, record.offset)

    def _leaves(self) -> bool:
        """Whether it is no member any more. Perhaps it only pauses, with all that it has."""
        chance = self._rng.random()
        if chance < DIES:
            self._end("died")
            return True
        if chance < DIES + LEAVES:
            self._close()
            return True
        if chance < DIES + LEAVES + PAUSES:
            pause_s = self._rng.choice(PAUSED_S) * (0.5 + self._rng.random())
            self._turns.paused_until = self._now + pause_s
            self._world.done["clients paused"] += 1
            self._sleep(0.0)
        return False

    def _restarted(self) -> bool:
        """Whether somebody restarts it in the calm, so that whoever is there knows what topics there are."""
        known = self._topics >= self._world.ids.keys() & set(self._world.topics)
        if self._world.layout.narrow is None or not self._world.calm or (self._born_calm and known):
            return False
        self._close()
        return True

    def _close(self) -> None:
        """As the consumer's ``close`` does it; messages that were polled are not given back."""
        session = self._session
        with self._condition:
            session.stopping = True
            session.give_back()
            session.ack_accumulator.hurry(self._now)
        self._turns.wakeup.set()
        until = self._now + LEAVES_WITHIN_S
        while session.acks_unconfirmed and self._now < until:
            self._sleep(0.05)
        self._end("left")

    def _end(self, why: str) -> None:
        self._turns.dead = True
        self._fibres.kill(self.name)
        self._world.gone(self, why)

    # -------------------------------------------------------------- handling

    def _handle(self, record: ShareRecord) -> None:
        while True:
            self._sleep(self._rng.random() * HANDLES_S)
            fates = IN_THE_CALM if self._world.calm else FATES
            (fate,) = self._rng.choices(list(fates), list(fates.values()))
            self._world.done[fate] += 1
            if fate == "hang":
                return
            with self._condition:
                batch = self._held_batches.find(record)
            address = _address(batch.source, record.offset)
            if fate == "ack":
                self._ack(batch, record, address)
                return
            if self._settle(fate, record, address):
                return

    def _ack(self, batch: Batch, record: ShareRecord, address: Address) -> None:
        """As the consumer's ``ack`` does it."""
        op = self._world.recorder.invoke("share-ack", group=self.group, records=[address])
        self._session.acks.setdefault(address, []).append(op)
        with self._condition:
            self._held_batches.settled(batch, record.offset)
            if self._session.ack_accumulator.add(batch.gid, batch.source, record.offset, self._now):
                self._turns.wakeup.set()

    def _settle(self, fate: str, record: ShareRecord, address: Address) -> bool:
        """Everything but an ack. Returns whether nothing is left to do for this handler."""
        delay_ms = {"nack": BY_TABLE, "reject": REJECT}.get(fate, self._rng.choice((0, 1, 50, 400)))
        recorder, about = self._world.recorder, dict[str, Any](group=self.group, records=[address])
        op = -1
        if fate == "release":
            op = recorder.invoke("share-release", **about)
        elif fate != "extend":
            about |= {"delays_ms": [delay_ms], "since_ms": self._world.since_ms(self._gid(record))}
            op = recorder.invoke("share-nack", **about)
        try:
            if fate == "release":
                self._settling.release(record)
            elif fate == "extend":
                self._settling.extend(record, LEASE_S)
            else:
                self._settling.nack(record, delay_ms, "it failed", "test")
        except LeaseLost:
            self._refused(op)
            return True
        except (UnknownTopic, UnknownGroup) as error:
            if not self._world.is_gone(self.group, error):
                raise Violation(f"{fate} of {address}: {error!r}", "unexpected-answer") from error
            self._refused(op)
            return True
        except (DiskFull, Overloaded, Unavailable, OutcomeUnknown) as error:
            if op >= 0:
                recorder.unknown(op, repr(error))
            self._sleep(AGAIN_S)
            return False
        if op >= 0:
            recorder.ok(op)
        return fate != "extend"

    def _refused(self, op: int) -> None:
        if op >= 0:
            self._world.recorder.ok(op, refused=[0])

    def _gid(self, record: ShareRecord) -> int:
        return record.partition % len(self._world.desks)


def _address(batch: TopicIdPartition, offset: int) -> Address:
    topic, number, topic_id = batch
    return Record(topic, number, offset, topic_id).address


def _taken(row: AcquiredRow) -> Sequence[Taken]:
    leased = list(zip(row.leased[::3], row.leased[1::3], strict=True))
    return [
        Taken(Record(row.topic, row.partition, offset, row.topic_id), id, attempt, time_ms)
        for offset, id, attempt, time_ms in rows_of(row.runs, row.blob)
        if any(first <= offset <= last for first, last in leased)
    ]
