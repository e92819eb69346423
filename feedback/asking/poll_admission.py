"""The apps whose producers poll at one process, and how many of their polls it parks.

There are bounds for each app and for all. A producer beyond one is sent away with a time after which to come
back, and the log says so. The app with most polls makes room first, so that no app's crowd keeps another
out. This must never send a producer away without a time.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Any

from escrowmq.feedback.asking.app_producers import AppProducers, Polled, Present
from escrowmq.feedback.asking.poll_pace import PollPace
from escrowmq.feedback.config import FeedbackConfig

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

    def has_place_for(self, name: str) -> bool:
        """Whether the app is known, or there is room for it."""
        if name in self.apps or len(self.apps) < self._config.apps_max:
            return True
        if any(self._forget(app) for app in list(islice(self.apps.values(), SILENT_AMONG))):
            return True
        self.say("apps", "%d apps poll here: producers of further ones are sent away", len(self.apps))
        return False

    def has_place_to_park(self, producers: AppProducers, beyond: int) -> bool:
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
        """The answer to a poll for which there is no place."""
        self.counts["polls_refused"] += 1
        return "retry", self.pace.retry_s() * self._rng.uniform(0.5, 1.5)

    def say(self, what: str, text: str, *args: Any) -> None:
        """Log a warning, each kind once a minute."""
        now = self._clock()
        if now - self._said.get(what, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said[what] = now
            log.warning(f"{self._what}: {text}", *args)
