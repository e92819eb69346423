"""In which version a producer speaks to one broker group, and what time it has heard from there. Pure.

A group takes PREPAREs of version 2, or MESSAGEs of version 2, once all replicas of the cluster run software
that knows them; of each there is a ``GroupSpeech``. A producer tries: a refusal costs one round trip, and is
all that older software can answer. Until the first success they travel in requests of their own, so that a
refusal hits nothing else. A group never goes back, so the first success settles it for good.
"""

from __future__ import annotations

from escrowmq.actors.client.failures import Failure, FailureKind

#: After a refusal version 1 is spoken for so long. A new cluster takes version 2 within a second; during an
#: upgrade a refused request a second is nothing.
TRY_AGAIN_S = 0.5


class GroupSpeech:
    """What one producer knows of one group. One thread (the router's)."""

    __slots__ = ("_settled", "_try_again_at", "heard_ms", "version")

    def __init__(self) -> None:
        #: In which they are sent now.
        self.version = 2
        #: The newest time of an entry of the group that its answers told; -1: none.
        self.heard_ms = -1
        self._settled = False
        self._try_again_at: float | None = None  # None: from the next ``pass_time`` on

    @property
    def is_settled(self) -> bool:
        """Whether the group has taken version 2."""
        return self._settled

    @property
    def is_attempt(self) -> bool:
        """Whether version 2 is spoken and may be refused."""
        return self.version == 2 and not self._settled

    def pass_time(self, now: float) -> None:
        """Speak version 2 again a while after it was refused."""
        if self.version == 2:
            return
        if self._try_again_at is None:
            self._try_again_at = now + TRY_AGAIN_S
        elif now >= self._try_again_at:
            self.version = 2

    def heard(self, time_ms: int) -> None:
        """An answer told the group's time."""
        if time_ms > self.heard_ms:
            self.heard_ms = time_ms

    def taken(self) -> None:
        """The group has answered one of version 2."""
        self._settled, self.version = True, 2

    def refused(self, failure: Failure) -> bool:
        """One of version 2 ended in ``failure``: whether it is to be sent again, in ``version``.

        Brokers from before version 2 can say of it only that it is malformed; if it is, so is the other.
        """
        if self._settled:
            # It was answered before the group had raised its level, and there is no way down.
            return failure.kind is FailureKind.UNSUPPORTED
        if failure.kind not in (FailureKind.UNSUPPORTED, FailureKind.MALFORMED):
            return False
        self.version, self._try_again_at = 1, None
        return True
