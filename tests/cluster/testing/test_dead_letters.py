"""Dead letters in a cluster in memory: listed, redriven once, sent elsewhere, dropped; and replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google_crc32c import value as crc32c

from escrowmq import (
    ConfigError,
    InvalidMessage,
    Message,
    OutcomeUnknown,
    TopicExists,
    UnknownDeadLetter,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.actors.admin import dead_letters
from escrowmq.actors.admin.dead_letters import APP, FETCH_BYTES, HOLD_S, Redirecting, _Redrive
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.share_ops import BY_TABLE, LETTER_RANGES_MAX, share_ack, share_reply
from escrowmq.replication.model import ResultCode
from escrowmq.testing import InMemoryCluster
from tests.support.mail import Mail

START = datetime(2026, 7, 1, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("lost")
        yield made


@pytest.fixture
def mail(cluster: InMemoryCluster) -> Mail:
    return Mail(cluster)


def ids(cluster: InMemoryCluster, **wanted: Any) -> list[str]:
    return [letter.id for letter in cluster.admin.dead_letters("mail", **wanted)]


def test_a_dead_letter_tells_all_about_its_message(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(Message("orders", b"x", b"k", {"h": b"1"}, tag="paid", reply_to="shop"))
    cluster.clock.advance(5)
    mail.fail(0, delay_ms=0)
    cluster.clock.advance(5)
    mail.fail(0, topic="__retry.mail", reason="no such address")
    (letter,) = cluster.admin.dead_letters("mail")
    assert letter.origin == ("orders", 0, 0, START_MS)
    assert (letter.key, letter.value, letter.tx_id, letter.problem) == (b"k", b"x", None, None)
    assert letter.headers == {"h": b"1", "escrowmq-tag": b"paid", "escrowmq-reply-to": b"shop"}
    assert (letter.attempts, letter.reason, letter.by) == (2, "no such address", "kim")
    assert (letter.first_failed, letter.died) == (START_MS + 5_000, START_MS + 10_000)
    assert cluster.admin.dead_letter("mail", letter.id) == letter
    share = cluster.admin.describe_group("mail").share
    assert share is not None and (share.dead, share.retrying, share.lag) == (1, 0, 0)


def test_the_list_is_in_order_and_can_be_narrowed(cluster: InMemoryCluster, mail: Mail) -> None:
    large = bytes(FETCH_BYTES // 12)  # so that they are fetched in two portions
    mail.send(*[Message("orders", large) for _ in range(20)])
    mail.fail(*range(10), reason="no such address")
    cluster.clock.advance(60)
    mail.fail(*range(10, 20), reason="timed out")
    assert ids(cluster) == [f"0-{n}" for n in range(20)]
    assert ids(cluster, limit=3) == ["0-0", "0-1", "0-2"]
    assert ids(cluster, reason="address") == [f"0-{n}" for n in range(10)]
    assert ids(cluster, since=START_MS + 60_000) == [f"0-{n}" for n in range(10, 20)]
    assert ids(cluster, since=cluster.clock.now(), limit=1) == ["0-10"]
    for bad in (0, -1, 100_001, 1.5):
        with pytest.raises(ConfigError, match="limit"):
            cluster.admin.dead_letters("mail", limit=bad)  # type: ignore[arg-type]
    for text in (5, b"address", ["address"]):
        with pytest.raises(ConfigError, match="reason must be a str"):
            cluster.admin.dead_letters("mail", reason=text)  # type: ignore[arg-type]


def test_a_dead_letter_is_redriven_once_as_at_the_first_attempt(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(*[Message("orders", b"%d" % n) for n in range(3)])
    mail.fail(0, 1, 2)
    assert cluster.admin.redrive("mail", ["0-1"], by="kim").redriven == 1
    assert mail.retries() == [(b"1", 1)]
    again = cluster.admin.redrive("mail", ["0-1"])
    assert (again.redriven, again.already) == (0, 1)
    assert ids(cluster) == ["0-0", "0-2"]
    told: list[tuple[int, int]] = []
    done = cluster.admin.redrive("mail", progress=lambda done, total: told.append((done, total)))
    assert done.redriven == 2
    assert told == [(0, 2), (2, 2)]
    assert sorted(mail.retries()) == [(b"0", 1), (b"1", 1), (b"2", 1)]
    assert ids(cluster) == [] and cluster.admin.redrive("mail").redriven == 0
    mail.fail(1, topic="__retry.mail")  # it fails again: another dead letter, of the same origin
    (letter,) = cluster.admin.dead_letters("mail")
    assert letter.id == "0-3" and letter.origin is not None and letter.origin.offset == 0


def test_many_are_redriven_in_portions_and_at_a_rate(cluster: InMemoryCluster, mail: Mail) -> None:
    pauses: list[float] = []
    mail.send(*[Message("orders", b"%d" % n) for n in range(1_200)])
    mail.fail(*range(700))
    mail.fail(*range(700, 1_200))
    cluster.admin._dead._pause = pauses.append
    told: list[int] = []
    done = cluster.admin.redrive("mail", rate=1_000, progress=lambda done, total: told.append(done))
    assert done.redriven == 1_200 and told == [0, 200, 400, 600, 800, 1_000, 1_200]
    assert pauses == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], abs=0.01), "the clock stands still here"
    for bad in (0, -1, True, "fast", float("nan")):
        with pytest.raises(ConfigError, match="rate"):
            cluster.admin.redrive("mail", rate=bad)  # type: ignore[arg-type]


def test_what_another_operator_settles_meanwhile_is_not_sent_elsewhere(
    cluster: InMemoryCluster, mail: Mail
) -> None:
    mail.send(*[Message("orders", b"%d" % n) for n in range(4)])
    mail.fail(0, 1, 2, 3)

    def meanwhile(done: int, total: int) -> None:
        if done == 0:
            assert cluster.admin.drop_dead_letters("mail", ["0-1"], by="eve") == 1
            assert cluster.admin.redrive("mail", ["0-2"], by="kim").redriven == 1

    done = cluster.admin.redrive("mail", to="lost", progress=meanwhile)
    assert (done.redriven, done.already, done.unreadable) == (2, 2, 0)
    with cluster.consumer("g", ["lost"], auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll()] == [b"0", b"3"]
    assert ids(cluster) == [] and mail.retries() == [(b"2", 1)]


def test_what_another_operator_settles_meanwhile_counts_as_settled(
    cluster: InMemoryCluster, mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.send(*[Message("orders", b"%d" % n) for n in range(5)])
    mail.fail(0, 1, 2, 3, 4)

    def meanwhile(done: int, total: int) -> None:
        if done == 0:
            assert cluster.admin.drop_dead_letters("mail", ["0-1"], by="eve") == 1

    done = cluster.admin.redrive("mail", ["0-0", "0-1"], progress=meanwhile)
    assert (done.redriven, done.already) == (1, 1)
    monkeypatch.setattr(dead_letters, "AT_A_TIME", 1)
    acked = dead_letters.DeadLetters._acked

    def redriven_behind_it(*arguments: Any) -> None:
        acked(*arguments)
        cluster.admin.redrive("mail", ["0-3"], by="kim")

    monkeypatch.setattr(dead_letters.DeadLetters, "_acked", redriven_behind_it)
    assert cluster.admin.drop_dead_letters("mail", ["0-2", "0-3", "0-4"], by="eve") == 2
    assert ids(cluster) == [] and mail.retries() == [(b"0", 1), (b"3", 1)]


def read(cluster: InMemoryCluster, topic: str) -> list[Any]:
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        count = next(one for one in cluster.admin.topics() if one.name == topic).partitions
        consumer.assign([(topic, partition) for partition in range(count)])
        found: list[Any] = []
        while got := consumer.poll(timeout_s=0.1):
            found += got
    return found


def test_dead_letters_go_to_another_topic_once(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(*[Message("orders", b"%d" % n, b"k%d" % n, {"h": b"1"}) for n in range(3)])
    mail.fail(0, 1, 2)
    assert cluster.admin.redrive("mail", ["0-1"], to="lost").redriven == 1
    again = cluster.admin.redrive("mail", ["0-0", "0-1"], to="lost")
    assert (again.redriven, again.already) == (1, 1)
    assert cluster.admin.redrive("mail", to="lost").redriven == 1
    found = read(cluster, "lost")
    assert sorted((record.value, record.key, record.headers) for record in found) == [
        (b"%d" % n, b"k%d" % n, {"h": b"1"}) for n in range(3)
    ]
    assert ids(cluster) == [] and mail.retries() == []
    with pytest.raises(UnknownTopic):
        cluster.admin.redrive("mail", to="nowhere")


@pytest.mark.parametrize("setting", [{"remember_ids_s": 3600}, {"settled_generation": 2}])
def test_they_go_to_another_topic_where_ids_were_forgotten(
    cluster: InMemoryCluster, mail: Mail, setting: dict[str, int]
) -> None:
    cluster.admin.change_settings(**setting)
    mail.send(Message("orders", b"x"))
    mail.fail(0)
    with cluster.producer("shop") as producer:
        for number in range(150):
            given = f"order-{number}" if number % 2 else None
            with producer.transaction(tx_id=given, local=False) as tx:
                tx.send(Message("orders", b"y"))
            cluster.clock.advance(60)
    assert cluster.admin.redrive("mail", to="lost").redriven == 1
    assert [record.value for record in read(cluster, "lost")] == [b"x"]


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("then", ["", "lost", "other", "drop"])
def test_whoever_comes_after_an_interrupted_redrive_settles_what_is_left(
    cluster: InMemoryCluster, mail: Mail, then: str, carried_out: bool
) -> None:
    cluster.admin.create_topic("other")
    mail.send(*[Message("orders", b"%d" % n) for n in range(3)])
    mail.fail(0, 1, 2)
    cluster.fail_next("commit", OutcomeUnknown, carried_out=carried_out)
    with pytest.raises(OutcomeUnknown):
        cluster.admin.redrive("mail", to="lost", by="kim")
    if then == "drop":
        settled = cluster.admin.drop_dead_letters("mail", None)
    else:
        settled = cluster.admin.redrive("mail", to=then or None).redriven
    assert settled == (0 if carried_out else 3), "what was not carried out is over in a few seconds"
    where = {name: len(read(cluster, name)) for name in ("lost", "other")} | {"": len(mail.retries())}
    told = "lost" if carried_out else then
    assert where == {name: 3 if name == told else 0 for name in where}
    assert ids(cluster) == [] and cluster.admin.list_transactions() == []


@pytest.mark.parametrize("died", ["prepare", "commit"])
@pytest.mark.parametrize("then", ["", "other", "drop"])
def test_what_an_operator_holds_who_has_died_is_rolled_back_and_free(
    cluster: InMemoryCluster, mail: Mail, monkeypatch: pytest.MonkeyPatch, died: str, then: str
) -> None:
    """Neither COMMIT nor ROLLBACK was ever sent: only the transaction's time ends it."""
    cluster.admin.create_topic("other")
    mail.send(*[Message("orders", b"%d" % n) for n in range(3)])
    mail.fail(0, 1, 2)
    at = getattr(_Redrive, died)

    def dies(self: _Redrive) -> None:
        if died == "prepare":
            at(self)  # the request is in the log, and its answer is not heard
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(_Redrive, died, dies)
        with pytest.raises(SystemExit):
            cluster.admin.redrive("mail", to="lost", by="kim")
    begun = cluster.clock.now()
    (held,) = cluster.admin.list_transactions()
    assert held.app == APP and ids(cluster) == ["0-0", "0-1", "0-2"]
    request = share_ack("mail", "__dead.mail", 0, [1, 1], mail.id_of("__dead.mail"), "DROPPED operator:kim")
    assert mail.submit(0, request)[0] == ResultCode.OFFSETS_PENDING, "they are held"
    if then == "drop":
        settled = cluster.admin.drop_dead_letters("mail", None)
    else:
        settled = cluster.admin.redrive("mail", to=then or None).redriven
    assert settled == 3 and HOLD_S - 1 < (cluster.clock.now() - begun).total_seconds() < HOLD_S + 2
    where = {name: len(read(cluster, name)) for name in ("lost", "other")} | {"": len(mail.retries())}
    assert where == {name: 3 if name == then else 0 for name in where}
    assert ids(cluster) == [] and cluster.admin.list_transactions() == []


