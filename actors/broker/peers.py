"""A broker's calls to other replicas through Ray: addresses and files of its own group, levels of all groups.

They are rare: to dial a Raft link, to copy a checkpoint. Any failure means "no answer now", and the caller
asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo, broker_name
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.repair import Manifest
from escrowmq.replication.log.peer_marks import Incarnation

#: A peer that is alive answers in milliseconds; Ray reports a dead one only after seconds.
ASK_S = 2.0
COPY_S = 30.0


class RayPeers:
    """The other replicas of one group. Any thread; blocks for a bounded time."""

    def __init__(self, info: ClusterInfo, gid: int) -> None:
        self._info, self._gid = info, gid
        self._ahead: tuple[tuple[str, str, int], Any] | None = None

    def _ask(self, peer: str, method: str, *args: Any, timeout_s: float = ASK_S) -> Any:
        try:
            actor = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            return ray.get(getattr(actor, method).remote(*args), timeout=timeout_s)
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable):
            return None  # not created yet, dead, restarting, or busy
        except AttributeError:  # an earlier version, which has no such call
            return None

    def resolve(self, peer: str) -> tuple[str, int] | None:
        """The address of the peer's Raft link."""
        address: tuple[str, int] | None = self._ask(peer, "raft_address")
        return address

    def tell_moved(self, peer: str, rid: int, own: Incarnation) -> Incarnation | None:
        """Tell the peer that replica ``rid`` is now this process; returns which one it has recorded."""
        answer = self._ask(peer, "peer_moved", rid, own.number, own.disk_id)
        if isinstance(answer, bool):  # an earlier version, which says only that it has seen this
            return own if answer else None
        return None if answer is None else Incarnation(*answer)

    def group_founded(self) -> bool | None:
        """Whether the supervisor knows that this group has had a leader; None: no answer."""
        try:
            supervisor: Any = ray.get_actor(SUPERVISOR, namespace=self._info.namespace)
            answer: bool | None = ray.get(supervisor.group_founded.remote(self._gid), timeout=ASK_S)
            return answer
        except AttributeError:  # an earlier version, which does not record it
            return False
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return None

    def founded(self, peer: str) -> bool | None:
        """Whether the peer's log has any history."""
        answer: bool | None = self._ask(peer, "founded")
        return answer

    def members(self) -> Iterable[int]:
        """The members of this group, by number, as the supervisor knows them; () if it does not answer."""
        return self._seated().get(self._gid, ())

    def _seated(self) -> Mapping[int, Sequence[int]]:
        """By group: the numbers of its replicas, as the supervisor has placed them; {}: no answer."""
        try:
            supervisor: Any = ray.get_actor(SUPERVISOR, namespace=self._info.namespace)
            found: Mapping[int, Sequence[int]] = ray.get(supervisor.seated.remote(), timeout=ASK_S)
            return found
        except AttributeError:  # an earlier version, under which the founders are the members
            return {gid: range(self._info.replicas) for gid in range(self._info.groups)}
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return {}

    def levels(self, own_group: Sequence[int]) -> dict[tuple[int, int], LevelReport | None]:
        """The format level of every replica of every group; None: no answer, or older software.
        ``own_group``: this group's members; the supervisor knows those of the other groups. Until it answers,
        those groups count as not answering, because the founders may be only some of the members."""
        seated = self._seated() if self._info.groups > 1 else {}
        members = {**seated, self._gid: own_group}
        unknown = [gid for gid in range(self._info.groups) if not members.get(gid)]
        members |= {gid: range(self._info.replicas) for gid in unknown}
        calls = {
            (gid, rid): None if gid in unknown else self._ask_level(gid, rid)
            for gid, rids in members.items()
            for rid in rids
        }
        under_way = [call for call in calls.values() if call is not None]
        if under_way:
            ray.wait(under_way, num_returns=len(under_way), timeout=ASK_S)
        return {key: None if call is None else _answered(call) for key, call in calls.items()}

    def _ask_level(self, gid: int, rid: int) -> Any | None:
        try:
            return ray.get_actor(broker_name(gid, rid), namespace=self._info.namespace).levels.remote()
        except (ValueError, AttributeError, ray.exceptions.RayError):
            return None  # not created yet, or its software has no such method

    def manifest(self, peer: str) -> Manifest | None:
        """The peer's offer, if it is the leader."""
        status, *rest = self._ask(peer, "checkpoint_manifest") or ("gone",)
        return rest[0] if status == "ok" else None

    def never_voted(self, peer: str, rid: int) -> bool | None:
        """Whether replica ``rid`` never voted, according to the peer if it certainly leads."""
        try:
            actor: Any = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            status, *rest = ray.get(actor.never_voted.remote(rid), timeout=ASK_S)
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable):
            return None
        except AttributeError:  # an earlier version, for which its log alone was decisive
            return None if self.manifest(peer) is None else True
        return bool(rest[0]) if status == "ok" else None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        """Part of a file; raises Unavailable when the peer does not answer.

        The part after it is requested at once, so that the peer reads it while the caller writes this one.
        At most one part is ahead: a copy holds two in memory, whatever the size of the log.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (peer, name, pos):
            call = ahead[1]
        else:
            call = self._start_read(peer, name, pos, size)
        following = (peer, name, pos + size)
        started = self._start_read(*following, size)
        try:
            part: bytes = ray.get(call, timeout=COPY_S)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable) as error:
            raise self._no_answer(peer) from error
        self._ahead = following, started
        return part[:size]

    def _start_read(self, peer: str, name: str, pos: int, size: int) -> Any:
        try:
            actor: Any = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            return actor.checkpoint_read.remote(name, pos, size)
        except (ValueError, ray.exceptions.RayError) as error:
            raise self._no_answer(peer) from error

    def _no_answer(self, peer: str) -> Unavailable:
        return Unavailable(f"replica {peer} of group {self._gid} does not answer", 1.0)

    def suspect(self, peer: str, name: str, size: int) -> None:
        """Our copy of a file that the peer offers is damaged; the peer checks its own."""
        self._ask(peer, "checkpoint_suspect", name, size, timeout_s=COPY_S)

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        """Entries of the peer's log, as far as it has them."""
        answer: bytes | None = self._ask(peer, "log_entries", first, last, timeout_s=COPY_S)
        return answer


def _answered(call: Any) -> LevelReport | None:
    try:
        report: LevelReport = ray.get(call, timeout=0)
        return report
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return None
