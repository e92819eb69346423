"""Somebody asks a leader for a step of a change of members, and hears what became of it."""

from __future__ import annotations

from typing import Any

from escrowmq.replication.errors import ChangeNotYet, ChangeRefused
from escrowmq.replication.raft.members import Act, Step


class Asked:
    """What became of a step."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, bool | None]] = []

    def __call__(self, result: Any, applied: bool | None) -> None:
        self.calls.append((result, applied))

    @property
    def applied(self) -> bool:
        return [applied for _, applied in self.calls] == [True]

    @property
    def why(self) -> str:
        """Why not now."""
        return self._text_of(ChangeNotYet)

    @property
    def why_never(self) -> str:
        return self._text_of(ChangeRefused)

    def _text_of(self, kind: type[Exception]) -> str:
        ((result, applied),) = self.calls
        assert applied is False and isinstance(result, kind)
        return str(result)


def ask(leader: Any, act: Act, replica: str = "") -> Asked:
    asked = Asked()
    leader.raft.change_members(Step(act, replica), "change-1", asked)
    return asked
