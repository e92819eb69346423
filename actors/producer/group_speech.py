"""Which version a producer uses towards one broker group, and the latest time it has heard from there. Pure.

A group accepts version 2 of PREPARE, or of MESSAGE, once all replicas of the cluster run software that knows
it; there is one ``GroupSpeech`` for each of the two. A producer tries: a refusal costs one round trip, and is
all that older software can answer. Until the first success, version 2 is sent in separate requests, so that a
refusal affects nothing else. A group never goes back to an older version, so the first success is final.
"""

from __future__ import annotations

from escrowmq.actors.client.failures import Failure, FailureKind

#: For how long version 1 is used after a refusal. A new cluster accepts version 2 within a second; during an
#: upgrade, one or two refused requests a second do not matter.
TRY_AGAIN_S = 0.5


class GroupSpeech:
    """What one producer knows of one group. Used by one thread (the router's)."""

    __slots__ = ("_settled", "_try_again_at", "heard_ms", "version")

    def __init__(self) -> None:
        #: The version used now.
        self.version = 2
        #: The newest time of an entry of the group, from its answers; -1: none yet.
        self.heard_ms = -1
        self._settled = False
        self._try_again_at: float | None = None  # None: from the next ``pass_time`` on

    @property
    def is_settled(self) -> bool:
        """Whether the group has accepted version 2."""
        return self._settled

    @property
    def is_attempt(self) -> bool:
        """Whether version 2 is used although it may be refused."""
        return self.version == 2 and not self._settled

    def pass_time(self, now: float) -> None:
        """Switches back to version 2 a while after it was refused."""
        if self.version == 2:
            return
        if self._try_again_at is None:
            self._try_again_at = now + TRY_AGAIN_S
        elif now >= self._try_again_at:
            self.version = 2

    def heard(self, time_ms: int) -> None:
        """Takes the group's time from an answer."""
        if time_ms > self.heard_ms:
            self.heard_ms = time_ms

    def taken(self) -> None:
        """The group has accepted a request of version 2."""
        self._settled, self.version = True, 2

    def refused(self, failure: Failure) -> bool:
        """A request of version 2 ended in ``failure``: returns whether to send it again, in ``version``.

        Brokers from before version 2 can only report it as malformed; if it really is, so is version 1 of it.
        """
        if self._settled:
            # It was answered before the group had raised its level, which is never lowered.
            return failure.kind is FailureKind.UNSUPPORTED
        if failure.kind not in (FailureKind.UNSUPPORTED, FailureKind.MALFORMED):
            return False
        self.version, self._try_again_at = 1, None
        return True
