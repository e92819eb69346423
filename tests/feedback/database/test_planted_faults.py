"""Faults planted in the fence, those of the simulator on a real database: each must show as ``fence-split``,
or the drawn races prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controls import fence_faults
from tests.support.fence_races import splits
from tests.support.shops import closing_shops


@pytest.mark.parametrize(
    ("plant", "lock_timeout_s"),
    [
        (fence_faults.fence_row_outside, 5.0),
        (fence_faults.check_without_its_insert, 5.0),
        (fence_faults.local_ignores_the_check, 5.0),
        (fence_faults.locked_is_rolled_back, 0.001),  # a check that waits long is never kept out
    ],
)
def test_a_planted_fault_splits(
    plant: Callable[[pytest.MonkeyPatch], None],
    lock_timeout_s: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with closing_shops(None, tmp_path, False) as make:
        assert splits(make(lock_timeout_s=lock_timeout_s), seed=0) == []
        plant(monkeypatch)
        shop = make(lock_timeout_s=lock_timeout_s)
        found = next((lines for seed in range(1, 20) if (lines := splits(shop, seed))), [])
        assert found and all(line.startswith("fence-split") for line in found)
