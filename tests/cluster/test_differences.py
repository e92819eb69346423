"""What ``escrowmq up`` says of a cluster that runs with other settings."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import launch
from escrowmq.cluster.cli.failing import USAGE, exit_code, explain
from escrowmq.cluster.config import all_leaves, stated
from escrowmq.cluster.launch import Difference, differences, how_to_change
from escrowmq.cluster.settings import ClusterSettings, SupervisorSettings
from escrowmq.cluster.supervisor.supervisor import SupervisorPlan, settings_in
from escrowmq.replication.errors import SettingsDiffer
from escrowmq.replication.net.tls import TlsFiles

PLAN = SupervisorPlan(ClusterSettings(groups=2), Path("/data"), None, BrokerConfig(), SupervisorSettings())
TLS = TlsFiles(Path("/cert"), Path("/key"), Path("/ca"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (PLAN, []),
        (replace(PLAN, shape=ClusterSettings(groups=1)), [("cluster.groups", 2, 1)]),
        (replace(PLAN, data_dir=Path("/other")), [("storage.data_dir", "/data", "/other")]),
        (
            replace(PLAN, broker=BrokerConfig(heartbeat_s=0.06, copy_bytes_max=1)),
            [("broker.copy_bytes_max", 64, 1), ("broker.heartbeat_s", 0.05, 0.06)],
        ),
        (
            replace(PLAN, tls=TLS),
            [
                ("security.tls_cert_file", None, "/cert"),
                ("security.tls_key_file", None, "/key"),
                ("security.tls_ca_file", None, "/ca"),
            ],
        ),
        (
            replace(
                PLAN, settings=SupervisorSettings(replace_after_s=12.0, nodes_min=3, start_timeout_s=5.0)
            ),
            [("supervisor.replace_after_s", 600.0, 12.0)],
        ),
    ],
)
def test_everything_that_differs_is_named(wanted: SupervisorPlan, found: list[tuple[str, Any, Any]]) -> None:
    told = differences(settings_in(PLAN), settings_in(wanted))
    assert sorted((d.path, d.running, d.wanted) for d in told) == sorted(found)


def test_what_one_of_two_versions_does_not_know_is_passed_over() -> None:
    earlier = {"cluster": {"groups": 2}, "storage": {"data_dir": "/data"}}
    assert differences(earlier, settings_in(PLAN)) == []
    later = {**settings_in(PLAN), "broker": {**settings_in(PLAN)["broker"], "of tomorrow": 1, "version": 9}}
    assert differences(later, settings_in(PLAN)) == []


def test_every_setting_that_is_compared_is_one_of_the_configuration() -> None:
    known = {leaf.path for leaf in all_leaves()}
    tree = settings_in(replace(PLAN, tls=TLS))
    found = {f"{section}.{name}" for section, values in tree.items() for name in values if name != "version"}
    assert found <= known
    sections = ("cluster.", "storage.", "supervisor.", "broker.")
    assert {path for path in known if path.startswith(sections)} <= found, "none is left out"


def test_it_says_how_each_is_changed() -> None:
    assert "founded" in how_to_change("cluster.replicas") and "founded" in how_to_change("security.secret")
    assert "move the directory" in how_to_change("storage.data_dir")
    assert how_to_change("broker.heartbeat_s") == "'escrowmq down', then 'escrowmq up' with this value"


def test_secrets_are_never_shown() -> None:
    (found,) = differences({"security": {"secret": "abc"}}, {"security": {"secret": "def"}})
    assert "abc" not in str(found) and "def" not in str(found) and found.path == "security.secret"


def test_the_error_is_one_line_and_a_hint_and_survives_a_process() -> None:
    difference = Difference("broker.heartbeat_s", 0.05, 0.06, "do this")
    raised = SettingsDiffer(f"it runs: {difference}; change it", [{"path": "x"}])
    error = pickle.loads(pickle.dumps(raised))  # noqa: S301
    assert explain(error) == (
        "error: it runs: broker.heartbeat_s is 0.05, not 0.06 (do this)\nhint: change it"
    )
    assert exit_code(error) == USAGE and error.differences == [{"path": "x"}]


def test_what_was_stated_is_told_from_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "escrowmq.yaml"
    file.write_text("cluster: {groups: 2}\nbroker:\n  heartbeat_s: 0.05\n")
    monkeypatch.setenv("ESCROWMQ_FEEDBACK__LEADER__SEARCH_EVERY_S", "0.2")
    given = {"storage": {"data_dir": Path("/data")}, "cluster": {"replicas": None}}
    assert stated(file, given) == {
        "cluster.groups",
        "broker.heartbeat_s",
        "feedback.leader.search_every_s",
        "storage.data_dir",
    }
    assert stated() == {"feedback.leader.search_every_s"}
    monkeypatch.setenv("ESCROWMQ_CONFIG", str(file))
    assert "broker.heartbeat_s" in stated()


class Answers:
    """Stands for a supervisor's handle: a method for each answer."""

    def __init__(self, **answers: Any) -> None:
        for name, answer in answers.items():
            setattr(self, name, SimpleNamespace(remote=lambda told=answer: told))


def test_a_supervisor_tells_settings_and_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.ray, "get", lambda told, timeout: told)
    info = ClusterInfo("c", "escrowmq", 2, 3)
    wanted = settings_in(replace(PLAN, broker=BrokerConfig(heartbeat_s=0.06)))
    told = {**settings_in(PLAN), "secret_fingerprint": "abc"}
    known = launch._settings_of(Answers(settings=told), info)
    assert known["security"]["secret"] == "abc" and differences(known, wanted)[-1].path.startswith("broker.")
