"""A group on a stage: no threads, no sockets; time and every message are in the test's hand.

The same scenario plays with stock pysyncobj (``StockMember``) and with ours (``OurMember``), so that
a test can show the one failing and the other holding. Messages go to ``Stage.mail``; ``run`` lets
time pass in steps of 10 ms, ticks those who are awake, and delivers what ``route`` lets through.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import Incarnations
from escrowmq.replication.raft.node import RaftConfig, RaftNode
from escrowmq.replication.raft.pysync import PeerNode, thread_clock
from tests.sim.environment.disk import SimDisk

STEP_S = 0.01
Message = dict[str, Any]
Done = Callable[[Any, Any], None]


class Mail(NamedTuple):
    sender: str
    receiver: str
    message: Message


class Member(Protocol):
    """What a scenario asks of a replica, stock or ours."""

    name: str
    applied: list[bytes]

    def tick(self) -> None: ...
    def deliver(self, mail: Mail) -> None: ...
    def connect(self, peer: str) -> None: ...
    def propose(self, value: bytes, done: Done | None = None) -> None: ...
    def is_leader(self) -> bool: ...
    def term(self) -> int: ...
    def last_index(self) -> int: ...
    def commit_index(self) -> int: ...


class Stage:
    """See the module's text. ``play(kind, names)`` builds one."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.now = list(names), 1000.0
        self.members: dict[str, Any] = {}
        self.mail: list[Mail] = []
        self.route: Callable[[Mail], bool] = lambda mail: True
        self.kept: list[Mail] = []  # what ``keep`` picked out on its way, still to be delivered by hand
        self.keep: Callable[[Mail], bool] = lambda mail: False
        self.awake = set(names)
        self.sent = 0

    def clock(self) -> float:
        return self.now

    def post(self, sender: str, receiver: str, message: Message) -> bool:
        self.sent += 1
        mail = Mail(sender, receiver, dict(message))
        if self.keep(mail):
            self.kept.append(mail)
        elif self.route(mail):
            self.mail.append(mail)
        return True

    def add(self, member: Any) -> None:
        self.members[member.name] = member

    def open(self) -> Stage:
        for name, member in self.members.items():
            for peer in self.names:
                if peer != name:
                    member.connect(peer)
        return self

    def deliver_all(self) -> None:
        """Until no message is under way."""
        for _ in range(10_000):
            if not self.mail:
                return
            self.hand_over(self.mail.pop(0))
        raise AssertionError("messages never ended")

    def hand_over(self, mail: Mail) -> None:
        with thread_clock(self.clock):
            self.members[mail.receiver].deliver(mail)

    def tick(self, name: str) -> None:
        with thread_clock(self.clock):
            self.members[name].tick()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for name in self.names:
                if name in self.awake:
                    self.tick(name)
            self.deliver_all()

    def elect(self, name: str) -> Any:
        """Only ``name`` may campaign until it leads; its term's first entry is committed and known."""
        awake, self.awake = self.awake, {name}
        for _ in range(500):
            self.run(STEP_S)
            if self.members[name].is_leader():
                break
        assert self.members[name].is_leader(), f"{name} was not elected"
        self.run(0.3)
        self.awake = awake
        return self.members[name]

    def isolate(self, *names: str) -> None:
        """Nothing passes between ``names`` and the others (among themselves it does)."""
        self.route = lambda mail: (mail.sender in names) == (mail.receiver in names)

    def heal(self) -> None:
        self.route = lambda mail: True


# ------------------------------------------------------------------ stock
class _StockLink(Transport):  # type: ignore[misc]
    """What stock pysyncobj sends goes to the stage."""

    def __init__(self, send: Callable[[str, Message], bool]) -> None:
        super().__init__(None, None, None)
        self._send = send

    def send(self, node: Node, message: Message) -> bool:
        return self._send(node.id, message)


class _StockList(SyncObj):  # type: ignore[misc]
    """Stock pysyncobj with the simplest replicated state: a list."""

    def __init__(self, me: str, peers: list[str], conf: SyncObjConf, link: _StockLink) -> None:
        self.values: list[bytes] = []
        super().__init__(PeerNode(me), [PeerNode(p) for p in peers], conf, nodeClass=PeerNode, transport=link)

    @replicated
    def put(self, value: bytes) -> bytes:
        if value == b"poison":
            raise ValueError("this command cannot be applied")
        self.values.append(value)
        return value


