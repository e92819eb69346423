"""The site of ``make docs``: it builds without a warning, and its pages agree with the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from escrowmq.actors.admin.transactions import LIST_MAX
from escrowmq.actors.broker import coordinator
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.group_service import TOPICS_MAX
from escrowmq.actors.client.call_arguments import OPERATOR_CHARS_MAX
from escrowmq.actors.client.consumer_groups import GROUP_NAME_BYTES_MAX, INSTANCE_ID_MAX
from escrowmq.actors.client.topic_placement import TOPICS_KEPT
from escrowmq.actors.consumer.arguments import NACK_DELAY_S_MAX, POLL_S_MAX
from escrowmq.actors.consumer.record_drain import NACKED_MAX
from escrowmq.actors.producer.batcher import STREAMS_MAX
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.core import STICKY_MAX
from escrowmq.replication.format.internal_topics import OWNER_CHARS_MAX
from escrowmq.replication.format.membership import VOTERS_MAX
from escrowmq.replication.format.settings import ATTEMPTS_MAX, PARTITIONS_MAX
from escrowmq.replication.format.share_ops import REASON_BYTES_MAX
from escrowmq.replication.limits import NAME_CHARS_MAX, PARTICIPANTS_MAX, TIMEOUT_MS_MAX
from escrowmq.replication.state import shares

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/site/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_a_page_and_a_docstring(pages: ModuleType) -> None:
    assert len(pages.public_names()) == len(pages.REFERENCE)
    assert pages.undocumented() == []


def test_a_public_name_without_a_page_or_a_docstring_is_named(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def call(self) -> None: ...

    monkeypatch.setattr("escrowmq.__all__", ["Silent", *__import__("escrowmq").__all__])
    monkeypatch.setattr("escrowmq.Silent", Silent, raising=False)
    with pytest.raises(Exception, match=r"look at escrowmq\.Silent"):
        pages.public_names()
    monkeypatch.setitem(pages.REFERENCE, "admin", ("Administration", "", "Admin Silent"))
    assert pages.undocumented() == ["escrowmq.Silent", "escrowmq.Silent.call"]


def test_every_error_has_a_recipe(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.errors_without_recipe() == []
    text = (ROOT / "docs/errors.md").read_text()
    recipes = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert all("**What:**" in recipe and "**Do:**" in recipe for recipe in recipes)
    monkeypatch.setattr("escrowmq.__all__", [n for n in __import__("escrowmq").__all__ if n != "Closed"])
    assert pages.errors_without_recipe() == ["Closed"], "a section of what is no public error"


def test_what_public_calls_return_has_an_entry(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.without_entry() == []
    monkeypatch.setitem(pages.RETURNED, "producer", ())
    assert pages.without_entry() == ["AsyncProducer.transaction: AsyncTransaction"]


def test_the_limits_are_those_of_the_code() -> None:
    mib, day_s = 1 << 20, 86_400
    producer = ProducerConfig()
    assert (producer.message_bytes_max, producer.transaction_bytes_max) == (mib, 16 * mib)
    assert BrokerConfig().open_transactions_max == 2_000_000
    assert (10 * 366 * day_s * 1000, 3600, day_s) == (TIMEOUT_MS_MAX, POLL_S_MAX, NACK_DELAY_S_MAX)
    numbers = {
        "an app, a transaction's id, a query id": NAME_CHARS_MAX,
        "a consumer group": GROUP_NAME_BYTES_MAX,
        "who decides by hand (`by=`)": OPERATOR_CHARS_MAX,
        "partitions of a topic": PARTITIONS_MAX,
        "broker groups that one transaction writes to": PARTICIPANTS_MAX,
        "a consumer's `instance_id`": INSTANCE_ID_MAX,
        "topics that a member reads, named or by a pattern": TOPICS_MAX,
        "partitions of a broker group of which a producer knows that it has sent to them": STREAMS_MAX,
        "topics of which a producer knows where its keyless messages gather": STICKY_MAX,
        "topics that a client knows": TOPICS_KEPT,
        "members of a consumer group": coordinator.MEMBERS_MAX,
        "consumer groups with live members, of one broker group": coordinator.GROUPS_MAX,
        "replicas of a broker group": VOTERS_MAX,
        "records that a consumer without `retry` holds back after `nack`": NACKED_MAX,
        "transactions that one `txn list` shows": LIST_MAX,
        "pairs of a share group and a partition, of one broker group": shares.PAIRS_MAX,
        "consumer groups with settings of their own": shares.GROUPS_MAX,
        "acknowledged ranges behind messages that are not acknowledged": shares.RANGES_MAX,
        "attempts, and delays in the table of a group": ATTEMPTS_MAX,
        "a reason for a failure": REASON_BYTES_MAX,
        "a group with retries or of shares, an app that gets replies": OWNER_CHARS_MAX,
    }
    rows = dict(
        re.findall(r"^\| (.+?) \| (.+?) \|", (ROOT / "docs/limits.md").read_text(), flags=re.MULTILINE)
    )
    for what, limit in numbers.items():
        assert re.search(rf"(?<![\d,]){limit:,}(?![\d,])", rows[what]), (what, limit, rows[what])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a broken link or anchor fails, and so does a page outside the navigation. Not with --quiet,
    which keeps warnings from being counted."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    producer = (tmp_path / "reference/producer.html").read_text()
    assert "send_message_in_transaction" in producer and ":class:" not in producer
    for inherited in ("Transaction.unknown", "Transaction.state", "Transaction.tx_id"):
        assert f'id="escrowmq.actors.producer.transactions.transaction.{inherited}"' in producer, inherited
    admin = (tmp_path / "reference/admin.html").read_text()
    assert 'Admin.drain_node"' in admin and 'types.ClusterStatus"' in admin
    assert "ProducerCore" not in producer, "constructors of what calls return are nobody's business"
    assert "escrowmq topic create" in (tmp_path / "reference/command-line.html").read_text()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?(\w+:)?//""", page.read_text())
        assert not loaded, f"{page.name} loads something from elsewhere"
