"""Settling what writes have left, without Spark: answers to checks, an operator's commands, batch writes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.errors import TransactionConflict
from escrowmq.replication.model import TransactionState
from escrowmq.spark_integration.sink.batch import (
    abort_batch,
    commit_batch,
    home_of,
    settle_batch,
    sweep_behind,
)
from escrowmq.spark_integration.sink.commit import EpochConflict, carry_out, commit_epoch
from escrowmq.spark_integration.sink.intents import Intent, IntentStore, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.settling import answer, resolve
from tests.support.brokers import Brokers
from tests.support.sinking import ROWS, batch, effect, linked, prepare, readable, still_open


def test_the_querier_knows_by_intent_and_by_sparks_log(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    winner, loser = (prepare(link, query, 2, topic, [batch(*ROWS)])[0] for _ in range(2))
    epoch_id = epoch_id_of(query, 2)
    won, lost = (next(iter(attempt.ids(epoch_id).values()))[0] for attempt in (winner, loser))
    assert answer(store, link, won, epoch_id) is TransactionState.UNKNOWN, "the query may still commit it"
    store.create(Intent(2, epoch_id, (winner,)))
    assert answer(store, link, lost, epoch_id) is TransactionState.ROLLBACK
    assert answer(store, link, won, epoch_id) is TransactionState.COMMITTED
    assert readable(brokers, topic) == effect(ROWS, epoch_id), "all of it before any part is answered for"
    earlier = epoch_id_of(query, 1)
    assert answer(store, link, f"{earlier}/0.0.x/0.0", earlier) is TransactionState.UNKNOWN
    (Path(store.checkpoint) / "commits" / "1").touch()
    assert answer(store, link, f"{earlier}/0.0.x/0.0", earlier) is TransactionState.ROLLBACK
    assert answer(store, link, "order-1", "order-1") is TransactionState.UNKNOWN


def test_an_operator_settles_a_query_that_will_not_come_back(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    decided = prepare(link, query, 1, topic, [batch(*ROWS)])[0]
    store.create(Intent(1, epoch_id_of(query, 1), (decided,)))
    prepare(link, query, 2, topic, [batch("undecided")])
    prepare(link, query, 1, topic, [batch("a loser's")])
    done = resolve(store, link)
    assert done.committed == [1] and done.rolled_back >= 1 and done.stuck == {}
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:1")
    assert done.undecided == still_open(brokers, query) > 0, "a query that runs may still commit it"
    done = resolve(store, link, stopped=True)
    assert (done.committed, done.undecided, done.stuck) == ([], 0, {}) and done.rolled_back >= 1
    assert still_open(brokers, query) == 0 == resolve(store, link, stopped=True).rolled_back


def test_an_operator_discards_an_epoch_that_cannot_be_committed(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    stuck = prepare(link, query, 1, topic, [batch(*ROWS)])[0]
    intent = store.create(Intent(1, epoch_id_of(query, 1), (stuck,)))
    gid, ids = max(intent.ids().items())
    link.rollback(gid, ids[:1])
    with pytest.raises(EpochConflict, match="recorded as ROLLBACK"):
        commit_epoch(store, link, query, 1, [])
    done = resolve(store, link)
    assert list(done.stuck) == [1] and store.epochs() == [1]
    assert readable(brokers, topic) == [], "of an epoch that cannot be whole, no group commits its part"
    resolve(store, link, discard=1)
    assert store.epochs() == [] and still_open(brokers, query) == 0
    again = prepare(link, query, 1, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 1, [again])
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:1")


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("moment", ["epochs", "read"])
def test_an_operator_beside_a_query_that_runs_does_not_tear_its_epoch_apart(
    brokers: Brokers,
    query: str,
    topic: str,
    link: SinkLink,
    store: IntentStore,
    stopped: bool,
    moment: str,
) -> None:
    """The driver decides while the operator's command looks around, and has told one group so far."""
    attempt = prepare(link, query, 7, topic, [batch(*ROWS)])[0]
    intent = Intent(7, epoch_id_of(query, 7), (attempt,))
    looked = threading.Event()

    class Before(IntentStore):
        """What it finds at that moment is from before the driver decides."""

        def epochs(self) -> list[int]:
            found: list[int] = self._driver_decides("epochs", super().epochs())
            return found

        def read(self, epoch: int) -> Intent | None:
            found: Intent | None = self._driver_decides("read", super().read(epoch))
            return found

        def _driver_decides(self, at: str, found: Any) -> Any:
            if at == moment and not looked.is_set():
                looked.set()
                store.create(intent)
                gid, ids = min(intent.ids().items())
                assert link.commit(gid, ids) == {}
            return found

    done = resolve(Before(store.checkpoint), link, stopped=stopped)
    assert done.rolled_back == 0 and looked.is_set() is (stopped or moment == "epochs")
    if stopped and (brokers.info.groups > 1 or moment == "read"):  # else nothing of it was open any more
        assert "running" in done.stuck[7]
    carry_out(link, store.create(intent))
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:7") and still_open(brokers, query) == 0


