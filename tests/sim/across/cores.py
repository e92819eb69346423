"""A producer's core in virtual time."""

from __future__ import annotations

from escrowmq.actors.producer.core import ProducerCore


class VirtualCore(ProducerCore):
    """A core that never blocks for room, since there are no threads in virtual time."""

    def reserve(self, size: int) -> None:
        if not self.try_reserve(size):
            raise self.overloaded()
