"""The fence of the producers' database: of check and local transaction the first to write a row wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq import TransactionState
from escrowmq.integrations import FenceLost
from tests.chaos.database import Database, Refused


def test_a_check_that_comes_first_forbids_the_local_transaction(tmp_path: Path) -> None:
    database, other = Database(tmp_path / "shop.db"), Database(tmp_path / "shop.db")
    assert other.outcome("1") is TransactionState.ROLLBACK
    with pytest.raises(FenceLost):
        database.run(["0", "1"])
    assert database.committed() == set(), "all or none"


def test_a_local_transaction_that_comes_first_is_what_checks_find(tmp_path: Path) -> None:
    database, other = Database(tmp_path / "shop.db"), Database(tmp_path / "shop.db")
    seen: list[set[str]] = []
    database.run(["1", "2"], inside=lambda: seen.append(other.committed()))
    assert seen == [set()] and other.committed() == {"1", "2"}
    assert other.outcome("2") is TransactionState.COMMITTED


def test_a_refused_local_transaction_leaves_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "shop.db")
    with pytest.raises(Refused):
        database.run(["1"], fails=True)
    assert database.outcome("1") is TransactionState.ROLLBACK


def test_without_a_fence_a_check_sees_no_more_than_what_is_there(tmp_path: Path) -> None:
    database = Database(tmp_path / "shop.db", fenced=False)
    other = Database(tmp_path / "shop.db", fenced=False)
    seen: list[TransactionState] = []
    database.run(["1"], inside=lambda: seen.append(other.outcome("1")))
    assert seen == [TransactionState.ROLLBACK], "not yet"
    assert other.outcome("1") is TransactionState.COMMITTED and other.committed() == {"1"}
