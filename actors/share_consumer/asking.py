"""Which broker groups a share consumer asks for messages, when, and for how many.

There is no assignment: any consumer may ask any broker group. Up to eight of them are asked at a time, and a
call waits at the leader until there is something. Groups take turns, so each is asked, however many there
are. Nothing is asked for that the application does not want: what lies in this buffer, no other consumer
gets.

Pure: takes ``now``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from escrowmq.replication.errors import EscrowMQError

#: After a failed call. The channel has repeated it for its whole time by then.
FAILED_PAUSE_S = 0.5
#: After an answer without messages of a broker group that has no partition of the consumer's topics.
OTHERS_PAUSE_S = 5.0


@dataclass(slots=True, eq=False)
class AskedGroup:
    """A broker group. ``other``: it had no partition of the consumer's topics. It may still have retries of
    the group, from topics that were deleted or that others read, and partitions of a topic that was created
    again: so it is asked now and then, and nobody waits for it."""

    gid: int
    other: bool = False
    #: Messages asked for in the call under way; 0: there is none.
    asked: int = 0
    #: The number of this call, and that of the last answer that brought messages: see ``share_answers``.
    call: int = 0
    received: int = -1
    not_before: float = 0.0
    troubled_since: float | None = None
    error: EscrowMQError | None = None


class Asking:
    """See the module's text. Every method runs under the consumer's lock."""

    def __init__(
        self, gids: Iterable[int], at_a_time: int, wait_s: float, others: Iterable[int] = ()
    ) -> None:
        """``others``: see ``AskedGroup.other``."""
        self._groups = deque(AskedGroup(gid) for gid in gids)
        self._at_a_time = at_a_time
        #: How long a leader may wait for messages. Shorter if groups wait for their turn meanwhile.
        self.wait_s = wait_s / -(-max(len(self._groups), 1) // at_a_time)
        self._groups.extend(AskedGroup(gid, other=True) for gid in others)

    def next(self, now: float, buffered: int, target: int) -> list[AskedGroup]:
        """Groups to ask now, each for ``asked`` messages, if ``target`` are wanted in the buffer. The caller
        reports the answers.

        Each group is asked for its share of what is missing: which of them has messages is not known before.
        At least for one: a call that waits at a group without messages must not keep others unasked.
        """
        ready = self._ready(now, buffered, target)
        if ready:
            missing = target - buffered - sum(group.asked for group in self._groups)
            share = max(-(-missing // len(ready)), 1)
            for group in ready:
                group.asked = share
                group.call += 1
                self._groups.remove(group)
                self._groups.append(group)
        return ready

    def may_ask(self, now: float, buffered: int, target: int) -> bool:
        """Whether ``next`` has something."""
        return bool(self._ready(now, buffered, target))

    def _ready(self, now: float, buffered: int, target: int) -> list[AskedGroup]:
        """Nothing as long as half of what is wanted is there, so that calls are few."""
        if not target or 2 * buffered > target:
            return []
        free = self._at_a_time - sum(1 for group in self._groups if group.asked)
        ready = [group for group in self._groups if not group.asked and group.not_before <= now]
        return ready[: max(free, 0)]

    def answered(self, group: AskedGroup, again_s: float, now: float) -> None:
        """The leader has answered; without messages, it may say when to ask again."""
        group.asked, group.troubled_since, group.error = 0, None, None
        group.not_before = now + again_s

    def failed(self, group: AskedGroup, error: EscrowMQError, now: float, asked_at: float) -> None:
        """There was no answer, or one that says why there are no messages."""
        group.asked, group.error = 0, error
        group.not_before = now + (OTHERS_PAUSE_S if group.other else FAILED_PAUSE_S)
        if group.troubled_since is None and not group.other:
            group.troubled_since = asked_at

    def next_ask(self, now: float) -> float:
        """When a group that may not be asked now may be; infinity if there is none."""
        times = (group.not_before for group in self._groups if not group.asked and group.not_before > now)
        return min(times, default=float("inf"))

    def trouble(self, now: float, for_s: float) -> EscrowMQError | None:
        """Why some group has given no answer for so long, or never will."""
        for group in self._groups:
            if group.error is None or group.troubled_since is None:
                continue
            if not hasattr(group.error, "retry_after_s") or now - group.troubled_since >= for_s:
                return group.error
        return None
