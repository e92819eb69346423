"""Topics that some clients create in all broker groups, as the admin client does: group 0 first, which gives
them ids, then the others with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from escrowmq.replication.format import ops
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode
from tests.sim.clients.desk import Desk
from tests.sim.environment.world import Violation

CREATED = (ResultCode.OK, ResultCode.DUPLICATE)


class Topics:
    """``desks``: of all groups. ``settings`` are by name; so are ``ids``, as soon as group 0 has given
    them."""

    def __init__(
        self,
        desks: Sequence[Desk],
        settings: Mapping[str, Mapping[str, int | str]],
        *,
        firsts: Mapping[str, int] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """``firsts``: the groups of their first partitions, if not by their names; ``then``: called when all
        groups have them."""
        self._desks, self._settings, self._firsts, self._then = desks, settings, firsts or {}, then
        self._begun, self._left = False, len(desks)
        self.ids: dict[str, int] = {}

    def are_there(self) -> bool:
        """Whether all groups have them. They are created when this is first asked."""
        if not self._begun:
            self._begun = True
            self._ask(self._desks[:1], self._given)
        return not self._left

    def _ask(self, desks: Sequence[Desk], answered: Callable[[list[Any]], None]) -> None:
        frames = [
            ops.create_topic(name, settings, self._firsts.get(name, BY_NAME), self.ids.get(name, NO_ID))
            for name, settings in self._settings.items()
        ]
        for desk in desks:
            desk.call(b"".join(frames), answered, lambda: True)

    def _given(self, results: list[Any]) -> None:
        self.ids = {name: result[1] for name, result in zip(self._settings, results, strict=True)}
        self._created(results)
        self._ask(self._desks[1:], self._created)

    def _created(self, results: list[Any]) -> None:
        if any(result[0] not in CREATED for result in results):
            raise Violation(f"CREATE_TOPIC was answered {results}", "unexpected-answer")
        self._left -= 1
        if not self._left:
            self._then()