class StockMember:
    """pysyncobj as it is installed, on the stage."""

    def __init__(self, stage: Stage, name: str, **conf: Any) -> None:
        settings: dict[str, Any] = {
            "autoTick": False, "raftMinTimeout": 0.3, "raftMaxTimeout": 0.6, "appendEntriesPeriod": 0.05,
            "logCompactionMinEntries": 1 << 60, "logCompactionMinTime": 1 << 40,
        }  # fmt: skip
        self.name = name
        self.link = _StockLink(lambda peer, message: stage.post(name, peer, message))
        with thread_clock(stage.clock):
            peers = [n for n in stage.names if n != name]
            self.raft = _StockList(name, peers, SyncObjConf(**(settings | conf)), self.link)

    @property
    def applied(self) -> list[bytes]:
        return self.raft.values

    def tick(self) -> None:
        self.raft.doTick(0)

    def deliver(self, mail: Mail) -> None:
        self.link._onMessageReceived(PeerNode(mail.sender), mail.message)

    def connect(self, peer: str) -> None:
        self.link._onNodeConnected(PeerNode(peer))

    def propose(self, value: bytes, done: Done | None = None) -> None:
        self.raft.put(value, callback=done)

    def is_leader(self) -> bool:
        return bool(self.raft._isLeader())

    def term(self) -> int:
        return int(self.raft.raftCurrentTerm)

    def last_index(self) -> int:
        return int(self.raft.getStatus()["log_len"])

    def commit_index(self) -> int:
        return int(self.raft.raftCommitIndex)


# ------------------------------------------------------------------ ours
class OurMember:
    """RaftNode over the real journal on a disk in memory. ``disk_stalls``: syncs do not end.

    ``journal``: it is open already. ``founders``: in a group whose members have changed. ``life``: how often
    this replica was started before, so that it draws other random numbers."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        config: RaftConfig | None = None,
        disk: SimDisk | None = None,
        segment_bytes: int = 64 << 20,
        learner: bool = False,
        joining: bool = False,
        marks: Incarnations | None = None,
        drop_link: Callable[[str], None] = lambda peer: None,
        journal: SegmentJournal | None = None,
        applied_index: int = 1,
        founders: Sequence[str] = (),
        life: int = 0,
    ) -> None:
        self.name, self._stage = name, stage
        self.applied: list[bytes] = []
        self.disk = disk or SimDisk(random.Random(name))
        self.journal = SegmentJournal(self.disk, segment_bytes=segment_bytes) if journal is None else journal
        self.disk_stalls = False
        self.raft = RaftNode(
            name,
            [n for n in founders or stage.names if n != name],
            self.journal,
            self,
            self._apply,
            clock=stage.clock,
            rng=random.Random(f"{name}/{life}" if life else name),
            config=config,
            applied_index=applied_index,
            no_vote_until_caught_up=learner,
            joining=joining,
            marks=marks,
            drop_link=drop_link,
        )

    def _apply(self, index: int, term: int, command: bytes) -> bytes:
        if command == b"\0poison":
            raise ValueError("this command cannot be applied")
        if command:
            self.applied.append(command[1:])
        return command[1:]

    def send(self, peer: str, message: Message) -> bool:
        return self._stage.post(self.name, peer, message)

    def room(self, peer: str) -> bool:
        return True

    def tick(self) -> None:
        self.raft.tick()
        self.sync()

    def sync(self) -> None:
        if not self.disk_stalls:
            self.journal.sync()
            self.raft.after_sync()

    def deliver(self, mail: Mail) -> None:
        self.raft.deliver(mail.sender, mail.message)
        self.sync()

    def connect(self, peer: str) -> None:
        self.raft.connected(peer)

    def propose(self, value: bytes, done: Done | None = None) -> None:
        self.raft.propose(b"\0" + value, done or (lambda result, applied: None))

    def is_leader(self) -> bool:
        return self.raft.is_leader

    def term(self) -> int:
        return self.raft.term

    def last_index(self) -> int:
        return self.journal.last_index

    def commit_index(self) -> int:
        return self.raft.commit_index


def stock_group(size: int = 3, **conf: Any) -> Stage:
    stage = Stage([f"r{n}" for n in range(size)])
    for name in stage.names:
        stage.add(StockMember(stage, name, **conf))
    return stage.open()


def our_group(size: int = 3, *, config: RaftConfig | None = None) -> Stage:
    stage = Stage([f"r{n}" for n in range(size)])
    for name in stage.names:
        stage.add(OurMember(stage, name, config=config))
    return stage.open()
