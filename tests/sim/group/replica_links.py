"""One simulated replica's end of its links: its messages as the bytes that real links carry, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.format import wire

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation


class ReplicaLinks:
    """Its node sends through it (``PeerLink``), and the network calls it (``Host.links``)."""

    def __init__(self, simulation: Simulation, replica: SimReplica) -> None:
        self._sim, self._replica = simulation, replica
        #: What has arrived and was not read yet: address and bytes.
        self.inbox: list[tuple[str, bytes]] = []

    def send(self, peer: str, message: wire.Message) -> bool:
        self._replica.effect()
        own = self._replica.address
        address = self._sim.network.linked(own, peer)
        if address is not None:
            self._sim.network.send(own, address, b"".join(wire.encode(message)))
        return True

    def room(self, peer: str) -> bool:
        return self._sim.plan.room == 1.0 or self._replica.rng.random() < self._sim.plan.room

    def link_up(self, peer: str) -> None:
        self._replica.later(0, lambda: self._connected(peer))

    def _connected(self, peer: str) -> None:
        node = self._replica.node
        if peer not in self._sim.founders:
            node.told_of(peer)  # a peer that accepted the link knew the list of members
        node.connected(peer)

    def link_down(self, peer: str) -> None:
        self._replica.later(0, lambda: self._replica.node.disconnected(peer))

    def drop(self, peer: str) -> None:
        """Close the link to a process that was replaced."""
        own = self._replica.address
        address = self._sim.network.linked(own, peer)
        mark = self._replica.marks.of(peer)
        if address is not None and mark is not None and mark.supersedes(self._sim.replica_at(address).own):
            self._sim.network.cut(own, address)
            self.forget(address)

    def forget(self, address: str) -> None:
        """Ignore what has arrived from this host and was not read, as ``Connection.abort`` does."""
        self.inbox = [(sender, frame) for sender, frame in self.inbox if sender != address]

    def arrive(self, peer: str, frame: bytes) -> None:
        """Bytes from the host at address ``peer`` arrived; a paused process gets them, in order, when it
        resumes."""
        self.inbox.append((peer, frame))
        self._replica.later(0, self._read)

    def _read(self) -> None:
        if not self.inbox:
            return
        address, frame = self.inbox.pop(0)
        sender = self._sim.replica_at(address)
        peer = sender.name
        total, header = wire.PREFIX.unpack_from(frame)
        wire.check_prefix(total, header)
        begin, view = wire.PREFIX.size, memoryview(frame)
        message = wire.decode(view[begin : begin + header], view[begin + header :])
        self._sim.traced(self._replica.name, peer, message)
        self._sim.supervisor.check_counted(self._replica, sender, message)
        self._replica.node.deliver(peer, message)
        self._sim.supervisor.check_elected(self._replica)
        self._sim.look(self._replica)
        self._replica.kick()
