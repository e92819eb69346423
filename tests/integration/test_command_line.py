"""The command line against a real cluster: both formats, exit codes, errors as one line and a hint."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from typer.testing import CliRunner, Result

from escrowmq import Cluster, Message, TransactionState, TxStatusQuerier
from escrowmq.cluster import reading_client
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.options import ConnectionOptions
from escrowmq.cluster.reading_server import ReadingServer
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.integrations import Fence, Inbox
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ray

Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def running(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    # A busy replica may answer status late; a damaged one stays away, and this wait fails.
    wait_until(lambda: cluster.status().healthy, 20.0, "the shared cluster's health after a command")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def good(*arguments: str, stdin: str | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = run(*arguments, stdin=stdin)
    assert done.exit_code == 0, f"{arguments}: {done.output}"
    return done.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(good(*arguments, "--format", "json"))


def lines_of(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in good(*arguments, "--format", "json").splitlines()]


@pytest.fixture
def topic(cluster: Cluster, unique: Unique) -> str:
    name = unique("cli")
    cluster.admin.create_topic(name, partitions=2)
    return name


def left_open(cluster: Cluster, topic: str, tx_id: str, app_name: str) -> None:
    """A prepared transaction whose producer does not decide it."""
    with cluster.producer(app=app_name) as producer, producer.transaction(tx_id=tx_id, query_id="q-7") as tx:
        tx.send(Message(topic, b"held back", partition=0))
        tx.prepare()
        tx.unknown()


class Undecided(TxStatusQuerier):
    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return TransactionState.UNKNOWN


# ------------------------------------------------------------ through an exporter


def test_commands_that_only_read_are_answered_by_an_exporter(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answers is what the cluster answers."""
    cluster.consumer(group=topic, topics=[topic]).close()  # its first places stay
    left_open(cluster, topic, tx_id := f"t-{topic}", "exporter-reads")
    commands = (
        ("topic", "list"), ("topic", "describe", topic), ("group", "describe", topic), ("group", "list"),
        ("txn", "show", tx_id, "--app", "exporter-reads"), ("settings",), ("members",), ("node", "list"),
    )  # fmt: skip
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr(reading_client, "folders", lambda: [tmp_path / "escrowmq"])
    joined = {command: as_json(*command) for command in commands}
    health = as_json("status")
    server = ReadingServer(cluster, "exporter", tmp_path / "escrowmq")
    server.start()
    monkeypatch.setattr(ConnectionOptions, "joined", None)
    try:
        assert {command: as_json(*command) for command in commands} == joined
        told = as_json("status")
        assert told.keys() == health.keys() and told["cluster_id"] == health["cluster_id"]
        assert tx_id in good("txn", "list", "--app", "exporter-reads")
        assert topic in good("group", "list") and "leader" in good("status")
        assert run("topic", "describe", "nosuch").exit_code == 4
    finally:
        monkeypatch.undo()
        server.close()
        cluster.admin.resolve_transaction(tx_id, TransactionState.ROLLBACK, "exporter-reads", "test")


