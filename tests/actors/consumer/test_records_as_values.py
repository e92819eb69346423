"""Records are values: compared, copied, pickled and printed as documented; the collector passes over them."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import weakref
from typing import Any

import pytest

from escrowmq import ConsumerRecord
from escrowmq.actors.consumer.records import StreamRecord
from escrowmq.actors.share_consumer.held_batches import ShareRecord

COMMON: tuple[Any, ...] = ("orders", 2, 17, 1_700_000_000_000, b"k", b"v", {"h": b"1"}, "tx-1")
KINDS = [
    (ConsumerRecord, COMMON),
    (StreamRecord, (*COMMON, 3)),
    (ShareRecord, (*COMMON, 3, 9)),
]
each_kind = pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda one: getattr(one, "__name__", ""))


@each_kind
def test_equal_if_all_values_are(kind: type[ConsumerRecord], values: tuple[Any, ...]) -> None:
    assert kind(*values) == kind(*values)
    assert kind(*values) != dataclasses.replace(kind(*values), offset=18)
    assert kind(*values) != values


def test_records_of_two_kinds_differ() -> None:
    assert ConsumerRecord(*COMMON) != StreamRecord(*COMMON)


def test_the_lease_of_a_share_record_does_not_count() -> None:
    assert ShareRecord(*COMMON, 3, 9) == ShareRecord(*COMMON, 3, 10)
    assert ShareRecord(*COMMON, 3, 9) != ShareRecord(*COMMON, 4, 9)


@each_kind
def test_copied_and_pickled(kind: type[ConsumerRecord], values: tuple[Any, ...]) -> None:
    record = kind(*values)
    for other in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):  # noqa: S301
        assert type(other) is kind and other == record
        assert dataclasses.asdict(other) == dataclasses.asdict(record)


@each_kind
def test_functions_for_dataclasses_take_them(kind: type[ConsumerRecord], values: tuple[Any, ...]) -> None:
    record = kind(*values)
    names = [item.name for item in dataclasses.fields(record)]
    assert names[:8] == ["topic", "partition", "offset", "timestamp", "key", "value", "headers", "tx_id"]
    assert dataclasses.asdict(record) == dict(zip(names, values, strict=True))
    other = dataclasses.replace(record, value={"a": 1})
    assert type(other) is kind and other.value == {"a": 1} and record.value == b"v"


@each_kind
def test_immutable_without_hash_and_weak_references(
    kind: type[ConsumerRecord], values: tuple[Any, ...]
) -> None:
    record = kind(*values)
    with pytest.raises(AttributeError):
        record.offset = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable type: 'dict'"):
        hash(record)
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(record)
    assert repr(record).startswith(f"{kind.__name__}(topic='orders', partition=2, offset=17, ")


@each_kind
def test_matched_by_position(kind: type[ConsumerRecord], values: tuple[Any, ...]) -> None:
    match kind(*values):
        case ConsumerRecord(topic, partition, offset):
            assert (topic, partition, offset) == ("orders", 2, 17)
        case _:
            pytest.fail("not matched")


@each_kind
def test_the_collector_does_not_visit_them(kind: type[ConsumerRecord], values: tuple[Any, ...]) -> None:
    assert not gc.is_tracked(kind(*values))
