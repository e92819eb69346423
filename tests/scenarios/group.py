"""The group that a scenario plays with: Raft on a stage, whose replicas can also be stopped, damaged, mended
and opened again, by the steps that a broker takes (``Restoring``, ``Mender``).

Replicated state is the list of proposed values; a snapshot of it is one file beside the log.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from escrowmq.replication.errors import ChangeNotYet, EscrowMQError, Unavailable
from escrowmq.replication.format.entry import HEADER_SIZE, scan
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, log_name
from escrowmq.replication.host.repair import (
    RANGE_BYTES_MAX,
    Manifest,
    Mender,
    NoPeers,
    offered_files,
)
from escrowmq.replication.host.replica_setup import PeerList
from escrowmq.replication.host.restoring import Restoring
from escrowmq.replication.log.datadir import BEHIND, LEARNER, LOST, WANTS_COPY, Marks
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.raft.members import Act, Step
from escrowmq.replication.raft.node import RaftConfig, check_fit
from tests.sim.environment.disk import SimDisk
from tests.support.stage import Mail, OurMember, Stage

#: A few entries a segment, so that every log has sealed ones.
SEGMENT_BYTES = 200
SNAPSHOT = "state.json"
KINDS = {
    "pre-votes": "pre_vote",
    "agreements": "pre_vote_granted",
    "vote requests": "request_vote",
    "votes": "response_vote",
    "appends": "append_entries",
    "acks": "next_node_idx",
    "rejoin answers": "rejoin_answer",
    "everything": "",
}
#: What tells a reader nothing, and changes with the format of files or with how long somebody waits.
NOISE = re.compile(r"\b\d+ bytes |; retry after \S+ s")


class Machine:
    """What stays of a replica while its process does not run."""

    def __init__(self, name: str, lives: int = 0) -> None:
        self.disk = SimDisk(random.Random(f"{name}/{lives}" if lives else name))
        self.notes = Marks(SimDisk(random.Random(f"{name}-notes")))
        self.lives, self.joining = lives, False


class Replica(OurMember):
    """A process of a replica. ``found``: what is in its directory, if that was looked at."""

    def __init__(self, group: Group, name: str, found: Opened | None = None) -> None:
        machine = group.machines[name]
        found = found or Opened(machine.disk)
        super().__init__(
            group,
            name,
            group.configs.get(name),
            machine.disk,
            SEGMENT_BYTES,
            learner=machine.notes.read(LEARNER) is not None,
            joining=machine.joining,
            journal=found.journal,
            applied_index=found.applied_index,
            founders=() if machine.joining else group.founders,
            life=machine.lives,
        )
        self.applied += found.values
        machine.lives += 1
        others = [other for other in group.names if other != name]
        self.mender = Mender(
            self.journal,
            others,
            Peers(group, name),
            lambda fn: fn(),
            lambda text: group.say(f"{name}: {text}"),
        )


class Opened:
    """A log and a snapshot that were found sound."""

    def __init__(self, disk: SimDisk) -> None:
        self.journal = SegmentJournal(disk, segment_bytes=SEGMENT_BYTES, mendable=True, cache_bytes=0)
        self.applied_index, self.values = 1, list[bytes]()
        if disk.exists(SNAPSHOT):
            saved = json.loads(disk.read_all(SNAPSHOT))
            self.applied_index, self.values = saved["applied"], [v.encode() for v in saved["values"]]
            if saved["members"]:
                index, command = saved["members"]
                self.journal.members.begin(index, bytes.fromhex(command))
        check_fit(self.journal, self.applied_index)

    def close(self) -> None:
        self.journal.close()


class Peers(NoPeers):
    """The other replicas as an opening one, or a mender, sees them: those that run and can be reached."""

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name = group, name

    def _reached(self, peer: str) -> Replica | None:
        return self._group.up.get(peer) if self._group.hear(self._name, peer) else None

    def founded(self, peer: str) -> bool | None:
        found = self._reached(peer)
        return None if found is None else found.journal.last_index > 1

    def manifest(self, peer: str) -> Manifest | None:
        found = self._reached(peer)
        if found is None or not found.is_leader():
            return None
        segments = [(segment.name, segment.size) for segment in found.journal.segments()]
        files = offered_files(found.disk, segments, SNAPSHOT)
        return Manifest(peer, found.term(), found.commit_index(), files)

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        return self._group.up[peer].disk.open(name).read(pos, size)

    def suspect(self, peer: str, name: str, size: int) -> None: ...

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        found = self._reached(peer)
        return None if found is None else found.journal.stored(first, last, RANGE_BYTES_MAX)


class Around:
    """What an opening replica asks (``restoring.Surroundings``)."""

    never_replaced = True

    def __init__(self, group: Group, name: str) -> None:
        self.peers, self.source = PeerList(name, group.names), Peers(group, name)
        self.founded: Callable[[], bool | None] = lambda: group.had_a_leader
        self.ask_members: Callable[[], tuple[int, ...]] = tuple
        self.report: Callable[[str], None] = lambda text: group.say(f"{name}: {NOISE.sub('', text)}")
        self.joining = False


class Group(Stage):
    """See the module's text. ``news``: what happened since somebody last looked, in order."""

    def __init__(self, names: list[str], configs: dict[str, RaftConfig] | None = None) -> None:
        super().__init__(names)
        self.founders, self.configs = tuple(names), configs or {}
        self.machines = {name: Machine(name) for name in names}
        self.news: list[str] = []
        self.had_a_leader = False
        self.heal()
        self.route = self._passes
        for name in names:
            self.add(Replica(self, name))
        self.open()

    @property
    def up(self) -> dict[str, Replica]:
        return self.members

    def say(self, text: str) -> None:
        self.news.append(text)

    # -------------------------------------------------------------- the network
    def heal(self) -> None:
        self.apart: set[str] = set()
        self.cut: set[frozenset[str]] = set()
        self.lost: list[tuple[str, str | None, str | None]] = []

    def isolate(self, *names: str) -> None:
        self.apart = set(names)

    def hear(self, one: str, other: str) -> bool:
        return (one in self.apart) == (other in self.apart) and frozenset((one, other)) not in self.cut

    def _passes(self, mail: Mail) -> bool:
        return self.hear(mail.sender, mail.receiver) and not any(is_one(mail, *lost) for lost in self.lost)

    def post(self, sender: str, receiver: str, message: dict[str, Any]) -> bool:
        return receiver in self.up and super().post(sender, receiver, message)

    def hand_over(self, mail: Mail) -> None:
        if mail.receiver in self.up:
            super().hand_over(mail)
            self._look_at(mail.receiver)

    # -------------------------------------------------------------- time
    def tick(self, name: str) -> None:
        replica = self.up.get(name)
        if replica is None:
            return
        super().tick(name)
        self._look_at(name)

    def _look_at(self, name: str) -> None:
        """What a broker's process does with what its node says."""
        replica = self.up[name]
        self.had_a_leader |= replica.is_leader()
        notes = self.machines[name].notes
        if notes.read(LEARNER) and not replica.raft.rejoining:
            notes.remove(LEARNER)
            self.say(f"{name} counts again")
        if replica.raft.too_far_behind:
            self.end_for_a_copy(name, "the leader's log begins behind the end of its own")

    # -------------------------------------------------------------- processes
    def stop(self, name: str, *, power: bool = False) -> None:
        self.up.pop(name).raft.close()
        machine = self.machines[name]
        (machine.disk.power_cut if power else machine.disk.kill)()
        for other in self.up.values():
            other.raft.disconnected(name)

    def end_for_a_copy(self, name: str, why: str) -> None:
        self.machines[name].notes.write(WANTS_COPY, BEHIND)
        self.stop(name)
        self.say(f"{name} ends: {why}")

    def start(self, name: str) -> None:
        """The steps of a broker from a directory to an open log."""
        machine = self.machines[name]
        around = Around(self, name)
        try:
            found = Restoring(
                machine.disk, machine.notes, around, _no_pause, 0.0, lambda _: Opened(machine.disk)
            ).restore()
        except EscrowMQError as error:
            self.say(f"{name} does not start: {NOISE.sub('', str(error))}")
            machine.disk.kill()
            return
        self._admit(Replica(self, name, found))

    def lose_disk(self, name: str) -> None:
        if name in self.up:
            self.stop(name)
        before = self.machines[name]
        self.machines[name] = machine = Machine(name, before.lives)
        machine.joining = before.joining

    def begin_empty(self, name: str) -> None:
        """The disk is lost, which the replica knows; the links fill the new one."""
        self.lose_disk(name)
        self.machines[name].notes.write(LEARNER, LOST)
        self._admit(Replica(self, name))

    def join(self, name: str) -> None:
        self.names.append(name)
        self.awake.add(name)
        self.machines[name] = machine = Machine(name)
        machine.joining = True
        self._admit(Replica(self, name))

    def _admit(self, replica: Replica) -> None:
        self.add(replica)
        for other in self.up.values():
            if other is not replica:
                for one, peer in ((other, replica.name), (replica, other.name)):
                    one.raft.told_of(peer)
                    one.connect(peer)

    # -------------------------------------------------------------- proposals and changes
    def propose(self, name: str, label: str, values: list[bytes]) -> None:
        left, said = len(values), set[bool | None]()

        def done(result: Any, applied: bool | None) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.say(f"{label}: answered once more, {OUTCOMES[applied]}")
            elif applied not in said and (left == 0 or applied is not True):
                said.add(applied)
                self.say(f"{label}: {OUTCOMES[applied]}")

        for value in values:
            self.up[name].propose(value, done)

    def ask(self, leader: str, act: Act, replica: str) -> None:
        step = Step(act, replica)

        def done(result: Any, applied: bool | None) -> None:
            if applied is False and result is not None:
                why = str(result).removeprefix(f"{step}: ")
                self.say(f"refused {'for now' if isinstance(result, ChangeNotYet) else 'for ever'}: {why}")
            else:
                self.say(f"{step}: {OUTCOMES[applied]}")

        self.up[leader].raft.change_members(step, "change", done)

    # -------------------------------------------------------------- damage and repair
    def place_of(self, name: str, index: int) -> tuple[str, int]:
        """Where the body of an entry begins: file and byte."""
        disk = self.machines[name].disk
        first = max(first for first in segment_firsts(disk) if first <= index)
        found = scan(memoryview(disk.peek(log_name(first))), FILE_HEADER_SIZE, first)
        return log_name(first), found.positions[index - first] + HEADER_SIZE

    def mend(self, name: str) -> None:
        """One round. Without the entry that it must apply next, a replica needs the leader's state."""
        replica = self.up[name]
        replica.mender.round()
        replica.sync()
        if replica.mender.lacks(replica.raft.applied_index + 1, replica.raft.leader_id):
            self.end_for_a_copy(name, "no replica holds the entry that it has to apply next")

    def snapshot(self, name: str) -> None:
        """Its log before the snapshot is dropped."""
        replica = self.up[name]
        applied = replica.raft.applied_index
        said = replica.journal.members.said(applied)
        saved = {
            "applied": applied,
            "values": [value.decode() for value in replica.applied],
            "members": None if said is None else [said[0], said[1].hex()],
        }
        replica.disk.write_atomic(SNAPSHOT, [json.dumps(saved).encode()])
        replica.journal.drop_before(applied)
        replica.sync()


OUTCOMES = {True: "applied", False: "refused", None: "its outcome is unknown"}


def is_one(mail: Mail, kind: str, sender: str | None, receiver: str | None) -> bool:
    """Whether this is a message of that kind between these two (None: anybody)."""
    is_kind = not KINDS[kind] or mail.message["type"] == KINDS[kind]
    return is_kind and sender in (None, mail.sender) and receiver in (None, mail.receiver)


def _no_pause(seconds: float) -> None:
    raise Unavailable("nobody waits on a stage", seconds)
