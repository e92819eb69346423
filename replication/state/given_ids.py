"""How long settled ids that the application chose are remembered: by time, and by number.

Ids that producers generate are used once, and a late copy of their PREPARE is refused by time. An id such as
an order number comes back: a service that restarts repeats the order, minutes or hours later. So
these are remembered for ``remember_ids_s``, apart from the others, which would push them out in seconds.

Two generations as in dedup.py, over all apps together. The younger becomes the older after that time; or when
it holds half of ``remember_ids_max``, unless ids are remembered strictly: then PREPAREs of new ids are
refused once that maximum is reached (counting open ones too). Everything here is replicated or derived from
it.
"""

from __future__ import annotations

from escrowmq.replication.state.settings import Settings

#: What an app with such ids counts in addition to them: at most some 4,000 apps stay, since all apps are
#: visited ten times a second.
APP_AS_GIVEN_IDS = 500
#: Most that one entry may add to the counted time. A leader's clock that is a day ahead ages ids by a minute,
#: not a day; where entries are rarer than this, ids are remembered for longer.
STEP_MS_MAX = 60_000


class GivenIds:
    """Counts over all apps, and when to forget. The ids themselves are in the apps' tables."""

    __slots__ = ("age_ms", "forgotten_ms", "old", "opened", "turned_ms", "young")

    def __init__(self) -> None:
        #: When ids were last forgotten, or the first was remembered; -1: never. Time of entries.
        self.turned_ms = -1
        #: The value of ``turned_ms`` before that: producers that prepared forgotten ids had not heard of
        #: anything later, so a PREPARE whose producer has not either may be a late copy. -1: none forgotten.
        self.forgotten_ms = -1
        self.age_ms = 0  # time that has passed since ``turned_ms``; see ``STEP_MS_MAX``
        self.young = self.old = 0  # remembered ids of both generations, including what apps count as
        self.opened = 0  # open transactions with such an id

    def settled(self, count: int, *, first_of_app: bool) -> None:
        """``count`` open ones have settled and are remembered from now on."""
        self.opened -= count
        self.young += count + (APP_AS_GIVEN_IDS if first_of_app else 0)

    def pass_time(self, step_ms: int) -> None:
        """An entry is applied whose time is later by ``step_ms`` than that of the previous one."""
        if self.turned_ms >= 0:
            self.age_ms += min(step_ms, STEP_MS_MAX)

    def is_time_to_forget(self, settings: Settings, now_ms: int) -> bool:
        """Whether to forget the older generation now; the caller then calls ``turned``."""
        if self.turned_ms < 0:
            self.turned_ms = now_ms
        full = self.young >= settings.remember_ids_max // 2 and not settings.remember_ids_strictly
        return full or self.age_ms >= settings.remember_ids_s * 1000

    def turned(self, now_ms: int) -> None:
        """The older generation was forgotten, and the younger one is now the older."""
        self.forgotten_ms, self.turned_ms, self.age_ms = self.turned_ms, now_ms, 0
        self.old, self.young = self.young, 0

    def reach_ms(self, settings: Settings, now_ms: int) -> int | None:
        """For how long before ``now_ms`` settled ids are remembered, if that is less than ``remember_ids_s``;
        None: the full time, or nothing was forgotten. It is less after too many ids arrived, or after the
        setting was raised: then a transaction that is repeated under an older id runs again."""
        if self.forgotten_ms < 0:
            return None
        reach_ms = max(now_ms - self.forgotten_ms, 0)
        return reach_ms if reach_ms < settings.remember_ids_s * 1000 else None

    def has_room(self, settings: Settings) -> bool:
        """Whether PREPAREs of more such ids are accepted."""
        remembered = self.opened + self.old + self.young
        return not settings.remember_ids_strictly or remembered < settings.remember_ids_max
