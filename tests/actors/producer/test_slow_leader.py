"""A leader that is slow but not gone: fewer calls at a time, fewer questions, replaced when it dies."""

from __future__ import annotations

from tests.support.channel_wire import led


def test_a_slow_leader_gets_fewer_calls_at_a_time_and_a_fast_one_more_again() -> None:
    wire = led(0)

    def turn(now: float, seconds: float) -> int:
        while wire.channel.room() > 0:
            wire.submit("a", now)
        calls = wire.take("submit")
        for _, _, token in calls:
            wire.answer(token, ("ok", []), now + seconds)
        return len(calls)

    assert turn(1.0, 0.2) == 4
    assert turn(2.0, 0.3) == 4
    assert [turn(3.0 + n, 0.3) for n in range(3)] == [2, 2, 2]
    assert [turn(7.0 + n, 0.1) for n in range(3)] == [2, 4, 4]


def test_a_leader_that_says_that_it_leads_is_asked_less_and_less_while_it_is_slow() -> None:
    wire = led(0)
    wire.submit("a", 1.0, timeout=100.0)
    rounds, now = [], 1.0
    while now < 21.0:
        now += 0.05
        wire.channel.tick(now)
        if wire.sent and any(method == "whoami" for _, method, _, _ in wire.sent):
            rounds.append(now)
            wire.leads(0, 1, now)
    assert 18 <= len(rounds) <= 24, rounds
    assert rounds[0] < 1.35 and rounds[1] - rounds[0] < 0.3


def test_a_leader_that_answers_late_but_steadily_is_hardly_asked_at_all() -> None:
    wire = led(0)
    questions, now, sent = 0, 1.0, []
    while now < 21.0:
        if round(now * 20) % 8 == 0:
            wire.submit("a", now, timeout=100.0)
            sent += [(now, token) for _, _, token in wire.take("submit")]
        while sent and now - sent[0][0] >= 1.5:
            wire.answer(sent.pop(0)[1], ("ok", []), now)
        now += 0.05
        wire.channel.tick(now)
        questions += any(method == "whoami" for _, method, _, _ in wire.sent)
        wire.leads(0, 1, now)
    assert questions <= 6


def test_a_slow_leader_that_dies_is_replaced_within_the_time_for_which_its_word_was_taken() -> None:
    wire = led(0, term=1)
    wire.submit("a", 1.0, timeout=100.0)
    now = 1.0
    while now < 6.0:
        now += 0.05
        wire.channel.tick(now)
        wire.leads(0, 1, now)
    wire.take("submit")
    died = now
    while not (moved := wire.take("submit")) and now < died + 5:
        now += 0.05
        wire.channel.tick(now)
        for replica, _, token in wire.take("whoami"):
            if replica:
                wire.answer(token, (replica == 1, 1, 2), now)
    assert [rid for rid, _, _ in moved] == [1] and now - died < 1.2


def test_a_leader_that_has_become_fast_again_is_suspected_as_soon_as_ever() -> None:
    wire = led(0)
    wire.submit("slow", 1.0, timeout=100.0)
    ((_, _, slow),) = wire.take("submit")
    now = 1.0
    while now < 6.0:
        now += 0.05
        wire.channel.tick(now)
        wire.leads(0, 1, now)
    wire.answer(slow, ("ok", []), now)
    wire.submit("fast", 8.0)
    ((_, _, fast),) = wire.take("submit")
    wire.answer(fast, ("ok", []), 8.01)
    wire.submit("silent", 9.0)
    wire.channel.tick(9.25)
    wire.leads(0, 1, 9.26)
    wire.channel.tick(9.47)
    assert len(wire.take("whoami")) == 3
