"""Faults planted in the fence: each must show as ``fence-split``, or the races prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from escrowmq.feedback.database.checking import Checking
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.rows import ROLLED_BACK
from tests.support.fence_races import splits
from tests.support.shops import closing_shops


def row_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The fence's row is committed by a connection of its own, whatever becomes of the local transaction."""
    enter = Fence._enter

    def outside(self: Fence, link: Link, *transactions: object) -> None:
        with self._database.opening() as (_, own):
            enter(self, own, *transactions)  # type: ignore[arg-type]
            own.commit()

    patch.setattr(Fence, "_enter", outside)


def check_without_its_insert(patch: pytest.MonkeyPatch) -> None:
    """A check takes "no row" for rolled back, and leaves nothing behind that says so."""

    def only_read(
        self: Checking, link: Link, keys: Sequence[bytes], by_key: dict[bytes, str], limit_s: float
    ) -> dict[bytes, int]:
        self._begin(link, limit_s)
        read = self._read(link, keys)
        link.commit()
        return dict.fromkeys(keys, ROLLED_BACK) | read

    patch.setattr(Checking, "_block", only_read)


@pytest.mark.parametrize("plant", [row_outside_of_the_transaction, check_without_its_insert])
def test_a_planted_fault_splits(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closing_shops(None, tmp_path, False) as make:
        shop = make(lock_timeout_s=5.0)
        assert splits(shop, seed=0) == []
        plant(monkeypatch)
        found = next((lines for seed in range(1, 20) if (lines := splits(shop, seed))), [])
        assert found and all(line.startswith("fence-split") for line in found)
