"""The producers of one app at one process: each has a single poll parked, whatever topics it has.

Checks of all the app's topics leave with the parked poll. Checks handed out in one turn of the
event loop leave together. This must never hold more than one poll of a producer, nor keep a check that a
producer does not get with this poll or the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from escrowmq.feedback.asking.owners import Owners
from escrowmq.feedback.asking.topic_feedback import Handed, TopicFeedback

#: The answer to a poll: ("ok", checks) or ("retry", seconds).
Polled = tuple[str, Any]


@dataclass(slots=True, eq=False)
class Present:
    """One producer. ``poll``: its parked poll; ``outgoing``: checks that leave with it."""

    instance: str
    last_seen: float
    room: int = 0
    fence: bytes = b""
    led_elsewhere: bool = False  # its last check found another table than ``fence``
    poll: asyncio.Future[Polled] | None = None
    outgoing: list[Handed] = field(default_factory=list)
    leaving: bool = False  # ``outgoing`` leaves at the end of this turn


class AppProducers:
    """One event loop. ``told`` is called for each poll that ended."""

    def __init__(self, app: str, gone_s: float, told: Callable[[AppProducers, Present], None]) -> None:
        self.app = app
        #: When each of them was last online, whatever topics had something to do meanwhile.
        self.owners = Owners(gone_s, _now())
        #: Topics of the app that have checks on hand, and so are told of its producers.
        self.awake: dict[TopicFeedback, None] = {}
        #: Topics with feedback here, which share ``owners``; they are dropped with the app.
        self.hosted: dict[str, TopicFeedback] = {}
        #: Topics that may have something due, with the number of the latest news for each broker group.
        #: ``starved``: some of them wait for a producer with room.
        self.due: dict[str, dict[int, int]] = {}
        self.starved = False
        self.parked = 0
        self.last_poll_at = _now()
        self._told = told
        self._present: dict[str, Present] = {}  # ordered by last poll, the latest at the end

    def arrive(self, instance: str, room: int, limit: int) -> Present | None:
        """A poll arrived. A producer that polls again has given up its older poll. None: too many
        producers."""
        now = self.last_poll_at = _now()
        self.owners.heard(instance, now)
        present = self._present.pop(instance, None)
        if present is None:
            while len(self._present) >= limit:
                oldest = next(iter(self._present.values()))
                if oldest.poll is not None:
                    return None
                del self._present[oldest.instance]
            present = Present(instance, now)
        self._present[instance] = present
        self.end_poll(present, ("ok", []))
        present.last_seen, present.room = now, room
        return present

    def park(self, present: Present) -> asyncio.Future[Polled]:
        """Park its poll."""
        assert present.poll is None
        poll: asyncio.Future[Polled] = asyncio.get_running_loop().create_future()
        present.poll = poll
        self.parked += 1
        if present.outgoing:
            self._leave_soon(present)
        return poll

    def end_poll(self, present: Present, answer: Polled, only: asyncio.Future[Polled] | None = None) -> None:
        """Answer the parked poll (with ``only``: if it is still that one). Checks waiting for it go with
        it."""
        poll = present.poll
        if poll is None or (only is not None and poll is not only):
            return
        present.poll, present.last_seen = None, _now()
        self.owners.heard(present.instance, present.last_seen)
        self.parked -= 1
        if present.outgoing:
            answer, present.outgoing = ("ok", present.outgoing), []
        if not poll.done():
            poll.set_result(answer)
        self._told(self, present)

    def hand(self, instance: str, checks: list[Handed]) -> None:
        """Send these to this producer with its poll."""
        present = self._present.get(instance)
        if present is not None:  # otherwise it left without confirming the checks, and they come back
            present.outgoing += checks
            self._leave_soon(present)

    def _leave_soon(self, present: Present) -> None:
        if not present.leaving:
            present.leaving = True
            asyncio.get_running_loop().call_soon(self._leave_now, present)

    def _leave_now(self, present: Present) -> None:
        present.leaving = False
        self.end_poll(present, ("ok", []))

    def remove(self, instance: str, *, idle: bool) -> None:
        """It closed. ``idle``: it runs no local transaction."""
        present = self._present.get(instance)
        if present is not None:
            self.end_poll(present, ("ok", []))
            del self._present[instance]
        if idle:
            self.owners.closed(instance)

    def get(self, instance: str) -> Present | None:
        """The producer with this name, if it polled recently."""
        return self._present.get(instance)

    def room(self, enough: int, silent_s: float) -> int:
        """How many checks the producers that can be asked accept now; counted up to ``enough``."""
        since, total = _now() - silent_s, 0
        for present in reversed(self._present.values()):
            if present.poll is not None or present.last_seen > since:
                total += present.room
                if total >= enough:
                    return enough
        return total

    def longest_parked(self) -> Present | None:
        """The producer whose poll has waited longest."""
        return next((present for present in self._present.values() if present.poll is not None), None)

    def online(self, silent_s: float) -> list[Present]:
        """Producers that can be asked: a poll is parked, or ended a moment ago."""
        since = _now() - silent_s
        return [p for p in self._present.values() if p.poll is not None or p.last_seen > since]

    def close(self) -> None:
        """Send all of them away."""
        for present in list(self._present.values()):
            self.end_poll(present, ("ok", []))


def _now() -> float:
    return asyncio.get_running_loop().time()
