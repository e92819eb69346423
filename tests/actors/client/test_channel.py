"""Leader following without threads, clock or Ray: every call that is started is recorded in a list."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.broker.broker import Broker
from escrowmq.actors.client.channel import READ_ONLY, Request
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.replication.errors import DiskFull, Overloaded
from tests.support.channel_wire import Wire, led


def test_the_first_request_waits_until_a_replica_says_that_it_leads() -> None:
    wire = Wire()
    wire.submit("a", 0.0)
    assert not wire.take("submit")
    wire.leads(2, 7, 0.01)
    assert [(rid, args) for rid, args, _ in wire.take("submit")] == [(2, ("a",))]


def test_without_a_leader_all_replicas_are_asked_every_tenth_of_a_second() -> None:
    wire = Wire()
    wire.submit("a", 0.0)
    for replica, _, token in wire.take("whoami"):
        wire.answer(token, (False, None, replica), 0.0)
    wire.channel.tick(0.05)
    assert not wire.take("whoami")
    assert abs(wire.channel.next_wake(0.05) - 0.1) < 1e-9
    wire.channel.tick(0.1)
    assert sorted(rid for rid, _, _ in wire.take("whoami")) == [0, 1, 2]


def test_a_redirection_is_followed_at_once() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("not_leader", 1, 2), 1.0)
    assert [(rid, args) for rid, args, _ in wire.take("submit")] == [(1, ("a",))]


@pytest.mark.parametrize("refusal", [("not_leader", 1, 2), ("overloaded", 0.05), ("disk_full", 0.05)])
def test_a_refused_sending_counts_although_it_was_not_executed(refusal: tuple[Any, ...]) -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    for now, answer in ((1.0, refusal), (1.2, ("ok", []))):
        wire.channel.tick(now)
        ((_, _, token),) = wire.take("submit")
        wire.answer(token, answer, now)
    assert wire.told[-1] == (False, 2)


def test_a_hint_with_a_term_in_which_nobody_leads_does_not_make_deaf_to_the_real_leader() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("not_leader", 2, 10**9), 1.0)
    assert [rid for rid, _, _ in wire.take("submit")] == [2]
    wire.channel.tick(1.25)
    wire.leads(1, 2, 1.26)
    assert [(rid, args) for rid, args, _ in wire.take("submit")] == [(1, ("a",))]


def test_redirections_in_a_circle_end_in_a_question_to_all() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    hops = 0
    while hops < 10:
        calls = wire.take("submit")
        if not calls:
            break
        hops += 1
        ((rid, _, token),) = calls
        wire.answer(token, ("not_leader", (rid + 1) % 3, 2), 1.0)
    assert hops < 6
    wire.channel.tick(1.2)
    assert len(wire.take("whoami")) == 3


def test_a_silent_leader_is_replaced_as_soon_as_another_one_leads_in_a_higher_term() -> None:
    wire = led(0, term=1)
    wire.submit("a", 1.0)
    wire.submit("b", 1.0)
    wire.take("submit")
    wire.channel.tick(1.2)
    assert not wire.take("whoami")
    wire.channel.tick(1.25)
    wire.leads(1, 2, 1.26)
    assert [(rid, args) for rid, args, _ in wire.take("submit")] == [(1, ("a",)), (1, ("b",))]


def test_a_deposed_leader_that_still_believes_in_itself_is_not_followed_back() -> None:
    wire = led(0, term=5)
    wire.submit("a", 1.0)
    wire.channel.tick(1.25)
    for replica, _, token in wire.take("whoami"):
        wire.answer(token, (replica == 1, 1, 4), 1.26)
    assert wire.channel.leader == 0


def test_a_leader_that_came_back_under_its_number_is_asked_again_without_waiting_for_the_dead_one() -> None:
    wire = led(0, term=1)
    wire.submit("a", 1.0)
    assert len(wire.take("submit")) == 1
    wire.channel.tick(1.3)
    wire.leads(0, 2, 1.4)
    assert [(rid, args) for rid, args, _ in wire.take("submit")] == [(0, ("a",))]


def test_late_answers_of_the_old_leader_are_ignored() -> None:
    wire = led(0, term=1)
    wire.submit("a", 1.0)
    ((_, _, old),) = wire.take("submit")
    wire.channel.tick(1.25)
    wire.leads(1, 2, 1.3)
    ((_, _, new),) = wire.take("submit")
    wire.answer(old, ("unknown",), 1.4)
    assert not wire.ended
    wire.answer(new, ("ok", [[0]]), 1.4)
    assert wire.ended == [("ok", [[0]])]


def test_an_overloaded_broker_gets_a_pause_and_then_the_same_bytes() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("overloaded", 0.2), 1.0)
    wire.submit("b", 1.0)
    wire.channel.tick(1.05)
    assert not wire.take("submit"), "nobody overtakes the pause"
    wire.channel.tick(1.31)
    assert [args for _, args, _ in wire.take("submit")] == [("a",), ("b",)]


@pytest.mark.parametrize(("status", "kind"), [("overloaded", Overloaded), ("disk_full", DiskFull)])
def test_refused_until_the_deadline_means_that_nothing_was_done(
    status: str, kind: type[Overloaded | DiskFull]
) -> None:
    wire = led(0)
    wire.submit("a", 1.0, timeout=0.5)
    now = 1.0
    while not wire.ended:
        for _, _, token in wire.take("submit"):
            wire.answer(token, (status, 0.3), now)
        now += 0.05
        wire.channel.tick(now)
    (failure,) = wire.ended
    assert isinstance(failure, Failure) and failure.nothing_done
    error = failure.error("a")
    assert isinstance(error, kind) and error.retry_after_s == 0.3


def test_no_leader_until_the_deadline_is_unavailable() -> None:
    wire = Wire()
    wire.submit("a", 0.0, timeout=1.0)
    wire.channel.tick(1.0)
    (failure,) = wire.ended
    assert failure.kind is FailureKind.UNAVAILABLE


def test_silence_until_the_deadline_is_an_unknown_outcome() -> None:
    wire = led(0)
    wire.submit("a", 1.0, timeout=1.0)
    wire.channel.tick(2.0)
    (failure,) = wire.ended
    assert failure.kind is FailureKind.UNKNOWN and not failure.nothing_done


def test_a_lost_leadership_stays_unknown_even_if_later_attempts_are_refused() -> None:
    wire = led(0)
    wire.submit("a", 1.0, timeout=1.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("unknown",), 1.0)
    wire.channel.tick(1.5)
    wire.leads(1, 2, 1.5)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("overloaded", 5.0), 1.6)
    wire.channel.tick(2.1)
    assert wire.ended[0].kind is FailureKind.UNKNOWN


def test_an_error_at_once_is_not_repeated_at_once() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    attempts, now = 0, 1.0
    while now < 3.0:
        for _, _, token in wire.take("submit"):
            attempts += 1
            wire.channel.on_answer(token, None, RuntimeError("actor died"), now)
        wire.leads(0, 1, now)
        now += 0.001
        wire.channel.tick(now)
    assert 3 <= attempts <= 25


def test_requests_keep_their_order_through_a_fail_over() -> None:
    wire = led(0)
    for what in "abcd":
        wire.submit(what, 1.0)
    calls = wire.take("submit")
    wire.channel.on_answer(calls[2][2], None, RuntimeError("reset"), 1.0)
    wire.channel.on_answer(calls[0][2], ("unknown",), None, 1.0)
    wire.channel.tick(2.0)
    wire.leads(1, 2, 2.0)
    assert [args for _, args, _ in wire.take("submit")] == [("a",), ("b",), ("c",), ("d",)]


def test_the_window_counts_what_is_under_way_and_what_waits_for_repetition() -> None:
    wire = led(0)
    for what in "abcd":
        wire.submit(what, 1.0)
    assert wire.channel.room() == 0
    calls = wire.take("submit")
    wire.answer(calls[0][2], ("overloaded", 0.1), 1.0)
    assert wire.channel.room() == 0
    wire.answer(calls[1][2], ("ok", []), 1.0)
    assert wire.channel.room() == 1


def test_a_long_poll_may_be_silent_as_long_as_it_said() -> None:
    wire = led(0)
    wire.submit("poll", 1.0, patience_s=5.0)
    wire.channel.tick(5.0)
    assert not wire.take("whoami")
    wire.channel.tick(6.3)
    assert len(wire.take("whoami")) == 3


def test_a_probe_without_answer_is_repeated_but_never_piled_up() -> None:
    wire = led(0)
    wire.submit("a", 1.0, timeout=100.0)
    probes, now = 0, 1.0
    while now < 11.0:
        now += 0.05
        wire.channel.tick(now)
        probes += len(wire.take("whoami"))
    assert 3 * 4 <= probes <= 3 * 6


def test_an_operation_that_cannot_be_read_fails_at_once() -> None:
    wire = led(0)
    wire.submit("a", 1.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("malformed", "frame cut off"), 1.0)
    assert wire.ended[0].kind is FailureKind.MALFORMED


def test_closing_tells_the_sent_from_the_unsent() -> None:
    wire = led(0)
    wire.submit("sent", 1.0)
    wire.channel.follower.failed(0)
    wire.submit("unsent", 1.0)
    wire.channel.fail_all(FailureKind.CLOSED, "closed")
    assert sorted(failure.kind.value for failure in wire.ended) == ["closed", "unknown"]
    assert wire.channel.in_flight == 0


@pytest.mark.parametrize("method", ["topics", "find_transaction", "committed"])
def test_a_call_that_only_reads_never_ends_in_doubt(method: str) -> None:
    wire, ended = led(0), []
    for deadline in (2.0, 50.0):
        wire.channel.submit(Request(method, (), deadline, lambda answer, *_: ended.append(answer)), 1.0)
    wire.channel.tick(2.0)
    wire.channel.fail_all(FailureKind.CLOSED, "closed")
    assert [failure.kind for failure in ended] == [FailureKind.UNAVAILABLE, FailureKind.CLOSED]
    assert "replica 0 gave no answer in time" in str(ended[0].error(method))


def test_every_call_of_a_broker_is_known_to_read_or_to_change() -> None:
    change = {
        "change_members", "check_again", "checkpoint_suspect", "commit_offsets", "follow", "group_delete",
        "group_heartbeat", "group_join", "group_leave", "hand_over", "lock_pairs", "peer_moved",
        "release_locks", "share_acquire", "share_extend", "share_release", "stop", "submit", "told",
    }  # fmt: skip
    of_brokers = {
        "checkpoint_manifest", "checkpoint_read", "due_pairs", "founded", "log_entries", "never_voted",
        "raft_address",
    }  # fmt: skip
    calls = {name for name in dir(Broker) if callable(getattr(Broker, name)) and not name.startswith("_")}
    assert calls == READ_ONLY | change | of_brokers