def test_commands_that_only_read_are_answered_by_the_supervisor(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its machine no command has to join Ray, and nobody has to start an exporter for that."""
    monkeypatch.setattr(ConnectionOptions, "joined", None)
    at = ("--address", cluster.address)
    assert topic in [entry["name"] for entry in as_json("topic", "list", *at)]
    assert as_json("status", *at)["cluster_id"] == cluster.info.cluster_id
    assert len(as_json("node", "list", *at)) == 1
    assert run("topic", "describe", "nosuch", *at).exit_code == 4


# ------------------------------------------------------------ topics


def test_a_topic_is_created_listed_described_and_deleted(unique: Unique) -> None:
    name = unique("made")
    created = as_json("topic", "create", name, "--partitions", "3", "--on-check-exhausted", "rollback")
    assert (created["partitions"], created["on_check_exhausted"]) == (3, "rollback")
    assert name in [entry["name"] for entry in as_json("topic", "list")]
    assert name in good("topic", "list")
    described = as_json("topic", "describe", name)
    (listed,) = (entry for entry in as_json("topic", "list") if entry["name"] == name)
    for shown in (created, listed, described["info"]):
        assert (shown["retention_ms"], shown["retention_bytes"]) == (-1, -1)
    assert "retention bytes         -1" in good("topic", "describe", name)
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert "partition" in good("topic", "describe", name)
    assert run("topic", "delete", name, stdin="n\n").exit_code == 1
    good("topic", "delete", name, "--yes")
    assert name not in [entry["name"] for entry in as_json("topic", "list")]


def test_a_topic_says_how_long_its_messages_are_kept(unique: Unique) -> None:
    week, always = unique("week"), unique("always")
    assert "deleted after 7 days" in good("topic", "create", week, "--retention-ms", "604800000")
    assert "deleted after 7 days" in good("topic", "create", week), "nothing stated: taken as it is"
    assert "for ever" in good("topic", "create", always)
    for verb in (("describe", week), ("list",)):
        assert "deleted after 7 days" in good("topic", *verb)
    assert "for ever" in good("topic", "describe", always)
    conflict = run("topic", "create", week, "--retention-ms", "-1")
    assert conflict.exit_code == 5 and "retention_ms is 604800000, not -1" in conflict.stderr


def test_a_topic_is_altered_while_it_is_used(topic: str) -> None:
    wait_until(lambda: run("topic", "alter", topic).exit_code == 0, 20.0, "level 3")
    altered = as_json("topic", "alter", topic, "--retention-ms", "3600000", "--check-max", "2")
    assert (altered["retention_ms"], altered["check_max"]) == (3_600_000, 2)
    assert "deleted after 1 hour" in good("topic", "describe", topic)
    assert "for ever" in good("topic", "alter", topic, "--retention-ms", "-1")
    assert as_json("topic", "describe", topic)["info"]["check_max"] == 2
    assert run("topic", "alter", topic, "--check-max", "0").exit_code == 2
    assert run("topic", "alter", "no-such-topic").exit_code == 4


def test_a_topics_oldest_messages_are_deleted_by_hand(topic: str) -> None:
    good("produce", topic, *map(str, range(6)), "--partition", "1")
    asked = run("topic", "trim", topic, "--before", "4", "--partition", "1", stdin="n\n")
    assert asked.exit_code == 1 and "Delete these 4 messages" in asked.stderr
    assert len(lines_of("consume", topic)) == 6
    (said,) = as_json("topic", "trim", topic, "--before", "4", "--partition", "1", "--yes")
    assert (said["start"], said["before"], said["end"], said["messages"]) == (0, 4, 6, 4)
    assert [record["value"] for record in lines_of("consume", topic)] == ["4", "5"]
    assert (
        sum(said["messages"] for said in as_json("topic", "trim", topic, "--before", "2099-01-01", "-y")) == 2
    )
    assert lines_of("consume", topic) == []
    for wrong in (("--before", "4"), ("--before", "soon"), ("--before", "7", "--partition", "1")):
        assert run("topic", "trim", topic, *wrong, "--yes").exit_code in (1, 2)


def test_errors_are_one_line_and_a_hint_with_an_exit_code_of_their_own(topic: str, unique: Unique) -> None:
    unknown = run("topic", "describe", unique("nowhere"))
    assert unknown.exit_code == 4
    assert unknown.stderr.startswith("error: unknown topic")
    assert "\nhint: escrowmq topic create" in unknown.stderr
    assert "Traceback" not in unknown.output

    conflict = run("topic", "create", topic, "--partitions", "5")
    assert conflict.exit_code == 5 and "exists with other settings" in conflict.stderr
    assert run("topic", "create", unique("t"), "--partitions", "0").exit_code == 2
    assert run("topic", "create").exit_code == 2
    assert run("txn", "show", unique("nobody")).exit_code == 4


def test_a_name_that_nothing_has_is_no_empty_answer(topic: str, unique: Unique) -> None:
    beyond = run("consume", topic, "--partition", "17")
    assert (
        beyond.exit_code == 4
        and "has no partition 17 (it has 2)\nhint: choose one of 0 to 1" in beyond.stderr
    )
    nobody = run("group", "describe", unique("nosuch"))
    assert nobody.exit_code == 4 and "unknown consumer group" in nobody.stderr
    assert run("txn", "list", "--topic", unique("nope")).exit_code == 4
    assert as_json("txn", "list", "--topic", topic) == []


def test_another_address_or_namespace_is_said_plainly(tmp_path: Path) -> None:
    elsewhere = run("status", "--namespace", "elsewhere")
    assert elsewhere.exit_code == 3 and "no EscrowMQ cluster in namespace 'elsewhere'" in elsewhere.stderr
    assert run("status", "--address", "127.0.0.1:1").exit_code == 2  # this process is connected already
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("clustr: {}")
    refused = run("status", "--config", str(wrong))
    assert refused.exit_code == 2 and "did you mean 'cluster'" in refused.stderr


# ------------------------------------------------------------ produce and consume


def test_messages_go_in_as_arguments_and_come_out_in_order(topic: str) -> None:
    assert "2" in good("produce", topic, "one", "two", "--key", "k", "--header", "from=cli")
    found = lines_of("consume", topic)
    assert [record["value"] for record in found] == ["one", "two"]
    assert found[0]["key"] == "k" and found[0]["headers"] == {"from": "cli"} and found[0]["tx_id"] is None
    assert [record["offset"] for record in found] == [0, 1]
    assert "one" in good("consume", topic).splitlines()[0]
    assert set(good("consume", topic, "-f", "%v;").split(";")) > {record["value"] for record in found}


def test_messages_come_from_the_standard_input_a_file_and_json_lines(topic: str, tmp_path: Path) -> None:
    good("produce", topic, stdin="a\nb\n")
    file = tmp_path / "lines"
    file.write_text("k1:v1\nk2:v:2\n")
    good("produce", topic, "--file", str(file), "--key-separator", ":")
    entries = [{"value": "ü", "key": "j", "headers": {"h": "x"}}, {"value": "", "partition": 1}]
    good("produce", topic, "--json", stdin="".join(json.dumps(entry) + "\n" for entry in entries))
    found = {(record["key"], record["value"]) for record in lines_of("consume", topic)}
    assert found == {(None, "a"), (None, "b"), ("k1", "v1"), ("k2", "v:2"), ("j", "ü"), (None, "")}


def test_ten_thousand_lines_go_in_and_come_out(topic: str, tmp_path: Path) -> None:
    file = tmp_path / "many"
    file.write_text("".join(f"{n}\n" for n in range(10_000)))
    assert "10000" in good("produce", topic, "--file", str(file))
    assert sorted(int(record["value"]) for record in lines_of("consume", topic)) == list(range(10_000))


def test_a_topic_is_copied(cluster: Cluster, topic: str, unique: Unique) -> None:
    cluster.admin.create_topic(copy := unique("copy"), partitions=2)
    with cluster.producer(app="bytes") as producer, producer.transaction() as tx:
        tx.send(Message(topic, b"\xff\x00", key=b"\xfe", headers={"h": b"\x80"}, partition=1))
        tx.send(Message(topic, "ü\n".encode(), partition=0))
    good("produce", copy, "--json", stdin=good("consume", topic, "--format", "json"))
    told = ("partition", "offset", "key", "value", "headers")
    source, copied = (
        sorted(json.dumps([record[name] for name in told]) for record in lines_of("consume", of))
        for of in (topic, copy)
    )
    assert len(source) == 2 and source == copied


def test_a_transaction_goes_in_whole_and_shows_its_id(topic: str) -> None:
    sent = json.loads(good("produce", topic, "x", "y", "--transaction", "--format", "json"))
    found = lines_of("consume", topic)
    assert sorted(record["value"] for record in found) == ["x", "y"]
    assert {record["tx_id"] for record in found} == {sent["tx_id"]}


def test_bytes_that_are_no_text_come_out_as_base64(cluster: Cluster, topic: str) -> None:
    with cluster.producer(app="bytes") as producer:
        producer.send(Message(topic, b"\xff\x00")).result(20)
    assert lines_of("consume", topic)[0]["value"] == {"base64": "/wA="}


def test_where_to_begin_and_where_to_end_can_be_said(cluster: Cluster, topic: str) -> None:
    with cluster.producer(app="bounds", linger_ms=0) as producer:
        stored = [producer.send(Message(topic, b"%d" % n, partition=0)).result(20) for n in range(4)]
    assert [r["value"] for r in lines_of("consume", topic, "--max", "2")] == ["0", "1"]
    assert lines_of("consume", topic, "--from", "latest") == []
    since = lines_of("consume", topic, "--from", str(stored[2].timestamp))
    assert [r["value"] for r in since][-2:] == ["2", "3"]
    assert lines_of("consume", topic, "--partition", "1") == []
    followed = lines_of("consume", topic, "--follow", "--from", "earliest", "--max", "4")
    assert [r["value"] for r in followed] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("produce", "t", "x", "--file", "f"), "give only one of them"),
        (("produce", "t", "--file", "/no/such/file"), "cannot read"),
        (("produce", "t", "x", "--header", "novalue"), "a header must be name=value"),
        (("produce", "t", "x", "--json", "--key", "k"), "with --json, each line"),
        (("consume", "t", "--from", "yesterday"), "--from must be"),
        (("consume", "t", "--group", "g", "--partition", "0"), "with --group"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: tuple[str, ...], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code in (2, 4) and complaint in done.stderr


@pytest.mark.parametrize(
    "line",
    ["{", '{"key": "k"}', '{"value": 3}', '{"value": "v", "topic": "t"}', '{"value": "v", "headers": 1}'],
)
def test_a_json_line_that_does_not_fit_is_refused_with_its_number(topic: str, line: str) -> None:
    done = run("produce", topic, "--json", stdin='{"value": "fine"}\n' + line + "\n")
    assert done.exit_code == 2 and "line 2" in done.stderr


# ------------------------------------------------------------ groups


def test_a_group_reads_once_commits_and_shows_its_lag(topic: str, unique: Unique) -> None:
    group = unique("group")
    good("produce", topic, "one", "two", "three")
    assert len(lines_of("consume", topic, "--group", group, "--max", "2")) == 2
    assert group in [entry["group"] for entry in as_json("group", "list")]
    described = as_json("group", "describe", group)
    assert sum(place["committed"] or 0 for place in described["partitions"]) == 2
    assert len(lines_of("consume", topic, "--group", group, "--max", "1")) == 1
    assert as_json("group", "describe", group)["lag"] == 0
    assert "lag" in good("group", "describe", group)
    assert group in good("group", "list")
    assert "continues from there" in run("group", "reset", group, "--to", "earliest", "--yes").stderr
    assert as_json("group", "describe", group)["lag"] == 3
    assert run("group", "reset", group, "--to", "soon", "--yes").exit_code == 2
    assert "is deleted" in run("group", "delete", group, "--yes").stderr
    assert group not in good("group", "list") and run("group", "delete", group, "--yes").exit_code == 4


# ------------------------------------------------------------ transactions


def test_a_fence_is_audited_and_purged(cluster: Cluster, topic: str, unique: Unique, tmp_path: Path) -> None:
    app_name, url = unique("shop"), f"sqlite:///{tmp_path / 'shop.db'}"
    now = [time.time() - 30 * 86_400]
    fence = Fence(create_engine(url), app=app_name, clock=lambda: now[0])
    fence.create_table()
    with cluster.producer(app=app_name, tx_status_querier=fence) as producer:
        with fence.transaction(producer, Message(topic, b"old")):
            pass
        now[0] = time.time()
        with fence.transaction(producer, Message(topic, b"new")) as (tx, _):
            pass
    assert as_json("db", "audit", url, "--app", app_name, "--days", "90") == []
    left_open(cluster, topic, by_hand := unique("tx"), app_name)
    good("txn", "commit", by_hand)
    assert fence.query_status(by_hand, "q-7") is TransactionState.ROLLBACK  # the query came too late
    audited = run("db", "audit", url, "--app", app_name, "--format", "json")
    assert audited.exit_code == 1 and "2 rows read" in audited.stderr
    assert json.loads(audited.stdout) == [{"tx_id": by_hand, "database": "ROLLBACK", "broker": "COMMITTED"}]
    assert "1 rows removed of 3 read" in run("db", "purge", url, "--app", app_name).stderr
    assert fence.query_status(tx.tx_id, "") is TransactionState.COMMITTED
    assert run("db", "purge", "nosuch://x", "--app", app_name).exit_code == 2


def test_an_inbox_is_purged(cluster: Cluster, topic: str, unique: Unique, tmp_path: Path) -> None:
    group, url = unique("billing"), f"sqlite:///{tmp_path / 'accounts.db'}"
    engine = create_engine(url)
    inbox = Inbox(engine, group=group, clock=lambda: time.time() - 30 * 86_400)
    inbox.create_table()
    with cluster.producer(app=unique("shop")) as producer:
        for number in range(2):
            producer.send(Message(topic, b"%d" % number, partition=0)).result(20)
    consuming = cluster.consumer(group=group, topics=[topic], auto_offset_reset="earliest")
    with consuming as consumer, engine.begin() as db:
        seen = 0
        while seen < 2:
            for record in consumer.poll(max_records=1, timeout_s=10):
                with inbox.once(db, record) as first:
                    assert first
                seen += 1
                if seen == 1:
                    consumer.commit()  # the second one may be delivered again
    purged = run("db", "purge", url, "--group", group)
    assert "1 rows removed of 2 read" in purged.stderr, purged.output
    assert run("db", "purge", url, "--group", group, "--app", "x").exit_code == 2
    assert run("db", "purge", url, "--app", "x", "--by-age").exit_code == 2
    assert "1 rows removed of 1 read" in run("db", "purge", url, "--group", group, "--by-age").stderr
    assert run("db", "purge", url).exit_code == 2


def test_an_open_transaction_is_listed_shown_and_committed_by_hand(
    cluster: Cluster, topic: str, unique: Unique
) -> None:
    tx_id, app_name = unique("tx"), unique("app")
    left_open(cluster, topic, tx_id, app_name)
    (entry,) = as_json("txn", "list", "--app", app_name)
    assert (entry["tx_id"], entry["query_id"], entry["parked"]) == (tx_id, "q-7", False)
    assert tx_id in good("txn", "list", "--topic", topic)
    assert as_json("txn", "list", "--app", app_name, "--state", "parked") == []
    assert as_json("txn", "show", tx_id)["state"] == "PREPARE"
    assert tx_id in good("txn", "show", tx_id)
    assert lines_of("consume", topic) == []

    assert as_json("txn", "commit", tx_id, "--by", "ops")["state"] == "COMMITTED"
    assert as_json("txn", "show", tx_id)["decided_by"] == "operator:ops"
    assert "operator:ops" in good("txn", "show", tx_id)
    assert [record["value"] for record in lines_of("consume", topic)] == ["held back"]
    assert as_json("txn", "commit", tx_id)["state"] == "COMMITTED"  # repeating it is harmless

    refused = run("txn", "rollback", tx_id)
    assert refused.exit_code == 5 and "already recorded as COMMITTED" in refused.stderr


def test_a_transaction_rolled_back_by_hand_is_never_read(
    cluster: Cluster, topic: str, unique: Unique
) -> None:
    tx_id, app_name = unique("tx"), unique("app")
    left_open(cluster, topic, tx_id, app_name)
    assert as_json("txn", "rollback", tx_id, "--app", app_name)["state"] == "ROLLBACK"
    assert lines_of("consume", topic) == []
    assert as_json("txn", "list", "--app", app_name) == []


def test_a_parked_transaction_is_checked_once_more(cluster: Cluster, unique: Unique) -> None:
    class Database(TxStatusQuerier):
        knows = TransactionState.UNKNOWN

        def query_status(self, tx_id: str, query_id: str) -> TransactionState:
            return self.knows

    name, app_name, tx_id, database = unique("cli"), unique("app"), unique("tx"), Database()
    cluster.admin.create_topic(name, check_max=1, transaction_timeout_ms=100)

    def state() -> tuple[str, bool]:
        shown = as_json("txn", "show", tx_id)
        return shown["state"], any(entry["parked"] for entry in shown["open"].values())

    with cluster.producer(app_name, tx_status_querier=database) as producer:
        with producer.transaction(tx_id=tx_id) as tx:
            tx.send(Message(name, b"held back"))
            tx.prepare()
            tx.unknown()
        wait_until(lambda: state() == ("PREPARE", True), 20.0, "the transaction is parked")
        database.knows = TransactionState.COMMITTED
        assert as_json("txn", "recheck", tx_id)["state"] == "PREPARE"
        wait_until(lambda: state() == ("COMMITTED", False), 20.0, "its check is answered")
    settled = run("txn", "recheck", tx_id)
    assert settled.exit_code == 5 and "already recorded as COMMITTED" in settled.stderr
    left_open(cluster, name, f"{tx_id}-2", app_name)
    assert "is not parked" in run("txn", "recheck", f"{tx_id}-2").stderr
    good("txn", "rollback", f"{tx_id}-2")


# ------------------------------------------------------------ the cluster


def test_status_shows_every_replica(cluster: Cluster) -> None:
    status = as_json("status")
    assert status["healthy"] and status["cluster_id"] == cluster.info.cluster_id
    assert [replica["replica"] for replica in status["groups"][0]["replicas"]] == [0, 1, 2]
    shown = good("status")
    assert "leader" in shown and "follower" in shown and cluster.info.cluster_id in shown
    assert "decisions not done" in shown and status["groups"][0]["across"]["undone"] == 0


def test_status_shows_the_feedback_processes(cluster: Cluster, unique: Unique) -> None:
    def told() -> list[ShardReport]:
        return [process.report for process in cluster.status().feedback or () if process.report]

    with cluster.producer(unique("app"), tx_status_querier=Undecided()):
        wait_until(lambda: sum(report.polls_parked for report in told()) > 0, 30.0, "a parked producer")
        assert [report.shard for report in told()] == list(range(told()[0].shards))
        assert as_json("status")["feedback"][0]["report"]["pid"] == told()[0].pid
        assert "feedback process" in good("status")


def test_up_on_a_running_cluster_changes_nothing_and_says_what_differs(cluster: Cluster) -> None:
    assert as_json("up")["cluster_id"] == cluster.info.cluster_id
    refused = run("up", "--replicas", "5")
    assert refused.exit_code == 2
    assert "was not changed: cluster.replicas is 3, not 5 (fixed when" in refused.stderr


def test_up_again_with_the_same_settings_and_with_others(
    ray_local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESCROWMQ_BROKER__SEGMENT_BYTES", str(1 << 20))
    own = ("--namespace", f"up-{uuid.uuid4().hex[:8]}")
    same = ("up", *own, "--groups", "2", "--replicas", "1", "--data-dir", str(tmp_path / "data"))
    try:
        first = as_json(*same)
        assert first["groups"] == 2
        assert as_json(*same) == first, "the same again"
        assert as_json("up", *own) == first, "nothing is said of what its founding has fixed"
        wait_until(
            lambda: all(group["level"] >= 4 for group in as_json("status", *own)["groups"]), 20.0, "level 4"
        )
        placed = "placed-4"  # without a place it would begin in group 0
        good("topic", "create", placed, "--partitions", "2", *own)
        hosts = [place["group"] for place in as_json("topic", "describe", placed, *own)["partitions"]]
        assert hosts == [1, 0]
        for partition in "01":
            good("produce", placed, partition, "--partition", partition, *own)
        assert sorted(record["value"] for record in lines_of("consume", placed, *own)) == ["0", "1"]
        monkeypatch.setenv("ESCROWMQ_BROKER__SEGMENT_BYTES", str(2 << 20))
        refused = run(*same[:-1], str(tmp_path / "other"), "--nodes-min", "1")
        assert refused.exit_code == 2
        told = refused.stderr.splitlines()[0]
        assert f"storage.data_dir is {tmp_path / 'data'}, not {tmp_path / 'other'} (" in told
        assert "broker.segment_bytes is 1048576, not 2097152 ('escrowmq down', then" in told
        assert told.count(", not ") == 2, "and nothing else"
        assert not (tmp_path / "other").exists()
    finally:
        good("down", *own)


def test_replicated_settings_are_shown_and_changed(cluster: Cluster) -> None:
    """A new cluster has already reached the required format level by itself."""
    wait_until(lambda: run("settings").exit_code == 0, 20.0, "level 2")
    before = {row["setting"]: row["value"] for row in as_json("settings")}
    assert before["remember_ids_s"] == 86_400
    changed = {row["setting"]: row["value"] for row in as_json("settings", "remember_ids_s=86401")}
    assert changed == {**before, "remember_ids_s": 86_401}
    good("settings", "remember_ids_s=86400")
    assert run("settings", "remember_ids_s=0").exit_code == 2
    assert "NAME=NUMBER" in run("settings", "remember_ids_s").output
