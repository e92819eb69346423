"""Changes of members while clients work: more or fewer replicas, moves, node drains, joins with a full disk.

The driver requests a change from the supervisor as an operator does, and repeats the request while no
supervisor answers. At the end of each fault there are as many replicas as before; their numbers and places
may differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from escrowmq.cluster.supervisor.member_steps import ReplicaKey
from tests.chaos import audit
from tests.chaos.deployment import Stuck, until
from tests.chaos.disk_faults import DiskFaults
from tests.chaos.machines import HEAD, REPLACE_AFTER_S
from tests.chaos.plan import Fault
from tests.chaos.striking import BACK_S, dice, in_thread

#: Limit for one change: its replicas start, copy the log and vote while other processes are killed.
CHANGED_S = 180.0


class MemberFaults(DiskFaults):
    """See the module's docstring."""

    def _set_replicas(self, fault: Fault) -> Any:
        """Change from three replicas to five and back, or to one and back."""
        gid, was = self.group(fault), self.deployment.info.replicas
        other = dice(fault, "size").choice([1, 5])

        def change() -> None:
            if other == 1 and self.damaged:  # the one that stays may be the damaged copy
                audit.wait_mended(self.deployment, self.log_directory)
            for size in (other, was):
                self._say(f"group {gid} is to have {size}", lambda: self._admin.set_replicas(gid, size))  # noqa: B023
                self._until_as_wanted(gid, size)
                time.sleep(fault.seconds)

        return in_thread(f"group {gid}: {was}, {other}, {was} replicas", change)

    def _move_replica(self, fault: Fault) -> Any:
        """Move a replica to a node without one of the group, and its successor back again."""
        replica = self._to_be_moved(fault)
        gid, node, target = replica[0], self.host(replica), self._free_node(replica[0])

        def change() -> None:
            self._move(replica, target)
            time.sleep(fault.seconds)
            self._move(self._on(gid, target), node)

        return in_thread(f"{replica} from {node} to {target} and back", change)

    def _node_drain(self, fault: Fault) -> Any:
        node = self.host(self.on_a_machine(self.leader_or_follower(fault, 0.5)))

        def change() -> None:
            self._say(f"{node} is drained", lambda: self._admin.drain_node(node))
            try:
                until(f"nothing is on {node}", lambda: self._empty(node) and self._all_as_wanted(), CHANGED_S)
                time.sleep(fault.seconds)
            finally:
                self._say(f"{node} is open", lambda: self._admin.open_node(node))

        return in_thread(f"node {node} is drained", change)

    def _node_maintenance(self, fault: Fault) -> Any:
        """A node is away for longer than the usual patience, but its replicas are not replaced."""
        node, rig = self.host(self.on_a_machine(self.leader_or_follower(fault, 0.7))), self.rig()

        def change() -> None:
            before = {key: seat for key, seat in self.deployment.seats().items() if seat.node == node}
            self._say(f"{node} is in maintenance", lambda: self._admin.begin_maintenance(node))
            until(f"nobody leads on {node}", self._all_as_wanted, CHANGED_S)
            rig.kill_node(node)
            try:
                time.sleep(REPLACE_AFTER_S + fault.seconds)
                now = self.deployment.seats()
                if any(now.get(key) != seat for key, seat in before.items()):
                    raise Stuck(f"{node} is in maintenance, and what was there was replaced: {before}, {now}")
            finally:
                rig.mend()
                self._say(f"{node} is open", lambda: self._admin.open_node(node))

        return in_thread(f"node {node} is away for maintenance", change)

    def _disk_full_joining(self, fault: Fault) -> Any:
        """Fill the disk of the newcomer's or of the leader's node before a replica joins, and for a while
        after."""
        replica, rig, rng = self._to_be_moved(fault), self.rig(), dice(fault, "joining")
        gid, target = replica[0], self._free_node(replica[0])
        leaders = self.host(self.on_a_machine(self.leader(fault)))
        full = target if target != HEAD and rng.random() < 0.7 else leaders
        rig.fill_disk(full, leave=rng.choice([0, 64 << 10, 1 << 20]))

        def change() -> None:
            room = threading.Timer(fault.seconds, rig.free_disk, [full])
            room.start()
            try:
                self._move(replica, target)
            finally:
                room.join()

        return in_thread(f"{replica} to {target}, disk of {full} full, group {gid}", change)

    # -------------------------------------------------------------- parts
    @property
    def _admin(self) -> Any:
        return self.deployment.cluster.admin

    def _say(self, what: str, tell: Callable[[], None]) -> None:
        """Request a change until the supervisor answers; repeating a request changes nothing."""

        def told() -> bool:
            tell()
            return True

        until(what, told, BACK_S)

    def _move(self, replica: ReplicaKey, target: str) -> None:
        gid, rid = replica
        self._say(f"{replica} is to move to {target}", lambda: self._admin.move_replica(gid, rid, target))
        self._until_as_wanted(gid, self.deployment.info.replicas)
        until(f"{target} has a replica of group {gid}", lambda: self._on(gid, target), BACK_S)

    def _to_be_moved(self, fault: Fault) -> ReplicaKey:
        return self.on_a_machine(self.leader_or_follower(fault, 0.4))

    def _free_node(self, gid: int) -> str:
        """A node without a replica of the group; Ray's head if there is no other."""
        taken = {seat.node for (group, _), seat in self.deployment.seats().items() if group == gid}
        return next(node for node in (*self.rig().hosts, HEAD) if node not in taken)

    def _on(self, gid: int, node: str) -> ReplicaKey:
        return next(
            key for key, seat in self.deployment.seats().items() if key[0] == gid and seat.node == node
        )

    def _empty(self, node: str) -> bool:
        return all(seat.node != node for seat in self.deployment.seats().values())

    def _all_as_wanted(self) -> bool:
        return not self._admin.member_changes()

    def _until_as_wanted(self, gid: int, size: int) -> None:
        def so() -> bool:
            left = [change for change in self._admin.member_changes() if change.group == gid]
            return not left and len(self._admin.members()[gid].voters) == size

        until(f"group {gid} has {size} voters, and nothing is left to be done", so, CHANGED_S)
