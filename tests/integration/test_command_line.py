"""The command line against a real cluster: both formats, exit codes, errors as one line and a hint."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq import Cluster, TransactionState, TxStatusQuerier
from escrowmq.cluster import reading_client
from escrowmq.cluster.cli.options import ConnectionOptions
from escrowmq.cluster.supervisor.reading_server import ReadingServer
from escrowmq.feedback.asking.shard_report import ShardReport
from tests.support.command_line import as_json, good, left_open, lines_of, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("healthy_again")]

Unique = Callable[[str], str]


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
    server = ReadingServer(cluster, "exporter", [tmp_path / "escrowmq"])
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
    assert run("topic", "alter", topic).exit_code == 0, "nothing to alter"
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
        wait_until(lambda: len(told()) == told()[0].shards, 30.0, "each process's report")
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
    before = {row["setting"]: row["value"] for row in as_json("settings")}
    assert before["remember_ids_s"] == 86_400
    changed = {row["setting"]: row["value"] for row in as_json("settings", "remember_ids_s=86401")}
    assert changed == {**before, "remember_ids_s": 86_401}
    good("settings", "remember_ids_s=86400")
    assert run("settings", "remember_ids_s=0").exit_code == 2
    assert "NAME=NUMBER" in run("settings", "remember_ids_s").output
