"""The producers of one app at one process: each has a single poll parked, whatever topics it has.

Checks of all the app's topics leave with the parked poll. Checks handed out in one turn of the
event loop leave together. This must never hold more than one poll of a producer, nor keep a check that a
producer does not get with this poll or the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from escrowmq.feedback.asking.live_producers import Owners
from escrowmq.feedback.asking.topic_feedback import Handed, TopicFeedback
from escrowmq.feedback.config import FeedbackConfig

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


# ------------------------------------------------------------------------------------------------------------
# The apps whose producers poll at one process, and how many of their polls it parks.
#
# There are bounds for each app and for all. A producer beyond one is sent away with a time after which to
# come back, and the log says so. The app with most polls makes room first, so that no app's crowd keeps
# another out. This must never send a producer away without a time.

# ------------------------------------------------------------------------------------------------------------
# How long producers' polls are parked: longer, the more producers share one feedback process.
#
# A parked poll costs nothing, but each one that ends and comes again costs 1 to 2.5 ms of processor time
# in the actor and about 1 ms in the producer, nearly all of it Ray's. With polls of a fixed 5 s, ten
# thousand idle producers need five cores; with fewer cores, polls queue before the actor instead of
# being parked in it, and checks queue with them. So the rate is bounded, not the length. Pure: takes ``now``.


class PollPace:
    """Counts the producers that poll; it remembers as many as make a difference.

    Producers are counted, not parked polls: when the processor is the bottleneck few polls are parked,
    and that is when they must become longer.
    """

    def __init__(self, config: FeedbackConfig) -> None:
        self._config = config
        self._longest_s = max(config.poll_wait_max_s, config.poll_wait_s)
        self._count_max = math.ceil(self._longest_s * config.polls_per_s)
        self._seen: dict[str, float] = {}  # instance -> its last poll; the oldest first

    def arrive(self, instance: str, now: float) -> None:
        """A poll arrived."""
        self._seen.pop(instance, None)
        self._seen[instance] = now
        while len(self._seen) > self._count_max or self._oldest() < now - 2 * self._longest_s:
            del self._seen[next(iter(self._seen))]

    def leave(self, instance: str) -> None:
        """It will not poll again."""
        self._seen.pop(instance, None)

    @property
    def producers(self) -> int:
        """How many polled recently; no more than make a difference."""
        return len(self._seen)

    def wait_s(self) -> float:
        """How long a poll that arrives now may be parked."""
        return min(max(len(self._seen) / self._config.polls_per_s, self._config.poll_wait_s), self._longest_s)

    def retry_s(self) -> float:
        """When a producer that is sent away comes back: such calls cost as much as polls that end."""
        return self.wait_s() / self._config.poll_wait_s

    def _oldest(self) -> float:
        return next(iter(self._seen.values()))


log = logging.getLogger(__name__)

#: How often the log repeats that a bound is reached.
SAY_EVERY_S = 60.0
#: Apps among which a silent one is searched when there are too many.
SILENT_AMONG = 100


class PollAdmission:
    """All apps of one process. ``new(app)`` is called for an unknown app, ``ended`` for each poll that
    ends. ``forget(app)`` drops a silent one; False if it is in use."""

    def __init__(
        self,
        what: str,
        config: FeedbackConfig,
        rng: random.Random,
        clock: Callable[[], float],
        *,
        new: Callable[[str], None],
        ended: Callable[[AppProducers, Present], None],
        forget: Callable[[AppProducers], bool],
    ) -> None:
        #: By name; the one without a poll for longest first.
        self.apps: OrderedDict[str, AppProducers] = OrderedDict()
        self.counts, self.parked = Counter[str](), 0
        self.pace = PollPace(config)
        self._what, self._config, self._rng, self._clock = what, config, rng, clock
        self._new, self._ended, self._forget = new, ended, forget
        self._said: dict[str, float] = {}

    def app(self, name: str) -> AppProducers:
        """Its producers; from now on the app is known."""
        producers = self.apps.get(name)
        if producers is None:
            producers = self.apps[name] = AppProducers(name, self._config.owner_gone_s, self._poll_ended)
            self._new(name)
        return producers

    def _poll_ended(self, producers: AppProducers, present: Present) -> None:
        self.parked -= 1
        self._ended(producers, present)

    def has_room_for(self, name: str) -> bool:
        """Whether the app is known, or there is room for it."""
        if name in self.apps or len(self.apps) < self._config.apps_max:
            return True
        if any(self._forget(app) for app in list(islice(self.apps.values(), SILENT_AMONG))):
            return True
        self.say("apps", "%d apps poll here: producers of further ones are sent away", len(self.apps))
        return False

    def may_park(self, producers: AppProducers, beyond: int) -> bool:
        """Whether one more poll may be parked. ``beyond``: how far above the app's bound, if checks wait for
        this producer alone. If necessary, another poll is sent away for it."""
        config = self._config
        if producers.parked >= config.polls_parked_max + beyond:
            text = "app %r has %d polls parked: more are sent away"
            self.say("app_polls", text, producers.app, producers.parked)
            return False
        if self.parked >= config.shard_polls_max:
            self.say("polls", "%d polls are parked here: some are sent away for others", self.parked)
            # Among apps with equally many, the one that polled longest ago: so they take turns.
            most = max(self.apps.values(), key=lambda app: app.parked)
            longest = most.longest_parked()
            assert longest is not None
            most.end_poll(longest, self.away())
        return True

    def away(self) -> Polled:
        """The answer to a poll for which there is no room."""
        self.counts["polls_refused"] += 1
        return "retry", self.pace.retry_s() * self._rng.uniform(0.5, 1.5)

    def say(self, what: str, text: str, *args: Any) -> None:
        """Log a warning, each kind once a minute."""
        now = self._clock()
        if now - self._said.get(what, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said[what] = now
            log.warning(f"{self._what}: {text}", *args)
