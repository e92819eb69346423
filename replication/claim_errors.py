"""Errors of named producers, beside ``ProducerFenced``. As those of errors.py: each is rebuilt from its
``args``."""

from __future__ import annotations

from escrowmq.replication.errors import EscrowMQError


class OutOfStep(EscrowMQError):
    """A numbered transaction of a named producer does not follow the last one. Nothing was done. ``last``:
    the number of the last one that is committed; it may be ``number``, with other messages."""

    def __init__(self, transactional_id: str, number: int, last: int) -> None:
        super().__init__(transactional_id, number, last)
        self.transactional_id, self.number, self.last = transactional_id, number, last

    def __str__(self) -> str:
        why = "is committed with other messages" if self.number == self.last else "comes too late"
        return (
            f"transaction {self.number} of {self.transactional_id!r} {why}: number {self.last} is the last "
            "that is committed. Whatever counts the numbers has gone back, perhaps to a backup: find out "
            "which of its messages are in the broker already"
        )
