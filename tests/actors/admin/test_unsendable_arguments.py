"""What cannot be sent is refused at the call, by an error that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.call_arguments import check_by, check_group_name, check_wait, unsendable
from escrowmq.actors.client.group_work import work_of
from escrowmq.actors.consumer.arguments import check_group
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.replication.model import TransactionState
from tests.support.brokers import Brokers, ClientCalls
from tests.support.producing import ProducerOf

SURROGATE = "\ud800"
NO_GROUPS = [SURROGATE, 5, None, "", "g" * 256]
NO_NAMES = [SURROGATE, 5, None, "", "b" * 101]
NO_WAITS = [math.nan, math.inf, -1, "1", 10**30]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    running = Brokers(tmp_path_factory.mktemp("unsendable"), replicas=1)
    running.topic("t")
    made = Admin(running.info, calls=ClientCalls(running))
    yield made
    made.close()
    running.close()


def test_group_names_that_cannot_be_sent(admin: Admin) -> None:
    calls: list[Callable[[object], object]] = [
        lambda group: admin.describe_group(group),  # type: ignore[arg-type]
        lambda group: admin.describe_groups(["ok", group]),  # type: ignore[list-item]
        lambda group: admin.plan_group_reset(group, "latest"),  # type: ignore[arg-type]
        lambda group: admin.reset_group(group, []),  # type: ignore[arg-type]
        lambda group: admin.delete_group(group),  # type: ignore[arg-type]
        lambda group: admin.set_group(group, max_attempts=3),  # type: ignore[arg-type]
        lambda group: admin.dead_letters(group),  # type: ignore[arg-type]
        lambda group: admin.redrive(group),  # type: ignore[arg-type]
        lambda group: admin.drop_dead_letters(group, None),  # type: ignore[arg-type]
        check_group_name,
        lambda group: None if group is None else check_group(group),
    ]
    for group in NO_GROUPS:
        for number, call in enumerate(calls):
            if number == len(calls) - 1 and group is None:
                continue  # a consumer without a group
            with pytest.raises(ConfigError, match="group"):
                call(group)
        with pytest.raises(InvalidMessage, match="group must be"):
            work_of(group, {("t", 0): (0, 1)}, lambda topic: 0, lambda topic: 1)  # type: ignore[arg-type]
    assert check_group_name("Größe") == "Größe"


def test_who_does_it_must_be_named(admin: Admin) -> None:
    calls: list[Callable[[object], object]] = [
        lambda by: admin.set_group("g", by=by, max_attempts=3),  # type: ignore[arg-type]
        lambda by: admin.delete_group("g", by=by),  # type: ignore[arg-type]
        lambda by: admin.redrive("g", by=by),  # type: ignore[arg-type]
        lambda by: admin.drop_dead_letters("g", None, by=by),  # type: ignore[arg-type]
        lambda by: admin.resolve_transaction("x", TransactionState.ROLLBACK, by=by),  # type: ignore[arg-type]
        check_by,
    ]
    for by in NO_NAMES:
        for call in calls:
            with pytest.raises(ConfigError, match="by must name who does it"):
                call(by)
    assert check_by("kim") == "kim"


def test_numbers_beyond_64_bits_and_text_that_is_none(admin: Admin) -> None:
    for huge in (10**30, -(10**30), 10**5_000, 1 << 63):
        with pytest.raises(ConfigError, match="retention_ms must be a whole number of at most"):
            admin.alter_topic("t", retention_ms=huge)
        with pytest.raises(ConfigError, match="retention_ms must be a whole number of at most"):
            admin.create_topic("u", retention_ms=huge)
        with pytest.raises(InvalidMessage, match="groups_kept must be a whole number of at most"):
            admin.change_settings(groups_kept=huge)
    with pytest.raises(ConfigError):
        admin.alter_topic("t", exhaust_policy=SURROGATE)
    assert unsendable({"a": (1 << 63) - 1, "b": "x", "c": None}) is None
    assert "text" in (unsendable({"a": SURROGATE}) or "")


def test_waits_that_are_none(tmp_path_factory: pytest.TempPathFactory, producer_of: ProducerOf) -> None:
    running = Brokers(tmp_path_factory.mktemp("waits"), replicas=1)
    producer: Producer = producer_of(running)
    for wait_s in NO_WAITS:
        for call in (producer.flush, producer.close, check_wait):
            with pytest.raises(InvalidMessage, match="timeout_s must be seconds"):
                call(wait_s)  # type: ignore[arg-type]
    assert producer.flush(5) and producer.flush()
    producer.close(0)
    running.close()
