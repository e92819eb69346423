"""The table of open transactions against a plain dict, with views held at random moments."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.open_tx import STEP, Block, OpenTable, OpenTx, View


def record(index: int, checks: int = 0) -> OpenTx:
    return OpenTx(index, "t", "q", 0, 0, -1, checks, 0, (1,), (), index)


def block(index: int, tx_ids: list[str]) -> Block:
    rows = (3, 100, [*range(len(tx_ids)), 0], [10] * (len(tx_ids) + 1)), (4, 900, [0], [7])
    return Block(
        index, "t", tx_ids, None, [7] * len(tx_ids), rows, 5, 6, PrepareExtra(instance="one", parts=1)
    )


def is_block(entry: object) -> bool:
    return type(entry) is Block


def records(of: Block) -> dict[str, OpenTx]:
    """What the block's transactions are, each by itself."""
    found = {}
    for i, tx_id in enumerate(of.tx_ids):
        refs: tuple[int, ...] = (3, of.log_index, 100 + 10 * i, 10, 1)
        if not i:
            refs += (3, of.log_index, 100 + 10 * len(of.tx_ids), 10, 1, 4, of.log_index, 900, 7, 1)
        found[tx_id] = OpenTx(
            of.log_index, "t", tx_id, 5, 6, -1, 0, 11, (7,), refs, of.log_index, "one", parts=1
        )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_it_is_a_dict_in_log_order_and_a_view_never_changes(seed: int) -> None:
    rng = random.Random(seed)
    table, model = OpenTable(young_max=6, step=3), dict[str, OpenTx]()
    views: list[tuple[View, list[tuple[str, OpenTx]]]] = []
    blocks: list[Block] = []
    for step in range(600):
        action = rng.choice(
            ("open", "open", "many", "many", "settle", "settle many", "check", "hold", "let go", "tidy")
        )
        tx_id = f"t{rng.randrange(60)}"  # ids come back after they were settled
        if action == "open" and tx_id not in model:
            table.young[tx_id] = model[tx_id] = record(step)
            table.age()
        elif action == "many":
            tx_ids = [t for t in rng.sample([f"t{n}" for n in range(60)], 12) if t not in model]
            if len(tx_ids) > 1 and table.has_none(tx_ids):
                together = block(step, tx_ids)
                assert table.add(together)
                blocks.append(together)
                model.update(records(together))
                table.age()
        elif action == "settle many" and model:
            asked = list(model)
            begin = rng.randrange(len(asked))
            asked = asked[begin : begin + rng.randrange(1, 25)]
            if rng.random() < 0.2:
                rng.shuffle(asked)
            runs = table.runs_of(asked)
            assert runs is not None and [t for run in runs for t in run.tx_ids] == asked
            assert [r for run in runs for r in run] == [model.pop(t) for t in asked]
            for run in runs:
                assert list(run.refs()) == [r.refs for r in run]
                assert list(run.digests()) == [r.digests[0] for r in run]
                table.take_run(run)
        elif action == "settle" and model:
            tx_id = rng.choice(list(model))
            assert table.take(tx_id) == model.pop(tx_id)
        elif action == "check" and model:
            tx_id = rng.choice(list(model))
            changed = model[tx_id]._replace(checks=step)
            model[tx_id] = changed
            table.replace(tx_id, changed)
        elif action == "hold" and len(views) < 3:
            views.append((table.hold(), list(model.items())))
        elif action == "let go" and views:
            views.pop(rng.randrange(len(views)))
            table.release()
        elif action == "tidy":
            table.tidy()
        assert list(table.items()) == list(model.items()), step
        assert len(table) == len(model)
        assert all(list(view.items()) == kept for view, kept in views), step
        probe = f"t{rng.randrange(60)}"
        assert (probe in table) == (probe in model)
        assert table.get(probe) == model.get(probe)
        assert table.runs_of(list(model)) is not None and table.runs_of([*model, "nobody"]) is None
        assert not model or table.runs_of([*model, next(iter(model))]) is None, "each id once"
        held = Counter(map(id, filter(is_block, map(table._entry, model))))
        assert all(held[id(one)] in (0, len(one.tx_ids)) for one in blocks), "a block is there as a whole"
        assert table.oldest() == next(iter(model.values()), None)
    for _ in views:
        table.release()
    for _ in range(60):
        table.tidy()
    table.hold()
    assert not table.gone, "nothing stays beside the table for ever"
    assert len(table.old) + len(table.young) == len(model)


def test_what_is_not_open_cannot_be_taken_out() -> None:
    table = OpenTable()
    with pytest.raises(KeyError):
        table.take("a")
    table.old["a"] = record(1)
    table.hold()
    table.take("a")
    with pytest.raises(KeyError):
        table.take("a")
    with pytest.raises(KeyError):
        table["a"]


def test_a_view_is_taken_in_one_bounded_step_however_many_were_settled_under_the_one_before() -> None:
    """``tidy`` moves what is left into place, a step at a time; the view shows it as settled."""
    table = OpenTable()
    table.old.update((f"t{n}", record(n)) for n in range(5 * STEP))
    table.hold()
    for n in range(4 * STEP):
        table.take(f"t{n}")
    table.release()
    view = table.hold()
    assert len(table.gone) == 3 * STEP, "it took one step"
    assert list(view.items()) == [(f"t{n}", record(n)) for n in range(4 * STEP, 5 * STEP)]
    table.release()
    for _ in range(3):
        table.tidy()
    assert not table.gone and len(table.old) == STEP


class Counted(set[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, item: object) -> bool:
        self.asked += 1
        return super().__contains__(item)


@pytest.mark.parametrize("held", [True, False])
def test_what_is_gone_from_the_front_is_passed_over_once_however_often_the_oldest_is_asked_for(
    held: bool,
) -> None:
    """Retention asks every ten seconds, in the thread that sends heartbeats."""
    table = OpenTable()
    table.old.update((f"t{n}", record(n)) for n in range(10_000))
    table.hold()
    table.gone = gone = Counted()
    for n in range(9_000):
        table.take(f"t{n}")
    if not held:
        table.release()
    gone.asked = 0
    for n in range(9_000, 9_100):
        assert table.oldest() == record(n)
        table.take(f"t{n}")
    assert gone.asked < 10_000
