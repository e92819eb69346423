"""Intents: written once, found by the second driver, refused when damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError, CorruptLog, UnknownVersion
from escrowmq.spark_integration.sink.intents import (
    KEPT,
    Attempt,
    Intent,
    IntentStore,
    chunk_id,
    decode,
    encode,
    epoch_id_of,
    epoch_of,
)


def intent(epoch: int, name: str = "0.0.ab") -> Intent:
    return Intent(epoch, epoch_id_of("q", epoch), (Attempt(name, {0: 2, 1: 1}), Attempt("1.0.cd", {})))


def test_an_intent_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = IntentStore(str(tmp_path))
    assert store.read(3) is None and store.epochs() == []
    assert store.create(intent(3)) == intent(3) == store.read(3)
    assert store.epochs() == [3]
    assert intent(3).ids() == {
        0: ["spark:q:3/0.0.ab/0.0", "spark:q:3/0.0.ab/0.1"],
        1: ["spark:q:3/0.0.ab/1.0"],
    }


def test_who_comes_second_gets_what_is_there(tmp_path: Path) -> None:
    store = IntentStore(str(tmp_path))
    assert store.create(intent(1, "first")) == intent(1, "first")
    assert store.create(intent(1, "second")) == intent(1, "first")


def test_of_many_at_once_one_wins_and_all_see_it(tmp_path: Path) -> None:
    start = threading.Barrier(16)
    found: list[Intent] = []

    def race(name: str) -> None:
        store = IntentStore(str(tmp_path))
        start.wait()
        found.append(store.create(intent(9, name)))

    threads = [threading.Thread(target=race, args=(f"driver-{i}",)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16 and len({i.attempts[0].name for i in found}) == 1
    assert [path.name for path in (tmp_path / "escrowmq").iterdir()] == ["9.json"]


def test_an_intent_that_is_found_is_durable_before_anybody_acts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creator may have died before its directory, a new one, was on the disk."""
    writer = IntentStore(str(tmp_path / "check"), "alerts")
    monkeypatch.setattr("os.fsync", lambda _: None)
    writer.create(intent(3))
    synced: set[tuple[int, int]] = set()
    monkeypatch.setattr("os.fsync", lambda handle: synced.add(identity(os.fstat(handle))))
    wanted = {
        identity(os.stat(tmp_path / name)) for name in ("check", "check/escrowmq", "check/escrowmq/alerts")
    }
    finder = IntentStore(str(tmp_path / "check"), "alerts")
    assert finder.read(4) is None and not synced, "nothing found, nothing to make durable"
    assert finder.read(3) == intent(3) and synced >= wanted
    synced.clear()
    assert finder.create(intent(3, "second")) == intent(3) and synced >= wanted


def identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def test_old_intents_are_pruned_as_spark_prunes(tmp_path: Path) -> None:
    store = IntentStore(str(tmp_path))
    for epoch in range(KEPT + 5):
        store.create(intent(epoch))
        store.prune(epoch)
    assert store.epochs() == list(range(5, KEPT + 5))


def test_uris_of_files_and_of_other_systems(tmp_path: Path) -> None:
    plain, uri = IntentStore(str(tmp_path / "a b")), IntentStore(f"file://{tmp_path}/a%20b")
    plain.create(intent(1))
    assert uri.read(1) == intent(1)
    with pytest.raises(ConfigError, match="cannot be opened"):
        IntentStore("nonsense://host/path")


def test_remote_systems_do_the_same_through_pyarrow(tmp_path: Path) -> None:
    import pyarrow.fs

    store = IntentStore(str(tmp_path))
    store._local, store._files = None, pyarrow.fs.LocalFileSystem()  # the same code path as hdfs:// and s3://
    assert store.read(1) is None and store.epochs() == [] and store.committed_epoch() == -1
    assert store.create(intent(1)) == intent(1) == store.create(intent(1, "second"))
    store.remove(1)
    assert store.epochs() == []


@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    good = encode(intent(4))
    at = data.draw(st.integers(0, len(good) - 2))
    bad = bytearray(good)
    bad[at] = data.draw(st.integers(0, 255).filter(lambda b: b != good[at]))
    try:
        assert decode(bytes(bad), "it") == intent(4)  # white space, or the like
    except (CorruptLog, UnknownVersion) as error:
        assert "it " in str(error)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"intent": 3, "crc32c": 0}', b"\xff\xfe"])
def test_a_damaged_intent_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    store = IntentStore(str(tmp_path))
    store.create(intent(2))
    (tmp_path / "escrowmq" / "2.json").write_bytes(content)
    with pytest.raises(CorruptLog, match=r"2\.json is damaged .* restore it"):
        store.read(2)


def test_a_newer_version_and_a_moved_file_are_refused(tmp_path: Path) -> None:
    store = IntentStore(str(tmp_path))
    store.create(intent(2))
    path = tmp_path / "escrowmq" / "2.json"
    newer = json.loads(path.read_bytes())
    path.rename(tmp_path / "escrowmq" / "5.json")
    with pytest.raises(CorruptLog, match="is the intent of epoch 2"):
        store.read(5)
    newer["intent"]["version"] = 2
    path.write_text(json.dumps(newer))
    with pytest.raises(UnknownVersion, match="version 2"):
        store.read(2)


def test_sinks_that_share_a_checkpoint_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q-1"}')
    plain, alerts = IntentStore(str(tmp_path)), IntentStore(str(tmp_path), "alerts")
    assert plain.names() == [""] and alerts.query_id() == "q-1.alerts"
    alerts.create(intent(1, "of alerts"))
    plain.create(intent(1, "plain"))
    assert plain.names() == ["", "alerts"] and plain.epochs() == alerts.epochs() == [1]
    assert (plain.read(1), alerts.read(1)) == (intent(1, "plain"), intent(1, "of alerts"))


def test_sparks_part_of_the_checkpoint(tmp_path: Path) -> None:
    store = IntentStore(str(tmp_path))
    assert store.committed_epoch() == -1
    with pytest.raises(ConfigError, match="not a checkpoint of a streaming query"):
        store.query_id()
    (tmp_path / "metadata").write_text('{"id":"q-1"}')
    (tmp_path / "commits").mkdir()
    for name in ("0", "1", "10", ".10.crc", "2.tmp"):
        (tmp_path / "commits" / name).touch()
    assert (store.query_id(), store.committed_epoch()) == ("q-1", 10)


def test_ids_say_their_epoch() -> None:
    assert epoch_of(chunk_id(epoch_id_of("a-b", 12), "3.0.ff", 0, 7)) == epoch_of("spark:a-b:12") == 12
    assert epoch_of("order-17") is epoch_of("spark:x:y") is epoch_of("spark:a:1b") is None