def test_an_epoch_that_is_committed_cannot_be_discarded(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    commit_epoch(store, link, query, 1, [prepare(link, query, 1, topic, [batch(*ROWS)])[0]])
    with pytest.raises(TransactionConflict, match="COMMITTED"):
        resolve(store, link, discard=1)
    assert store.epochs() == [1]


# ------------------------------------------------------------------ batch writes


def test_a_batch_write_is_one_decision_over_all_groups(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    home = home_of(query, brokers.info.groups)
    tasks = [prepare(link, query, 0, topic, [batch(*ROWS[i::2])], task=i, home=home)[0] for i in range(2)]
    prepare(link, query, 0, topic, [batch("of a speculative twin")], home=home)
    commit_batch(link, query, tasks)
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:0") and still_open(brokers, query) == 0


@pytest.mark.parametrize("decided", [False, True])
def test_a_batch_write_whose_driver_died_is_settled_as_its_home_group_has_it(
    brokers: Brokers, query: str, topic: str, link: SinkLink, decided: bool
) -> None:
    home = home_of(query, brokers.info.groups)
    attempt = prepare(link, query, 0, topic, [batch(*ROWS)], home=home)[0]
    prepare(link, query, 0, topic, [batch("loser")], home=home)
    if decided:  # the driver's COMMIT in the home group, and nothing after it
        ids = [tx for ids in attempt.ids(epoch_id_of(query, 0)).values() for tx in ids]
        assert link.commit(home, ids) == {}
    settle_batch(link, query)
    assert readable(brokers, topic) == (effect(ROWS, f"spark:{query}:0") if decided else [])
    assert still_open(brokers, query) == 0


def test_a_decided_batch_write_is_never_torn_by_a_leader_that_does_not_know_it_is_deposed(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    """Its answers lack what was decided since; whatever it says, only the log of the home group counts."""
    home = home_of(query, brokers.info.groups)
    attempt = prepare(link, query, 0, topic, [batch(*ROWS)], home=home)[0]
    ids = [tx for ids in attempt.ids(epoch_id_of(query, 0)).values() for tx in ids]
    assert link.commit(home, ids) == {}

    class Deposed(SinkLink):
        def open_ids(self, gid: int) -> list[str]:
            return [] if gid == home else super().open_ids(gid)

        def states(self, gid: int, tx_ids: Sequence[str]) -> list[str]:
            return ["UNKNOWN"] * len(tx_ids)

    settle_batch(Deposed(link.router, link.app), query)
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:0")
    assert still_open(brokers, query) == 0


def late_attempts(
    brokers: Brokers, query: str, topic: str, pauses: Sequence[float], first: threading.Event
) -> threading.Thread:
    """Attempts that nobody waits for any more, each preparing rows after its pause."""

    def run() -> None:
        with linked(brokers, query) as own:
            for number, pause in enumerate(pauses):
                time.sleep(pause)
                home = home_of(query, brokers.info.groups)
                with suppress(TransactionConflict):  # swept before it had its answer
                    prepare(own, query, 0, topic, [batch(*ROWS)], task=number, home=home)
                first.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_failed_batch_write_is_swept_until_its_tasks_have_ended(
    brokers: Brokers, query: str, topic: str, link: SinkLink, caplog: pytest.LogCaptureFixture
) -> None:
    first = threading.Event()
    tasks = late_attempts(brokers, query, topic, [0.0, 0.5, 0.5, 0.5], first)
    assert first.wait(20)
    abort_batch(link, query, quiet_s=2.0)
    tasks.join()
    assert still_open(brokers, query) == 0 and readable(brokers, topic) == []
    (line,) = (record.getMessage() for record in caplog.records)
    assert query in line and f"resolve_write({query!r})" in line


def test_sweeping_a_failed_batch_write_ends_even_if_its_tasks_do_not(
    brokers: Brokers, query: str, topic: str, link: SinkLink, caplog: pytest.LogCaptureFixture
) -> None:
    first = threading.Event()
    tasks = late_attempts(brokers, query, topic, [0.05] * 40, first)
    assert first.wait(20)
    abort_batch(link, query, quiet_s=60.0, at_most_s=1.0)
    assert "still run" in caplog.records[-1].getMessage()
    tasks.join()
    settle_batch(link, query)
    assert still_open(brokers, query) == 0 and readable(brokers, topic) == []


def test_attempts_that_come_after_a_batch_write_s_commit_are_swept_behind_it(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    home = home_of(query, brokers.info.groups)
    attempt = prepare(link, query, 0, topic, [batch(*ROWS)], home=home)[0]
    commit_batch(link, query, [attempt])
    first = threading.Event()
    late_attempts(brokers, query, topic, [0.0, 0.3], first).join()
    assert still_open(brokers, query) > 0
    sweeping = sweep_behind(link, query, pauses_s=(0.1, 0.1))
    sweeping.join(20)
    assert still_open(brokers, query) == 0 and readable(brokers, topic) == effect(ROWS, f"spark:{query}:0")


@pytest.mark.parametrize("sign", ["a second attempt", "a chunk of a twin"])
def test_a_batch_write_with_signs_of_other_attempts_waits_for_them(
    brokers: Brokers, query: str, topic: str, link: SinkLink, sign: str
) -> None:
    home = home_of(query, brokers.info.groups)
    attempt = prepare(link, query, 0, topic, [batch(*ROWS)], home=home)[0]
    if sign == "a chunk of a twin":
        prepare(link, query, 0, topic, [batch("a twin's")], home=home)
    else:
        attempt = prepare(link, query, 0, topic, [batch(*ROWS)], home=home, attempt=1)[0]
    first = threading.Event()
    twin = late_attempts(brokers, query, topic, [1.0], first)
    commit_batch(link, query, [attempt], quiet_s=2.5)
    assert first.is_set()
    twin.join()
    assert still_open(brokers, query) == 0 and readable(brokers, topic) == effect(ROWS, f"spark:{query}:0")


def test_the_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "escrowmq.spark_integration.sink_resolve"]
    wrong = subprocess.run(
        [*command, str(tmp_path), "--discard", "7"], capture_output=True, text=True, timeout=60, check=False
    )
    assert wrong.returncode == 1 and wrong.stderr.startswith("ConfigError: epoch 7 has no intent in ")
