"""``escrowmq dead`` and ``escrowmq group set|describe`` against a cluster in memory."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from escrowmq import Cluster, Message, RetryPolicy
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.failing import FAILED, NOT_FOUND, USAGE
from escrowmq.testing import InMemoryCluster
from tests.support.mail import Mail

START = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("by-hand")
        commands_join(made)
        yield made


@pytest.fixture
def mail(cluster: InMemoryCluster) -> Mail:
    """Three dead letters and one retry."""
    made = Mail(cluster)
    made.send(*[Message("orders", b"mail %d" % n, b"k", {"h": b"1"}) for n in range(4)])
    made.fail(0, 1, reason="no such address [x]")
    cluster.clock.advance(60)
    made.fail(2, reason="timed out")
    made.fail(3, delay_ms=60_000)
    return made


def run(*arguments: str, input: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=input)


def ids(*options: str) -> list[str]:
    return [one["id"] for one in json.loads(run("dead", "list", "mail", *options, "--format", "json").stdout)]


def test_list_and_show_tell_why_a_message_failed(mail: Mail) -> None:
    table = run("dead", "list", "mail").stdout
    assert all(text in table for text in ("0-0", "orders/0@0", "no such address [x]", "kim", "mail 2"))
    assert ids() == ["0-0", "0-1", "0-2"]
    assert ids("--reason", "timed") == ids("--since", "2026-07-01T00:01Z") == ["0-2"]
    limited = run("dead", "list", "mail", "--limit", "2")
    assert "0-2" not in limited.stdout and "these are the first 2" in limited.stderr
    shown = run("dead", "show", "mail", "0-1").stdout
    assert all(text in shown for text in ("orders/0@1", "h=1", "mail 1", "2026-07-01 00:00:00.000Z"))
    found = json.loads(run("dead", "show", "mail", "0-1", "--format", "json").stdout)
    assert (found["origin"], found["attempts"], found["headers"]) == ("orders/0@1", 1, {"h": "1"})


def test_redrive_names_letters_or_asks_for_all(cluster: InMemoryCluster, mail: Mail) -> None:
    done = run("dead", "redrive", "mail", "0-0", "--by", "kim", "--format", "json")
    assert json.loads(done.stdout) == {"redriven": 1, "already": 0, "unreadable": 0}
    assert json.loads(run("dead", "redrive", "mail", "0-0", "--format", "json").stdout)["already"] == 1
    assert run("dead", "redrive", "mail", "--all", input="n\n").exit_code == FAILED
    assert ids() == ["0-1", "0-2"]
    asked = run("dead", "redrive", "mail", "--all", "--to-topic", "by-hand", input="y\n")
    assert asked.exit_code == 0 and "has 2 dead letters" in asked.stderr
    assert ids() == []
    with cluster.consumer("g", ["by-hand"], auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll()] == [b"mail 1", b"mail 2"]
    assert mail.retries() == [(b"mail 0", 1)]
    assert "has no dead letters" in run("dead", "list", "mail").stderr


def test_nobody_is_asked_about_a_group_without_dead_letters(mail: Mail) -> None:
    for command in (("redrive", "--all"), ("drop", "--all"), ("drop", "0-0")):
        unknown = run("dead", command[0], "nobody", *command[1:], input="y\n")
        assert unknown.exit_code == NOT_FOUND and "?" not in unknown.stderr, unknown.stderr
    assert run("dead", "drop", "mail", "--all", "-y").exit_code == 0
    none = run("dead", "redrive", "mail", "--all", "--format", "json")
    assert none.exit_code == 0 and json.loads(none.stdout)["redriven"] == 0


def test_a_user_without_a_name_is_told_to_give_one(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 123456")

    monkeypatch.setattr(getpass, "getuser", nameless)
    for command in (
        ("dead", "drop", "mail", "0-0", "-y"),
        ("dead", "redrive", "mail", "0-0"),
        ("group", "set", "mail", "--max-attempts", "3"),
        ("group", "delete", "mail", "-y"),
        ("txn", "commit", "tx-1"),
    ):
        refused = run(*command)
        assert refused.exit_code == USAGE and "give --by" in refused.stderr, (command, refused)
    assert run("dead", "drop", "mail", "0-0", "-y", "--by", "kim").exit_code == 0


def test_trace_tells_into_which_topic_a_letter_went(mail: Mail) -> None:
    run("dead", "redrive", "mail", "0-1", "--to-topic", "by-hand")
    (told,) = json.loads(run("message", "trace", "orders", "0", "1", "--format", "json").stdout)["groups"]
    copy = json.loads(run("message", "show", "by-hand", "0", "0", "--format", "json").stdout)
    assert (told["state"], told["to"], told["tx_id"]) == ("redriven", "by-hand", copy["tx_id"])
    table = run("message", "trace", "orders", "0", "1").stdout
    assert "┃ to" in table, table
    assert "┃ to" not in run("message", "trace", "orders", "0", "0").stdout


def test_drop_asks_first(mail: Mail) -> None:
    assert run("dead", "drop", "mail", "0-0", input="n\n").exit_code == FAILED
    assert len(ids()) == 3
    assert json.loads(run("dead", "drop", "mail", "0-0", "-y", "--format", "json").stdout) == {"dropped": 1}
    assert run("dead", "drop", "mail", "--all", "--yes", "--rate", "5").exit_code == USAGE
    assert run("dead", "drop", "mail", "--all", "--yes").exit_code == 0
    assert ids() == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["redrive", "mail"], USAGE), (["redrive", "mail", "0-0", "--all"], USAGE), (["drop", "mail"], USAGE),
        (["redrive", "mail", "nonsense"], USAGE), (["list", "mail", "--since", "tomorrow"], USAGE),
        (["redrive", "mail", "0-0", "--rate", "0"], USAGE), (["list", "__dead.mail"], USAGE),
        (["redrive", "mail", "0-9"], NOT_FOUND), (["show", "mail", "0-9"], NOT_FOUND),
        (["drop", "mail", "-y", "0-9"], NOT_FOUND), (["list", "nobody"], NOT_FOUND),
        (["redrive", "mail", "0-0", "--to-topic", "nowhere"], NOT_FOUND),
    ],
)  # fmt: skip
def test_what_cannot_be_done_has_an_exit_code(mail: Mail, arguments: list[str], code: int) -> None:
    done = run("dead", *arguments)
    assert done.exit_code == code, done.output
    assert len(ids()) == 3


def test_describe_and_trace_tell_what_a_consumer_has(cluster: InMemoryCluster, mail: Mail) -> None:
    mail.send(Message("orders", b"new"), Message("orders", b"newer"))  # the second one stays with the broker
    with cluster.share_consumer("mail", ["orders"]) as consumer:
        (record,) = consumer.poll(max_records=1)
        found = json.loads(run("group", "describe", "mail", "--format", "json").stdout)["share"]
        (partition,) = found["partitions"]
        assert (partition["start"], partition["end"], partition["lag"], partition["leased"]) == (4, 6, 2, 1)
        assert (found["leased"], found["retrying"], found["retrying_later"], found["dead"]) == (1, 1, 1, 3)
        table = run("group", "describe", "mail").stdout
        assert re.search(r"leased +1 *\n", table) and "1 (1 later)" in table, table
        trace = "message", "trace", "orders", "0"
        (told,) = json.loads(run(*trace, str(record.offset), "--format", "json").stdout)["groups"]
        assert (told["group"], told["state"]) == ("mail", "leased") and told["member"]
        assert re.search(rf"mail .*leased .*{told['member'][:4]}", run(*trace, str(record.offset)).stdout)
        consumer.release(record)
    (told,) = json.loads(run(*trace, str(record.offset), "--format", "json").stdout)["groups"]
    assert (told["state"], told["member"]) == ("waiting", "")
    assert json.loads(run("group", "describe", "mail", "--format", "json").stdout)["share"]["leased"] == 0


def test_describe_shows_the_partition_that_waits_for_a_failed_message(cluster: InMemoryCluster) -> None:
    Mail(cluster).send(Message("by-hand", b"one"))
    retry = RetryPolicy(order="ordered")
    with cluster.consumer("billing", ["by-hand"], auto_offset_reset="earliest", retry=retry) as consumer:
        (record,) = consumer.poll(timeout_s=5.0)
        assert not re.search("lag +┃ +attempts", run("group", "describe", "billing").stdout)
        consumer.nack(record, delay_s=60)
    told = run("group", "describe", "billing").stdout
    assert re.search("lag +┃ +attempts", told) and "1 (0 later)" in told and "leased" not in told, told
    found = json.loads(run("group", "describe", "billing", "--format", "json").stdout)
    attempts = {partition["topic"]: partition["attempts"] for partition in found["partitions"]}
    assert attempts == {"by-hand": 1, "__retry.billing": 0} and found["share"]["retrying"] == 1


def test_group_set_and_describe(mail: Mail) -> None:
    done = run("group", "set", "mail", "--max-attempts", "3", "--delays-s", "0.5,60", "--max-age-s", "3600")
    assert done.exit_code == 0, done.output
    told = json.loads(run("group", "set", "mail", "--max-age-s", "none", "--format", "json").stdout)
    assert (told["max_attempts"], told["delays_s"], told["max_age_s"]) == (3, [0.5, 60.0], None)
    table = run("group", "describe", "mail").stdout
    assert all(text in table for text in ("share", "0.5, 60", "no limit", "1 (1 later)", "orders"))
    found = json.loads(run("group", "describe", "mail", "--format", "json").stdout)
    assert (found["kind"], found["lag"], found["share"]["dead"]) == ("share", 0, 3)
    (listed,) = json.loads(run("group", "list", "--format", "json").stdout)
    assert (listed["group"], listed["kind"], listed["dead"], listed["partitions"]) == ("mail", "share", 3, 1)
    for bad in (
        ["--delays-s", "1,x"],
        ["--max-age-s", "soon"],
        ["--max-attempts", "0"],
        ["--dead-letters", "x"],
    ):
        assert run("group", "set", "mail", *bad).exit_code == USAGE
