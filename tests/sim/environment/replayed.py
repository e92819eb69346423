"""Blocking steps of a client in virtual time, without a thread.

Each answer runs the steps from the beginning again, with the answers that are known so far. So they must ask
the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.share_groups import Submit
from escrowmq.replication.errors import Overloaded

__all__ = ["Replayed", "Submit"]


class _Ask(Exception):
    """The next request, and the group it goes to."""

    def __init__(self, gid: int, request: bytes) -> None:
        self.gid, self.request = gid, request


class Replayed:
    """``steps`` sends requests with the function that it is given. ``ask`` gets each request, and what was
    answered goes to ``answered``; ``then`` gets the result, or ``refused`` the error, if it is
    ``Overloaded``."""

    def __init__(
        self,
        steps: Callable[[Submit], Any],
        ask: Callable[[int, bytes], None],
        then: Callable[[Any], None],
        refused: Callable[[Overloaded], None],
    ) -> None:
        self._steps, self._ask, self._then, self._refused = steps, ask, then, refused
        self._answers: list[tuple[int, Any]] = []

    def answered(self, answer: tuple[int, Any]) -> None:
        """The answer to the last request."""
        self._answers.append(answer)
        self.go_on()

    def go_on(self) -> None:
        """Run the steps up to the first request without an answer."""
        told = iter(self._answers)

        def submit(gid: int, request: bytes) -> tuple[int, Any]:
            for answer in told:
                return answer
            raise _Ask(gid, request)

        try:
            result = self._steps(submit)
        except _Ask as ask:
            self._ask(ask.gid, ask.request)
        except Overloaded as error:
            self._refused(error)
        else:
            self._then(result)