@pytest.mark.parametrize("first", [None, "lost"])
@pytest.mark.parametrize("second", [None, "other", "drop"])
def test_of_two_operators_at_once_each_reports_what_it_has_done(
    cluster: InMemoryCluster, mail: Mail, monkeypatch: pytest.MonkeyPatch, first: str | None, second: str
) -> None:
    """The second comes behind the first one's look at what is left."""
    cluster.admin.create_topic("other")
    mail.send(*[Message("orders", b"%d" % n) for n in range(4)])
    mail.fail(0, 1, 2, 3)
    submit, begun = dead_letters.DeadLetters._submit, list[int]()
    send, told = Redirecting.send, list[int]()

    def meanwhile() -> None:
        if begun:
            return
        begun.append(1)
        chosen = ["0-1", "0-2"]
        if second == "drop":
            told.append(cluster.admin.drop_dead_letters("mail", chosen))
        else:
            told.append(cluster.admin.redrive("mail", chosen, to=second).redriven)

    def submitted(self: Any, *arguments: Any) -> Any:
        meanwhile()
        return submit(self, *arguments)

    def sent(self: Any, *arguments: Any) -> Any:
        meanwhile()
        return send(self, *arguments)

    monkeypatch.setattr(dead_letters.DeadLetters, "_submit", submitted)
    monkeypatch.setattr(Redirecting, "send", sent)
    done = cluster.admin.redrive("mail", to=first)
    assert told == [2] and (done.redriven, done.already) == (2, 2)
    copies = [record.value for record in (*read(cluster, "lost"), *read(cluster, "other"))]
    copies += [value for value, _ in mail.retries()]
    dropped = [b"1", b"2"] if second == "drop" else []
    assert sorted(copies + dropped) == [b"0", b"1", b"2", b"3"], "each once"
    assert ids(cluster) == []


