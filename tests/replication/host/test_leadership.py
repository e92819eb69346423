"""Who leads is read of one term, even if the term changes in the middle of the reading."""

from __future__ import annotations

import pytest

from escrowmq.replication.calling.answers import Leadership
from escrowmq.replication.host.running_replica import READINGS_MAX, read_leadership


class _Changing:
    """A node whose next term begins as soon as ``after`` of its values were read, and one more after each
    ``every`` further ones: 0 leads in term 3, and 2 in each later one."""

    def __init__(self, after: int, every: int = 1 << 30) -> None:
        self._left, self._every, self._term = after, every, 3

    def _read(self) -> None:
        if self._left == 0:
            self._term, self._left = self._term + 1, self._every
        self._left -= 1

    @property
    def term(self) -> int:
        self._read()
        return self._term

    @property
    def leader_id(self) -> str | None:
        self._read()
        return "0" if self._term == 3 else "2"

    @property
    def ready(self) -> bool:
        self._read()
        return self._term == 3


@pytest.mark.parametrize("after", range(10))
def test_leader_term_and_readiness_belong_together(after: int) -> None:
    assert read_leadership(_Changing(after)) in (Leadership(True, 0, 3), Leadership(False, 2, 4))


def test_terms_that_never_rest_name_nobody() -> None:
    found = read_leadership(_Changing(0, every=2))
    assert (found.ready, found.leader) == (False, None)
    assert found.term <= 3 + 2 * READINGS_MAX
