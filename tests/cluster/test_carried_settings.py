"""Settings between processes: by name, with a version; what another version sends is taken or refused, never
taken for something else."""

from __future__ import annotations

import contextlib
import copy
import pickle
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.config import sections
from escrowmq.cluster.settings import ClusterSettings, SecuritySettings, SupervisorSettings
from escrowmq.cluster.supervisor.cluster_dir import Secret
from escrowmq.cluster.supervisor.supervisor import Supervisor, SupervisorPlan, unpacked
from escrowmq.feedback.config import FeedbackConfig, LeaderTiming
from escrowmq.replication.carried_settings import (
    VERSION,
    by_name,
    from_names,
    names_of,
    pack_settings,
    passed_over,
    unpack_names,
    unpack_settings,
)
from escrowmq.replication.errors import ConfigError, UnknownVersion
from escrowmq.replication.net.tls import TlsFiles

TLS = TlsFiles(Path("/cert"), Path("/key"), Path("/ca"))
INFO = ClusterInfo("c", "test", 2, 3)
PLAN = SupervisorPlan(
    ClusterSettings(groups=2),
    Path("/data"),
    Secret(b"a secret of sixteen"),
    BrokerConfig(heartbeat_s=0.06),
    SupervisorSettings(nodes_min=3),
    adopt=True,
    tls=TLS,
)


def kinds(kind: Any) -> Iterator[Any]:
    yield kind
    for item in typing.get_type_hints(kind).values():
        if is_dataclass(item):
            yield from kinds(item)


ALL = [kind for section in sections().values() for kind in kinds(section)]
ALL += [ClusterInfo, TlsFiles, SupervisorPlan]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_all_settings_are_pickled_by_name(kind: Any) -> None:
    """Ray and Spark pickle what they are given: by position, a field that is put in shifts all after it."""
    given = {ClusterInfo: INFO, TlsFiles: TLS, SupervisorPlan: replace(PLAN, secret=None)}.get(kind) or kind()
    _, (_, state) = given.__reduce_ex__(4)
    assert state["version"] == VERSION and list(state)[1:] == [item.name for item in fields(kind)]
    assert pickle.loads(pickle.dumps(given)) == given == copy.deepcopy(given)  # noqa: S301


def test_a_secret_that_an_application_pickles_with_its_settings_stays_one() -> None:
    given = SecuritySettings(secret=SecretStr("x" * 20))
    assert pickle.loads(pickle.dumps(given)) == given  # noqa: S301


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    pause_s: float = 2.0


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    first: int = 1
    second: int = 2
    inner: Inner = Inner()


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    first: int = 1
    put_in: int = 70
    second: int = 2
    inner: Inner = Inner()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeByPosition:
    first: int = 1
    second: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterByPosition:
    first: int = 1
    put_in: int = 70
    second: int = 2


def pickled_over(sent: Any, kind: Any) -> Any:
    """What a receiver of the other version makes of the pickle."""
    make, (_, *values) = sent.__reduce_ex__(4)[:2]
    if values:
        return make(kind, *copy.deepcopy(values))
    made = object.__new__(kind)
    made.__setstate__(copy.deepcopy(sent.__reduce_ex__(4)[2]))
    return made


def test_clients_connect_by_plain_names() -> None:
    record = SimpleNamespace(**{item.name: getattr(INFO, item.name) for item in fields(INFO)})
    plan = SimpleNamespace(broker=BrokerConfig())
    asked = SimpleNamespace(_dir=SimpleNamespace(record=record), _plan=plan)
    answer = Supervisor.about(cast(Supervisor, asked))
    assert from_names(ClusterInfo, answer) == INFO
    assert {type(value) for value in answer.values()} == {str, int}, "no class of ours, and no version"


def test_a_field_that_is_put_in_shifts_nothing() -> None:
    older, newer = Before(first=8, second=9, inner=Inner(pause_s=3.0)), After(first=8, second=9, put_in=5)
    for carried in (unpack_settings(After, pack_settings(older)), pickled_over(older, After)):
        assert carried == After(first=8, second=9, inner=Inner(pause_s=3.0)), "it has its default"
    for back in (unpack_settings(Before, pack_settings(newer)), pickled_over(newer, Before)):
        assert back == Before(first=8, second=9), "it is passed over"
    assert passed_over(Before, unpack_names(pack_settings(newer))) == ["put_in"]


def test_by_position_it_does() -> None:
    shifted = pickled_over(BeforeByPosition(first=8, second=9), AfterByPosition)
    assert (shifted.first, shifted.put_in) == (8, 9)


def test_a_plan_goes_over_with_its_secret_and_does_not_show_it() -> None:
    packed = PLAN.packed()
    assert type(packed) is bytes
    plan = unpacked(packed)
    assert plan.secret is not None and plan.secret.reveal() == b"a secret of sixteen"
    assert replace(plan, secret=None) == replace(PLAN, secret=None)
    assert unpacked(replace(PLAN, secret=None).packed()).secret is None
    assert "sixteen" not in repr(PLAN)


def test_a_newer_sender_is_understood_or_refused() -> None:
    names = names_of(FeedbackConfig(shards=3, leader=LeaderTiming(probe_every_s=0.5)))
    newer = {**names, "of tomorrow": 1, "leader": {**names["leader"], "of tomorrow": 2}}
    taken = from_names(FeedbackConfig, newer)
    assert (taken.shards, taken.leader.probe_every_s) == (3, 0.5)
    told: list[str] = []
    data = msgspec.msgpack.encode({**names_of(INFO), "epoch": 4})
    assert unpack_settings(ClusterInfo, data, told.append) == INFO
    assert told == ["settings of a newer version are ignored: epoch of ClusterInfo"]
    with pytest.raises(UnknownVersion, match=r"FeedbackConfig of version 2.*upgrade"):
        from_names(FeedbackConfig, {**names, "version": VERSION + 1})


@pytest.mark.parametrize(
    ("kind", "names", "problem"),
    [
        (
            ClusterInfo,
            {"cluster_id": "c", "namespace": "n", "groups": 1},
            "missing required field `replicas`",
        ),
        (ClusterInfo, {**names_of(INFO), "groups": "2"}, "groups"),
        (BrokerConfig, {"heartbeat_s": 9.0}, "heartbeat_s"),
        (FeedbackConfig, {"leader": 3}, "leader"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type[Any], names: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__} from another process: .*{problem}"):
        from_names(kind, names)


def test_bytes_that_are_no_settings_are_refused() -> None:
    for data in (b"", b"\xc1", b"\x01", pickle.dumps(INFO)):
        with pytest.raises(ConfigError, match="not settings"):
            unpack_settings(ClusterInfo, data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["version", "heartbeat_s", "segment_bytes", "leader", "shards", "groups", "secret", "x"]
)


@given(
    kind=st.sampled_from([BrokerConfig, FeedbackConfig, ClusterInfo, SupervisorPlan, TlsFiles]),
    sent=st.binary(max_size=60) | st.dictionaries(names, anything).map(msgspec.msgpack.encode),
)
def test_whatever_comes_is_taken_or_refused_with_an_error_of_ours(kind: type[Any], sent: bytes) -> None:
    with contextlib.suppress(ConfigError, UnknownVersion):
        assert isinstance(unpack_settings(kind, sent), kind)
