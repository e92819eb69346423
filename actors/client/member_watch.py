"""Keeps clients' lists of a group's replicas up to date, by the version of the group's members.

A client starts with the founders, or with the members at the time it connected. Members change later, one
after the other, and a client that is idle meanwhile may know none that is left. So each group's list is
checked from time to time, and soon if a leader appears that is not on it: a replica is asked, and if requests
wait in vain for a leader, also the supervisor, which knows where all replicas are. An older list changes
nothing (``LeaderFollower.follow``).

It is pumped in the router's turns, and asks one question at a time for each group; one without an
answer is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.calling.leader import LeaderFollower

#: Members change rarely, and in steps that take seconds each; a list that is old by this much does no harm
#: while a leader is known, which says itself when it no longer leads.
LOOK_EVERY_S: Final = 30.0
#: After this time without a leader (an election takes less) there may be other replicas than those asked.
ASTRAY_S: Final = 2.0

Call = Callable[[int, int, str, tuple[Any, ...], OnAnswer], None]


class Led(Protocol):
    """What the watch needs from a group's channel."""

    @property
    def follower(self) -> LeaderFollower: ...
    @property
    def searching(self) -> bool: ...


@dataclass(slots=True)
class _Group:
    channel: Led
    look_at: float
    astray_since: float | None = None
    question: int = 0  # number of the newest one; only its answer counts


class MemberWatch:
    """A ``Source`` of the router. ``call``: ``ReplicaCalls.call``. ``post``: to the router."""

    def __init__(
        self, channels: Sequence[Led], call: Call, post: Callable[[Callable[[], None]], None], now: float
    ) -> None:
        self._call, self._post = call, post
        self._groups = [_Group(channel, now + LOOK_EVERY_S) for channel in channels]

    def pump(self, now: float) -> float:
        """Ask what is due; returns the time of the next question."""
        wake = float("inf")
        for gid, group in enumerate(self._groups):
            if not group.channel.searching and group.channel.follower.stranger is None:
                group.astray_since = None
            elif group.astray_since is None:
                group.astray_since = now
                group.look_at = min(group.look_at, now + ASTRAY_S)
            if now >= group.look_at:
                group.look_at = now + (LOOK_EVERY_S if group.astray_since is None else ASTRAY_S)
                self._ask(gid, group)
            wake = min(wake, group.look_at)
        return wake

    def _ask(self, gid: int, group: _Group) -> None:
        group.question += 1
        answered = partial(self._answered, group, group.question)
        follower = group.channel.follower
        if follower.leader is None and group.question % 2:
            self._call(gid, SUPERVISOR_RID, "members_of", (gid,), answered)
            return
        members = follower.members
        rid = members[group.question % len(members)] if follower.leader is None else follower.leader
        self._call(gid, rid, "members", (), answered)

    def _answered(self, group: _Group, question: int, answer: Any, error: BaseException | None) -> None:
        """In any thread. A replica of an earlier version, which does not know the question, answers with an
        error: then the members are the founders. A configuration that is not applied may be cut off again,
        and another one may then get its version number, which would then be ignored here: so it is not
        adopted."""
        if error is None and isinstance(answer, MembersReport) and answer.applied:
            self._post(lambda: self._follow(group, question, answer))

    def _follow(self, group: _Group, question: int, answer: MembersReport) -> None:
        if question == group.question:
            group.channel.follower.follow(answer.version, answer.all)

    def stopped(self, detail: str) -> None:
        """See ``Source``."""
