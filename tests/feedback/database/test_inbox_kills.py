"""A handler killed at every step, on every database: its inbox makes up for what is delivered again. Faults
planted in the inbox are found as ``handled-twice`` and ``handled-never``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from escrowmq.feedback.database import inbox as inboxes
from escrowmq.feedback.database.inbox import Entered, Inbox, InboxStatements, origin_of
from escrowmq.feedback.database.links import Link
from tests.support.database_servers import Server
from tests.support.inbox_service import Service
from tests.support.inboxes import Accounts, anomalies, race
from tests.support.shops import closing_shops

STEPS = ("enter", "work", "commit", "offset")
RECORDS = len(STEPS) + 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_a_handler_that_is_killed_at_every_step_handles_every_record_once(
    server_of: Callable[[str], Server | None], kind: str, tmp_path: Path
) -> None:
    with closing_shops(server_of(kind), tmp_path, False) as make:
        shop = make()
        accounts, committed = Accounts(shop), tmp_path / "committed"
        committed.write_text("0")
        for number, step in (*enumerate(STEPS), (-1, "")):
            told = Service(shop.url(), accounts.table, accounts.work, str(committed), RECORDS, number, step)
            script = [sys.executable, "-m", "tests.support.inbox_service", told.encode()]
            ended = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
            assert ended.returncode == (-9 if step else 0), ended.stderr
        assert int(committed.read_text()) == RECORDS
        assert anomalies(accounts.done(), RECORDS) == [] and accounts.rows() == RECORDS
        accounts.close()


def row_outside(patch: pytest.MonkeyPatch) -> None:
    """The inbox's row is committed in a separate transaction, whatever happens to the work."""
    enter = Inbox.enter

    def outside(self: Inbox, link: Link, record: Any) -> Entered | None:
        with self._database.opening() as (_, own):
            entered = enter(self, own, record)
            own.commit()
        return entered

    patch.setattr(Inbox, "enter", outside)


def look_without_inserting(patch: pytest.MonkeyPatch) -> None:
    """The inbox looks whether there is a row, and inserts one whatever has become of it meanwhile. Nor does
    it look at the end whose row that is."""
    enter = Inbox.enter

    def looks(self: Inbox, link: Link, record: Any) -> Entered | None:
        key = origin_of(record).key(self.group)
        look = f"SELECT 1 FROM {self.statements.table} WHERE record_key = :key"
        with self._database.checking() as own:
            found = own.rows(look, {"key": key})
        if found:
            return None
        return enter(self, link, record) or Entered(key, 0)

    patch.setattr(Inbox, "enter", looks)
    patch.setattr(inboxes, "refuse_another_transaction", lambda *_: None)


def another_key_each_time(patch: pytest.MonkeyPatch) -> None:
    """Every delivery counts as the first one, also at its end."""
    made = InboxStatements.__init__

    def plain(self: InboxStatements, *given: Any) -> None:
        made(self, *given)
        self.enter = self.enter.replace(":key", "randomblob(32)")

    patch.setattr(InboxStatements, "__init__", plain)
    patch.setattr(inboxes, "refuse_another_transaction", lambda *_: None)


@contextmanager
def accounts_in(folder: Path) -> Iterator[Accounts]:
    with closing_shops(None, folder, False) as make:
        accounts = Accounts(make())
        yield accounts
        accounts.close()


@pytest.mark.parametrize(
    ("plant", "anomaly"),
    [
        (row_outside, "handled-never"),
        (look_without_inserting, "handled-twice"),
        (another_key_each_time, "handled-twice"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    anomaly: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with accounts_in(tmp_path) as accounts:
        assert race(accounts, seed=0) == []
    plant(monkeypatch)
    for seed in range(1, 20):
        with accounts_in(tmp_path) as accounts:
            found = race(accounts, seed)
        if found:
            assert all(line.startswith(anomaly) for line in found), found
            return
    raise AssertionError("not found")
