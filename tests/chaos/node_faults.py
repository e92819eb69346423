"""Faults on machines and the links between them: cut or slow links; killed, replaced or stopped machines."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from escrowmq.cluster.supervisor.member_steps import ReplicaKey, Seat
from tests.chaos.deployment import Deployment, gone, until
from tests.chaos.machines import HEAD, REPLACE_AFTER_S
from tests.chaos.plan import Fault
from tests.chaos.striking import Blow, Striking, dice, send, timed

#: Limit until the supervisor has rebuilt the replicas of a node that stays away: its patience, and the time
#: to copy the log.
REPLACED_S = 120.0
#: A disk stays full during a replacement for this time: until the supervisor has moved the replicas and they
#: have met their peers.
FULL_S = REPLACE_AFTER_S + 6.0
#: Limit until a replaced process has met one of its peers and has ended.
REFUSED_S = 60.0


class NodeFaults(Striking):
    """See the module's docstring."""

    def host(self, replica: ReplicaKey) -> str:
        """The host of a replica."""
        return self.deployment.seat(*replica).node

    def on_a_machine(self, replica: ReplicaKey) -> ReplicaKey:
        """The replica, or another one of its group if it is on Ray's head: the head has no small disk, and
        without the head Ray itself would be gone."""
        gid, rid = replica
        voters = self.deployment.voters(gid)
        place = voters.index(rid) if rid in voters else 0
        candidates = [(gid, other) for other in voters[place:] + voters[:place]]
        return next(one for one in candidates if self.host(one) != HEAD)

    # -------------------------------------------------------------- links

    def _network(self, fault: Fault, host: str, change: Callable[[], None]) -> Any:
        return timed(fault, f"node {host}", change, self.rig().heal)

    def _leader_cut(self, fault: Fault) -> Any:
        host = self.host(self.leader(fault))
        return self._network(fault, host, lambda: self.rig().cut_off(host))

    def _follower_cut(self, fault: Fault) -> Any:
        host = self.host(self.follower(fault))
        return self._network(fault, host, lambda: self.rig().cut_off(host))

    def _link_cut(self, fault: Fault) -> Any:
        one, other = self.host(self.leader(fault)), self.host(self.follower(fault))
        return self._network(fault, one, lambda: self.rig().cut(one, other))

    def _slow_links(self, fault: Fault) -> Any:
        host = self.host(self.leader(fault))
        return self._network(fault, host, lambda: self.rig().slow_down(host, fault.delay_s))

    # -------------------------------------------------------------- nodes

    def _node_kill(self, fault: Fault) -> Any:
        """Kill the raylet alone, whose processes must notice that themselves, or the whole machine."""
        host, rig = self.host(self.on_a_machine(self.leader(fault))), self.rig()
        if fault.target % 2:
            return timed(fault, f"raylet of {host}", lambda: rig.kill_raylet(host), rig.mend)
        return timed(fault, f"node {host}", lambda: rig.kill_node(host), rig.mend)

    @contextlib.contextmanager
    def _node_replaced(self, fault: Fault) -> Iterator[Blow]:
        """Kill a machine for good. Sometimes another disk is full for a while: that of a peer, which has to
        record the successor, or that of the successor's machine. With a full peer the group has no majority
        that can write."""
        rig, rng = self.rig(), dice(fault, "replaced")
        host = self.host(self.on_a_machine(self.leader_or_follower(fault, 0.5)))
        others = [other for other in rig.hosts if other != host]
        full = rng.choice(others) if rng.random() < 0.5 else None
        before = on_host(self.deployment, host)
        if full is not None:
            rig.fill_disk(full, leave=rng.choice([0, 64 << 10, 1 << 20]))
        room = threading.Timer(FULL_S, rig.free_disk, [full]) if full is not None else None
        blow = Blow(time.monotonic_ns(), f"node {host}" + (f", disk of {full} full" if full else ""))
        rig.kill_node(host)
        if room is not None:
            room.start()
        try:
            yield blow
            until(f"what was on {host} has another place", lambda: moved(self.deployment, before), REPLACED_S)
            time.sleep(fault.seconds)
        finally:
            if room is not None:
                room.join()
        until(f"{host} is replaced", lambda: moved(self.deployment, before, whole=True), REPLACED_S)

    @contextlib.contextmanager
    def _ghost(self, fault: Fault) -> Iterator[Blow]:
        """Stop a raylet, its brokers, both, or a whole machine; continue it when the successors have started,
        or only when they are full members."""
        rig, rng = self.rig(), dice(fault, "ghost")
        host = self.host(self.on_a_machine(self.leader_or_follower(fault, 0.6)))
        before = on_host(self.deployment, host)
        pids = self.pids(sorted(before))
        raylet = rig.raylet(host)
        what = rng.choice(["raylet", "raylet and brokers", "brokers", "all"])
        still = {
            "raylet": [raylet],
            "raylet and brokers": [raylet, *pids],
            "brokers": pids,
            "all": rig.processes(host),
        }[what]
        whole = rng.random() < 0.5
        for pid in still:
            send(pid, signal.SIGSTOP)
        blow = Blow(time.monotonic_ns(), f"{what} of {host}")
        if what == "brokers":  # a node that answers keeps its replicas; stopped ones do not notice its end
            send(raylet, signal.SIGKILL)
        try:
            yield blow
            until(
                f"what was on {host} is rebuilt",
                lambda: moved(self.deployment, before, whole=whole),
                REPLACED_S,
            )
            time.sleep(fault.seconds)
        finally:
            for pid in still:
                send(pid, signal.SIGCONT)
        until("the processes that were replaced have ended", lambda: all(map(gone, pids)), REFUSED_S)
        until(f"what was on {host} counts", lambda: moved(self.deployment, before, whole=True), REPLACED_S)


def on_host(deployment: Deployment, host: str) -> dict[ReplicaKey, Seat]:
    """The replicas on a host."""
    return {key: seat for key, seat in deployment.seats().items() if seat.node == host}


def moved(deployment: Deployment, before: dict[ReplicaKey, Seat], *, whole: bool = False) -> bool:
    """Whether each of these replicas has a later incarnation (``whole``: one that is a full member)."""
    now = deployment.seats()
    running = deployment.running() if whole else set(now)
    return all(now[key].incarnation > seat.incarnation and key in running for key, seat in before.items())
