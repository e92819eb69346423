"""Callbacks whose type shows that they return no decision, and those whose type does not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Annotated, Any, Literal, NoReturn

import pytest

from escrowmq.actors.producer.transactions.local_transaction import check_callable
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import ProducerOf, open_transactions, values


class Order:
    """What an application's function might return."""


class Shop:
    def buy(self, tx: object) -> Order:
        return Order()

    def sell(self, tx: object) -> bool | None:
        return True

    def __call__(self) -> str:
        return "sold"


def says(kind: object) -> Callable[[], object]:
    """A function with this return annotation."""

    def local() -> object:
        raise AssertionError("it was run")

    local.__annotations__["return"] = kind
    return local


def wrapped(function: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(function)
    def local(*arguments: object) -> None:
        function(*arguments)

    return local


def generator() -> Generator[int]:
    yield 1


async def coroutine() -> bool:
    return True


async def wrong_coroutine() -> Order:
    return Order()


async def async_generator() -> Any:
    yield 1


WRONG = [says(Order), says("Order"), says(str), says("float"), says(dict[str, int]), says(Literal["ok"]),
         says(Awaitable[bool]), says(Annotated[str, []]), says(tuple[bool, bool]), Shop().buy, Shop(),
         functools.partial(Shop.buy, Shop()), generator, coroutine, async_generator, 5, None]  # fmt: skip
FINE = [says(None), says(bool), says("bool | None"), says(TransactionState), says("TransactionState"),
        says(int), says(Any), says(object), says(NoReturn), says(Literal[True, "ok"]), says("NotKnownHere"),
        says("1 +"), says(str | None), says(Annotated[bool, []]), Shop().sell, wrapped(Shop().buy),
        lambda: Order(), {}.clear, Order]  # fmt: skip


@pytest.mark.parametrize("callback", WRONG, ids=range(len(WRONG)))
def test_what_its_type_shows_to_be_no_decision_is_refused(callback: object) -> None:
    with pytest.raises(InvalidMessage, match="local_transaction"):
        check_callable(callback)


@pytest.mark.parametrize("callback", FINE, ids=range(len(FINE)))
def test_what_may_return_a_decision_is_let_through(callback: object) -> None:
    check_callable(callback)


def test_what_is_awaited_is_judged_by_what_comes_of_it() -> None:
    for fine in (coroutine, says(Awaitable[bool]), says(bool)):
        check_callable(fine, awaits=True)
    for wrong in (wrong_coroutine, says(Awaitable[str]), async_generator, generator):
        with pytest.raises(InvalidMessage):
            check_callable(wrong, awaits=True)


def test_a_callback_over_many_may_return_a_sequence() -> None:
    for fine in (says(list[bool]), says(Sequence[TransactionState]), says(tuple[bool, ...]), says(None)):
        check_callable(fine, many=True)
    for wrong in (says(str), says(dict[str, bool]), coroutine):
        with pytest.raises(InvalidMessage):
            check_callable(wrong, many=True)


def test_nothing_is_sent_for_a_callback_that_is_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer, message = producer_of(brokers), Message(topic, b"a")
    refused: Any = says(Order)
    with pytest.raises(InvalidMessage, match="is not a decision; it must return None"):
        producer.send_message_in_transaction(message, refused)
    with pytest.raises(InvalidMessage, match="or one for each"):
        producer.send_transactions([(message, "1")], refused)
    with pytest.raises(InvalidMessage, match="must be callable"):
        producer.send_transactions([(message, "1")], 5)  # type: ignore[arg-type]
    for call in (producer.aio.send_message_in_transaction, producer.aio.send_transactions):
        with pytest.raises(InvalidMessage, match="is not a decision"):
            asyncio.run(call([message], refused))
    assert not open_transactions(brokers, topic) and values(brokers, topic) == []
