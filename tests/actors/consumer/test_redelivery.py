"""Records that wait to be delivered again: their times are bounded, too."""

from __future__ import annotations

import random

from escrowmq.actors.consumer.record_drain import NACKED_MAX, STALE_MAX, Redelivery
from escrowmq.replication.model import ConsumerRecord

YEAR_S = 365 * 86_400.0


def record(offset: int, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, 1, None, b"v", {}, None)


def test_a_record_that_is_nacked_again_and_again_for_years_takes_the_place_of_one() -> None:
    waiting = Redelivery()
    for number in range(5_000):
        waiting.add(record(7), YEAR_S + number)
    assert len(waiting) == 1 and len(waiting.due) <= STALE_MAX + 2
    assert waiting.take(YEAR_S + 4_998, 10) == [] and waiting.take(YEAR_S + 4_999, 10) == [record(7)]


def test_seeking_away_leaves_nothing_behind_while_another_record_waits() -> None:
    waiting = Redelivery()
    waiting.add(record(0, partition=1), YEAR_S)
    for number in range(5_000):
        waiting.add(record(number), YEAR_S)
        waiting.drop(("t", 0))
    assert len(waiting) == 1 and len(waiting.due) <= STALE_MAX + 4


def test_a_handler_that_succeeds_after_all_leaves_nothing_behind() -> None:
    waiting = Redelivery()
    for number in range(500):
        waiting.add(record(number), YEAR_S)
        assert waiting.discard(record(number))
    assert not waiting.due and waiting.next_due() is None


def test_drawn_steps_return_what_a_plain_list_of_records_would() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        waiting, model, now = Redelivery(), dict[tuple[int, int], float](), 0.0
        for _ in range(800):
            at = rng.randrange(3), rng.randrange(6)
            drawn = rng.random()
            if drawn < 0.6:
                due = float("inf") if rng.random() < 0.1 else now + rng.choice((0.0, 1.0, 5.0, YEAR_S))
                waiting.add(record(at[1], at[0]), due)
                model[at] = due
            elif drawn < 0.7:
                assert waiting.discard(record(at[1], at[0])) == (model.pop(at, None) is not None)
            elif drawn < 0.75:
                waiting.drop(("t", at[0]))
                model = {of: due for of, due in model.items() if of[0] != at[0]}
            else:
                now += rng.random()
                paused = {("t", at[0])} if rng.random() < 0.3 else set[tuple[str, int]]()
                taken = {(found.partition, found.offset) for found in waiting.take(now, 100, paused)}
                assert taken == {
                    of for of, due in model.items() if due <= now and ("t", of[0]) not in paused
                }, seed
                for of in taken:
                    del model[of]
            assert len(waiting) == len(model) and len(waiting.due) <= 2 * NACKED_MAX
            assert len(waiting.due) <= 2 * 18 + STALE_MAX + 18
            for number in range(3):
                offsets = [of[1] for of in model if of[0] == number]
                assert waiting.floor(("t", number)) == (min(offsets) if offsets else None)
