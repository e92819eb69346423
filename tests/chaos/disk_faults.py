"""Faults on disks: a full disk, a disk that fills up repeatedly, and bytes that flip in the logs."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from escrowmq.actors.client.topology import broker_name
from escrowmq.cluster.supervisor.member_steps import ReplicaKey
from tests.chaos.damage import Flip, flip, places_to_damage
from tests.chaos.deployment import gone, until
from tests.chaos.node_faults import NodeFaults
from tests.chaos.plan import Fault
from tests.chaos.striking import BACK_S, Blow, dice, send, timed

#: Range of the room that a filling disk repeatedly gets, and the time between two times.
ROOM_BYTES, ROOM_EVERY_S = (4 << 10, 256 << 10), 0.15


class DiskFaults(NodeFaults):
    """See the module's docstring."""

    #: (group, entry) whose copy on some replica was damaged. None is damaged twice, so sound copies stay.
    damaged: set[tuple[int, int]]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.damaged = set()

    def _with_disk(self, fault: Fault, leaders: float) -> tuple[ReplicaKey, str]:
        """A replica on a separate disk, and its host."""
        replica = self.on_a_machine(self.leader_or_follower(fault, leaders))
        return replica, self.host(replica)

    def _disk_full(self, fault: Fault) -> Any:
        (replica, host), rig = self._with_disk(fault, 2 / 3), self.rig()
        victim = f"{broker_name(*replica)} on {host}"
        return timed(fault, victim, lambda: rig.fill_disk(host), lambda: rig.free_disk(host))

    @contextlib.contextmanager
    def _disk_full_restart(self, fault: Fault) -> Iterator[Blow]:
        """The disk stays full until the process has started on it, and then for the fault's duration."""
        (replica, host), rig = self._with_disk(fault, 2 / 3), self.rig()
        (pid,) = self.pids([replica])
        name = broker_name(*replica)
        rig.fill_disk(host)
        try:
            blow = Blow(time.monotonic_ns(), name)
            send(pid, signal.SIGKILL)
            yield blow
            self.until_back(name, pid)
            time.sleep(fault.seconds)
        finally:
            rig.free_disk(host)

    @contextlib.contextmanager
    def _disk_fills(self, fault: Fault) -> Iterator[Blow]:
        """A write of any file (segment, sidecar, snapshot, run file) may be the one that finds no room."""
        (replica, host), rig, rng = self._with_disk(fault, 1 / 3), self.rig(), dice(fault, "fills")
        ending = threading.Event()

        def breathe() -> None:
            while not ending.wait(ROOM_EVERY_S):
                rig.give_back(host, rng.randint(*ROOM_BYTES))

        thread = threading.Thread(target=breathe, name="breathe", daemon=True)
        rig.fill_disk(host, leave=rng.randint(*ROOM_BYTES))

        def heal() -> None:
            ending.set()
            thread.join()
            rig.free_disk(host)

        with timed(fault, f"{broker_name(*replica)} on {host}", thread.start, heal) as blow:
            yield blow

    # -------------------------------------------------------------- damage

    @contextlib.contextmanager
    def _two_damages(self, fault: Fault) -> Iterator[Blow]:
        """Damage two replicas. Other replicas have a sound copy of every damaged entry, unless another fault
        strikes them."""
        gid, rng = self.group(fault), dice(fault, "damages")
        first, second = rng.sample(self.deployment.voters(gid), 2)
        victims = [(gid, first), (gid, second)]
        killed = [victim for victim in victims if rng.random() < 0.5]
        with self._flipped(fault, victims, killed) as blow:
            yield blow

    @contextlib.contextmanager
    def _disk_full_mending(self, fault: Fault) -> Iterator[Blow]:
        (replica, host), rig = self._with_disk(fault, 1 / 3), self.rig()
        rig.fill_disk(host)
        try:
            killed = [replica] if dice(fault, "mending").random() < 0.5 else []
            with self._flipped(fault, [replica], killed) as blow:
                yield blow
            time.sleep(fault.seconds)
        finally:
            rig.free_disk(host)

    @contextlib.contextmanager
    def _flipped(self, fault: Fault, victims: list[ReplicaKey], killed: list[ReplicaKey]) -> Iterator[Blow]:
        flips = until("there are entries to damage", lambda: self._chosen(fault, victims), BACK_S)
        pids = self.pids(killed) if killed else []
        for pid in pids:
            send(pid, signal.SIGKILL)
        until("the killed have ended", lambda: all(map(gone, pids)), BACK_S)
        struck_at = time.monotonic_ns()
        for one in flips:
            flip(one)
        names = [broker_name(*victim) + (" (killed)" if victim in killed else "") for victim in victims]
        places = ", ".join(f"r{one.replica}:{one.index}" for one in flips)
        yield Blow(struck_at, f"{' and '.join(names)}: {places}")

    def _chosen(self, fault: Fault, victims: list[ReplicaKey]) -> list[Flip] | None:
        """Choose one to three places in each log; None if the logs have too few entries so far."""
        gid, rng = self.group(fault), dice(fault, "places")
        directories = {rid: self.log_directory((gid, rid)) for rid in self.deployment.voters(gid)}
        used = {index for group, index in self.damaged if group == gid}
        counts = {rid: rng.randint(1, 3) for _, rid in victims}
        chosen = places_to_damage(directories, counts, used, rng)
        if chosen is not None:
            self.damaged |= {(gid, one.index) for one in chosen}
        return chosen