def test_what_finds_no_room_in_one_entry_is_redriven_with_the_next(
    cluster: InMemoryCluster, mail: Mail
) -> None:
    large = 900_000
    mail.send(*[Message("orders", bytes([n]) * large) for n in range(8)])
    for n in range(8):
        mail.fail(n)
    assert cluster.admin.redrive("mail").redriven == 8
    assert sorted(value[0] for value, _ in mail.retries()) == list(range(8)) and ids(cluster) == []


def test_large_ones_go_to_another_topic_in_portions(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(*[Message("orders", bytes([n]) * 900_000) for n in range(8)])
    for n in range(8):
        mail.fail(n)
    assert cluster.admin.redrive("mail", to="lost").redriven == 8
    assert sorted(record.value[0] for record in read(cluster, "lost")) == list(range(8))
    assert ids(cluster) == []


class Several(InMemoryCluster):
    _GROUPS = 3


def test_letters_of_all_broker_groups_go_to_one_topic_by_their_keys() -> None:
    with Several(start=START) as cluster:
        cluster.admin.create_topic("orders", partitions=3)
        cluster.admin.create_topic("lost", partitions=2)
        with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
            with cluster.producer("shop") as producer:
                for n in range(30):
                    producer.send(Message("orders", b"%d" % n, b"k%d" % n)).result(0)
            left = 30
            while left:
                for record in queue.poll(timeout_s=0.2):
                    queue.reject(record, reason="no")
                    left -= 1
        assert {letter.id.partition("-")[0] for letter in cluster.admin.dead_letters("mail")} == {
            "0",
            "1",
            "2",
        }
        assert cluster.admin.redrive("mail", to="lost").redriven == 30
        found = read(cluster, "lost")
        assert sorted(int(record.value) for record in found) == list(range(30))
        assert all(record.partition == crc32c(record.key) % 2 for record in found)
        assert cluster.admin.redrive("mail").redriven == 0


def test_dropped_is_dropped(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(*[Message("orders", b"%d" % n) for n in range(5)])
    mail.fail(*range(5))
    assert cluster.admin.drop_dead_letters("mail", ["0-0", "0-2"], by="kim") == 2
    assert cluster.admin.drop_dead_letters("mail", ["0-0", "0-1"]) == 1
    assert ids(cluster) == ["0-3", "0-4"]
    assert cluster.admin.redrive("mail", ["0-0"]).already == 1
    assert cluster.admin.drop_dead_letters("mail", None) == 2
    assert ids(cluster) == [] and mail.retries() == []


def test_what_an_operator_does_is_in_the_audit_trail(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(*[Message("orders", b"%d" % n) for n in range(6)])
    mail.fail(*range(6))
    cluster.admin.redrive("mail", ["0-0", "0-1"], by="kim")
    cluster.admin.redrive("mail", ["0-1"], by="late")  # does nothing
    cluster.admin.redrive("mail", ["0-2"], to="lost", by="lee")
    cluster.admin.drop_dead_letters("mail", ["0-3", "0-5"], by="kim")
    (trail,) = cluster.admin._transactions._everywhere("audit")
    shown = [(entry.by, entry.app, entry.tx_id.partition(" (")[0], entry.outcome) for entry in trail]
    assert shown == [
        ("operator:kim", "mail", "__dead.mail/0@0-1", "REDRIVEN"),
        ("operator:lee", "mail", "__dead.mail/0@2-2 -> lost", "REDRIVEN"),
        ("operator:kim", "mail", "__dead.mail/0@3-5", "DROPPED"),
    ]


@pytest.mark.parametrize("topic", ["orders", "__retry.mail"])
def test_only_dead_letters_are_settled_by_operators(mail: Mail, topic: str) -> None:
    mail.send(Message("orders", b"x"))
    request = share_ack("mail", topic, 0, [0, 0], mail.id_of(topic), "DROPPED operator:kim")
    with pytest.raises(InvalidMessage):
        mail.submit(0, request)


def test_scattered_dead_letters_go_in_transactions_whose_ranges_the_trail_can_keep(
    cluster: InMemoryCluster, mail: Mail
) -> None:
    many = 2 * LETTER_RANGES_MAX + 6
    mail.send(*[Message("orders", b"%d" % n) for n in range(many)])
    mail.fail(*range(many))
    every_other = [f"0-{n}" for n in range(0, many, 2)]
    assert cluster.admin.redrive("mail", every_other, to="lost").redriven == many / 2
    (trail,) = cluster.admin._transactions._everywhere("audit")
    assert [entry.tx_id.count(",") + 1 for entry in trail] == [LETTER_RANGES_MAX, 3]
    found = [record.value for record in read(cluster, "lost")]
    assert sorted(found) == sorted(b"%d" % n for n in range(0, many, 2))


@pytest.mark.parametrize("do", ["redrive", "drop_dead_letters"])
def test_nothing_is_done_if_one_was_never_there(cluster: InMemoryCluster, mail: Mail, do: str) -> None:
    mail.send(Message("orders", b"x"))
    mail.fail(0)
    for unknown in ("0-1", "7-0"):
        with pytest.raises(UnknownDeadLetter, match=unknown):
            getattr(cluster.admin, do)("mail", ["0-0", unknown])
    for bad in ("", "0", "x-1", "0-", "-1", "0--1", "0-0x", 7, None):
        with pytest.raises(InvalidMessage, match="0-17"):
            getattr(cluster.admin, do)("mail", ["0-0", bad])
    for no_list in ("0-0", 7):
        with pytest.raises(ConfigError, match="list"):
            getattr(cluster.admin, do)("mail", no_list)
    for nobody in ("", "x" * 101, None):
        with pytest.raises(ConfigError, match="by"):
            getattr(cluster.admin, do)("mail", ["0-0"], by=nobody)
    assert ids(cluster) == ["0-0"]
    with pytest.raises(UnknownDeadLetter):
        cluster.admin.dead_letter("mail", "0-1")
    cluster.admin.drop_dead_letters("mail", None)
    with pytest.raises(UnknownDeadLetter):
        cluster.admin.dead_letter("mail", "0-0")


@pytest.mark.parametrize("group", ["nobody", "__retry.mail", "", "a b"])
def test_a_group_without_dead_letters_is_unknown_or_impossible(cluster: InMemoryCluster, group: str) -> None:
    for ask in (
        lambda: cluster.admin.dead_letters(group),
        lambda: cluster.admin.redrive(group),
        lambda: cluster.admin.drop_dead_letters(group, None),
    ):
        with pytest.raises(UnknownGroup if group == "nobody" else ConfigError):
            ask()


def test_compressed_values_are_shown_and_redriven_as_they_were_sent(
    cluster: InMemoryCluster, mail: Mail
) -> None:
    with cluster.producer("shop", compression="zstd") as producer:
        producer.send(Message("orders", b"x" * 5_000)).result(0)
    mail.fail(0)
    assert cluster.admin.dead_letters("mail")[0].value == b"x" * 5_000
    cluster.admin.redrive("mail")
    assert mail.retries() == [(b"x" * 5_000, 1)]


def test_an_app_hears_what_became_of_its_messages(cluster: InMemoryCluster, mail: Mail) -> None:
    with cluster.replies("shop") as replies:
        mail.send(*[Message("orders", b"%d" % n, b"k%d" % n, reply_to="shop") for n in range(2)])
        row = encode_row(None, b"sent to kim", None, None)
        request = share_reply("mail", "orders", 0, "shop", [0], [row], mail.id)
        assert mail.submit(0, request)[0] == ResultCode.OK
        mail.fail(1, reason="no such address")
        done, failed = replies.poll()
        assert (done.done, done.outcome, done.group, done.result) == (True, "done", "mail", b"sent to kim")
        assert done.origin is not None and done.origin[:3] == ("orders", 0, 0)
        assert (failed.done, failed.outcome, failed.by) == (False, "failed", "kim")
        assert failed.reason == "no such address"
        assert failed.origin is not None and failed.origin[:3] == ("orders", 0, 1)
        assert (failed.key, failed.attempts) == (b"k1", 1)
        replies.commit()
        assert replies.poll(timeout_s=0.1) == []
    with cluster.replies("shop") as again, cluster.replies("shop", group="audit") as audit:
        assert again.poll(timeout_s=0.1) == []
        assert len(audit.poll()) == 2
    for bad in ("", "a b", "__x", "x" * 181, 7):
        with pytest.raises(ConfigError, match="app"):
            cluster.replies(bad)  # type: ignore[arg-type]


def test_settings_count_from_the_next_failure_on(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(Message("orders", b"x"))
    cluster.admin.set_group("mail", max_attempts=3, delays_s=[100])
    mail.fail(0, delay_ms=BY_TABLE)
    share = cluster.admin.describe_group("mail").share
    assert share is not None and (share.retrying, share.retrying_later, share.dead) == (1, 1, 0)
    cluster.admin.set_group("mail", max_attempts=2)
    cluster.clock.advance(111)
    mail.fail(0, topic="__retry.mail", delay_ms=BY_TABLE)
    assert len(ids(cluster)) == 1


def test_topics_into_which_only_brokers_write_are_altered_as_others_are(
    cluster: InMemoryCluster, mail: Mail
) -> None:
    """They have a first group also where there is only one, unlike the topics that operators create."""
    cluster.replies("shop").close()
    mail.send(Message("orders", b"x"))
    mail.fail(0, delay_ms=0)
    for name in ("__retry.mail", "__dead.mail", "__replies.shop"):
        before = cluster.admin.describe_topic(name).info
        assert before.first_group == 0
        altered = cluster.admin.alter_topic(name, retention_ms=3_600_000)
        assert altered == replace(before, retention_ms=3_600_000)
        assert cluster.admin.create_topic(name) == altered == cluster.admin.describe_topic(name).info
        with pytest.raises(TopicExists, match="partitions is 1, not 2"):
            cluster.admin.create_topic(name, 2)
    assert cluster.admin.alter_topic("orders", check_max=3) == cluster.admin.describe_topic("orders").info


def test_a_group_that_has_never_had_retries_has_no_dead_letters() -> None:
    """Documented before a group is deleted: see what it would lose."""
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders")
        with cluster.consumer("billing", ["orders"]) as consumer:
            consumer.poll()
            consumer.commit()
        assert cluster.admin.dead_letters("billing") == []
        assert cluster.admin.redrive("billing").redriven == 0
        assert cluster.admin.drop_dead_letters("billing", None) == 0
