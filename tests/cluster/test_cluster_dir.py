"""The supervisor's directory: whose it is, its lock, its secret, and what may not change."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from escrowmq.cluster.settings import ClusterSettings, SecuritySettings
from escrowmq.cluster.supervisor.cluster_dir import (
    CLUSTER_FILE,
    SECRET_FILE,
    ClusterDir,
    Secret,
    given_secret,
    kept_secret,
    read_secret,
)
from escrowmq.cluster.supervisor.member_steps import Seat
from escrowmq.cluster.supervisor.stale_replica_dirs import Find, FoundMembers, adopted, look, refuse_existing
from escrowmq.replication.errors import (
    ConfigError,
    CorruptLog,
    DataDirLocked,
    DataDirMismatch,
    NotAuthorized,
    UnknownVersion,
)
from escrowmq.replication.format.membership import Members, members_mark
from escrowmq.replication.log.datadir import MEMBERS, DataDir, Identity

SHAPE = ClusterSettings()


@contextmanager
def opened(path: Path, shape: ClusterSettings = SHAPE, secret: Secret | None = None) -> Iterator[ClusterDir]:
    directory = ClusterDir(path, shape, secret)
    try:
        yield directory
    finally:
        directory.close()


def founded(path: Path) -> str:
    with opened(path) as directory:
        directory.keep(directory.record.with_seats([Seat(0, 0, "n0"), Seat(0, 1, "n1", 2)]))
        return directory.record.cluster_id


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    cluster_id = founded(tmp_path)
    with opened(tmp_path) as again:
        assert again.record.cluster_id == cluster_id
        assert again.record.seats[0, 1] == Seat(0, 1, "n1", 2)


def test_that_a_group_had_a_leader_is_kept_for_ever(tmp_path: Path) -> None:
    founded(tmp_path)
    with opened(tmp_path) as directory:
        directory.keep(directory.record.with_founded([0]))
        directory.keep(directory.record.with_seats([Seat(0, 1, "n2", 3)]))
    with opened(tmp_path) as again:
        assert again.record.founded == (0,)
        assert again.record.with_founded([2, 0]).founded == (0, 2)


def test_a_second_cluster_on_the_same_directory_is_locked_out(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(DataDirLocked, match=f"process {os.getpid()}.*use another directory"),
    ):
        ClusterDir(tmp_path, SHAPE, None)
    with opened(tmp_path):  # and the lock ends with its holder
        pass


def test_a_directory_of_another_namespace_is_refused(tmp_path: Path) -> None:
    founded(tmp_path)
    with pytest.raises(DataDirMismatch, match=r"namespace 'escrowmq'.*its own data directory"):
        ClusterDir(tmp_path, ClusterSettings(namespace="other"), None)


@pytest.mark.parametrize("shape", [ClusterSettings(groups=2), ClusterSettings(replicas=5)])
def test_the_shape_cannot_change(tmp_path: Path, shape: ClusterSettings) -> None:
    founded(tmp_path)
    with pytest.raises(ConfigError, match=r"was founded with .* cannot be changed"):
        ClusterDir(tmp_path, shape, None)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    founded(tmp_path)
    content = json.loads((tmp_path / CLUSTER_FILE).read_text())
    (tmp_path / CLUSTER_FILE).write_text(json.dumps({**content, "format_version": 2}))
    with pytest.raises(UnknownVersion, match=r"format version 2.*upgrade"):
        ClusterDir(tmp_path, SHAPE, None)


def edited(path: Path, **changed: object) -> None:
    """The record as a later version might have written it."""
    content = json.loads((path / CLUSTER_FILE).read_text())
    (path / CLUSTER_FILE).write_text(json.dumps({**content, **changed}))


def test_what_a_later_version_wants_is_carried_along(tmp_path: Path) -> None:
    """An earlier supervisor once dropped what had been wanted, with its first change."""
    founded(tmp_path)
    wishes = {"drained": ["n1"], "evenly": {"groups": [0]}}
    edited(tmp_path, racks={"n0": "a"}, wishes=wishes)
    with opened(tmp_path) as directory:
        directory.change(lambda record: record.with_founded([0]))
        assert directory.record.wishes.drained == ("n1",)
    content = json.loads((tmp_path / CLUSTER_FILE).read_text())
    assert content["racks"] == {"n0": "a"} and content["wishes"]["evenly"] == {"groups": [0]}
    assert content["founded"] == [0] and content["wishes"]["drained"] == ["n1"]
    with opened(tmp_path) as again:  # and we read what we have carried
        assert again.record.founded == (0,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seats": [{"gid": 0, "rid": 0, "node": "n0", "incarnation": 0, "rack": "a"}]}, "rack in seats"),
        ({"wishes": {"moves": [{"gid": 0, "rid": 0, "node": "n1", "by_s": 60}]}}, "by_s in moves"),
    ],
)
def test_what_cannot_be_carried_along_is_refused(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    founded(tmp_path)
    edited(tmp_path, **changed)
    before = (tmp_path / CLUSTER_FILE).read_text()
    with pytest.raises(UnknownVersion, match=f"{said}.*start the later version again"):
        ClusterDir(tmp_path, SHAPE, None)
    assert (tmp_path / CLUSTER_FILE).read_text() == before


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format_version": 1}', '{"format_version": 1, "seats": [3]}']
)
def test_a_damaged_file_is_refused_and_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / CLUSTER_FILE).write_text(text)
    with pytest.raises(CorruptLog, match="restore it from a backup"):
        ClusterDir(tmp_path, SHAPE, None)
    assert (tmp_path / CLUSTER_FILE).read_text() == text


def test_another_secret_is_refused_and_no_secret_means_the_kept_one(tmp_path: Path) -> None:
    founded(tmp_path)
    with pytest.raises(NotAuthorized, match=r"the cluster in .* was founded with another secret"):
        ClusterDir(tmp_path, SHAPE, Secret(b"quite another secret"))
    with opened(tmp_path) as again:
        assert again.secret.reveal() == kept_secret(tmp_path).reveal()


def test_the_generated_secret_is_its_owners_alone(tmp_path: Path) -> None:
    founded(tmp_path)
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600
    secret = kept_secret(tmp_path)
    assert len(secret.reveal()) == 64
    assert secret.reveal().decode() not in f"{secret} {secret!r} {(tmp_path / CLUSTER_FILE).read_text()}"
    assert pickle.loads(pickle.dumps(secret)).reveal() == secret.reveal()  # noqa: S301


def test_a_given_secret_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from a file, long enough\n")
    path.chmod(0o600)
    from_file = given_secret(SecuritySettings(secret_file=path))
    from_text = given_secret(SecuritySettings(secret=SecretStr("from a variable, long")))
    assert from_file is not None and from_file.reveal() == b"from a file, long enough"
    assert from_text is not None and from_text.reveal() == b"from a variable, long"
    assert given_secret(SecuritySettings()) is None


def test_a_secret_file_that_everybody_can_read_or_that_is_short_or_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match="cannot read the secret file"):
        read_secret(path)
    path.write_text("x" * 40)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        read_secret(path)


def test_a_directory_that_cannot_be_made_is_a_setting_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot use the data directory .*storage\.data_dir"):
        ClusterDir(tmp_path / "file" / "below", SHAPE, None)


def test_data_of_an_unknown_cluster_are_found_before_founding_over_them(tmp_path: Path) -> None:
    DataDir(tmp_path / "g0-r2-i1", Identity("elsewhere", 0, 2)).close()
    (tmp_path / "unrelated").mkdir()
    found = look(str(tmp_path), "n7")
    assert found == [Find("n7", "elsewhere", 0, 2, 1)]
    with pytest.raises(DataDirMismatch, match=r"node 'n7' holds replica 2 of group 0 .*--adopt"):
        refuse_existing(found, tmp_path)
    refuse_existing([], tmp_path)


def test_adopting_takes_the_newest_incarnation_and_needs_every_replica() -> None:
    finds = [
        Find("a", "c", 0, 0, 0),
        Find("b", "c", 0, 1, 0),
        Find("d", "c", 0, 1, 1),
        Find("e", "c", 0, 2, 0),
    ]
    found = adopted(finds, 1, 3)
    cluster_id, seats = found.cluster_id, found.seats
    assert cluster_id == "c"
    assert {seat.key: (seat.node, seat.incarnation) for seat in seats}[0, 1] == ("d", 1)
    with pytest.raises(DataDirMismatch, match="bring up all nodes"):
        adopted(finds[:3], 1, 3)
    with pytest.raises(DataDirMismatch, match="data of 2 clusters"):
        adopted([*finds, Find("f", "other", 0, 0, 0)], 1, 3)


def test_adopting_a_group_whose_members_have_changed_needs_those_that_it_has_now() -> None:
    def find(rid: int, version: int, *voters: int, learners: tuple[int, ...] = ()) -> Find:
        highest = max(3, *voters, *learners)
        return Find(f"n{rid}", "c", 0, rid, 0, FoundMembers(version, voters, learners, highest))

    before, now = find(1, 2, 0, 1, 2), [find(2, 4, 0, 2, 3), find(3, 4, 0, 2, 3), Find("n0", "c", 0, 0, 0)]
    found = adopted([before, *now], 1, 3)
    assert {seat.rid for seat in found.seats} == {0, 2, 3} and found.sizes == {0: 3}
    assert [seat.rid for seat in found.retired] == [1], "it was removed, and its directory may go"
    with pytest.raises(DataDirMismatch, match="bring up all nodes"):
        adopted([before, *now[1:]], 1, 3)
    coming = adopted([before, *now, Find("n4", "c", 0, 4, 0)], 1, 3)
    assert {seat.rid for seat in coming.seats} == {0, 2, 3, 4}, "whether it is wanted is decided later"
    for count, size in ((1, 1), (2, 3), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7)):
        made = [find(rid, 9, *range(count)) for rid in range(count)]
        assert adopted(made, 1, 1).sizes == {0: size}
    with pytest.raises(DataDirMismatch):
        adopted([Find("a", "c", 0, 0, 0), Find("b", "c", 0, 1, 0)], 1, 1)


def test_what_a_replica_notes_of_its_groups_members_is_found(tmp_path: Path) -> None:
    DataDir(tmp_path / "g0-r2", Identity("c", 0, 2)).close()
    members = Members(7, ("0", "2"), ("11",), "why", 11)
    (tmp_path / "g0-r2" / MEMBERS).write_text(members_mark(members))
    assert look(str(tmp_path), "n")[0].members == FoundMembers(7, (0, 2), (11,), 11)
    (tmp_path / "g0-r2" / MEMBERS).write_bytes(b"\x00damaged")
    assert look(str(tmp_path), "n")[0].members is None
