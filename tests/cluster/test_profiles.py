"""Profiles: clusters by name, used where they are named and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.options import AUTO, ConnectionOptions
from escrowmq.cluster.config import load_config
from escrowmq.replication.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ESCROWMQ_PROFILE", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


def test_a_profile_says_what_the_options_do_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = home / "escrowmq.yaml"
    settings.write_text("cluster: {groups: 2}\n")
    assert run("set", "stage", "--address", "10.0.0.1:6379", "--config", str(settings)).exit_code == 0
    assert run("set", "prod", "--address", "10.0.0.2:6379", "--namespace", "shop").exit_code == 0
    stage = ConnectionOptions(profile="stage").resolved()
    assert (stage.address, stage.namespace, stage.config) == ("10.0.0.1:6379", None, settings)
    given = ConnectionOptions("127.0.0.1:1", "other", Path("mine.yaml"), profile="stage").resolved()
    assert (given.address, given.namespace, given.config) == ("127.0.0.1:1", "other", Path("mine.yaml"))
    assert ConnectionOptions().resolved() == ConnectionOptions(AUTO), "none is a silent default"
    monkeypatch.setenv("ESCROWMQ_PROFILE", "prod")
    assert ConnectionOptions().resolved() == ConnectionOptions("10.0.0.2:6379", "shop")
    assert load_config().cluster.groups == 1, "the variable is the command line's: no setting"
    assert ConnectionOptions(profile="stage").resolved() == stage


def test_profiles_are_listed_replaced_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no profiles in" in run("list").stderr
    run("set", "prod", "--address", "10.0.0.2:6379")
    run("set", "prod", "--address", "10.0.0.3:6379")
    monkeypatch.setenv("ESCROWMQ_PROFILE", "prod")
    (row,) = json.loads(run("list", "--format", "json").stdout)
    assert (row["profile"], row["address"], row["chosen"]) == ("prod", "10.0.0.3:6379", True)
    assert run("remove", "prod").exit_code == 0
    with pytest.raises(ConfigError, match="no profile 'prod'; known profiles: none"):
        ConnectionOptions().resolved()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "prod"), "a profile cannot be empty"),
        (("set", "-x/y", "--address", "a:1"), "No such option"),
        (("set", "x/y", "--address", "a:1"), "is not a valid profile name"),
        (("remove", "nosuch"), "no profile 'nosuch'"),
    ],
)
def test_mistakes_are_refused_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    refused = run(*arguments)
    assert refused.exit_code == 2 and said in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize("content", ["[]", "prod: {nosuch: 1}", "prod: text", "{", "1: {address: a}"])
def test_a_file_that_is_none_of_ours_is_refused_by_its_name(home: Path, content: str) -> None:
    (home / "escrowmq").mkdir()
    (home / "escrowmq/profiles.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"profile"):
        ConnectionOptions(profile="prod").resolved()
