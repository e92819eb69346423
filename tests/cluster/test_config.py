"""The configuration tree: where values come from, what is refused, and that its page is current."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from escrowmq.cluster import config_doc, guide_doc
from escrowmq.cluster.config import (
    Config,
    all_leaves,
    leaves,
    load_config,
    nearest,
    override,
    reason,
    variable_of,
)
from escrowmq.replication.errors import ConfigError

ROOT = Path(__file__).parents[2]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "escrowmq.yaml"
    path.write_text(text)
    return path


def test_without_anything_every_value_is_its_default() -> None:
    assert load_config() == Config()
    assert load_config().cluster.replicas == 3


def test_a_file_beats_defaults_a_variable_beats_the_file_an_argument_beats_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "cluster: {groups: 2, replicas: 5}\nproducer: {channel: {calls_in_flight: 3}}\n")
    monkeypatch.setenv("ESCROWMQ_CLUSTER__REPLICAS", "1")
    monkeypatch.setenv("ESCROWMQ_PRODUCER__CHANNEL__PROBE_AFTER_S", "0.5")

    config = load_config(path, {"producer": {"linger_ms": 0}, "broker": {"segment_bytes": None}})

    assert (config.cluster.groups, config.cluster.replicas) == (2, 1)
    assert config.producer.channel.calls_in_flight == 3
    assert config.producer.channel.probe_after_s == 0.5
    assert config.producer.linger_ms == 0
    assert config.broker.segment_bytes == 64 << 20


def test_the_file_can_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCROWMQ_CONFIG", str(written(tmp_path, "cluster: {groups: 4}")))
    assert load_config().cluster.groups == 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("clutser: {groups: 2}", "unknown key 'clutser' .*did you mean 'cluster'"),
        (
            "broker: {segment_byte: 1}",
            "unknown key 'broker.segment_byte' .*did you mean 'broker.segment_bytes'",
        ),
        ("groups: 2", "did you mean 'cluster.groups'"),
        ("producer: {channel: {calls: 1}}", "unknown key 'producer.channel.calls'"),
        ("zzzzzz: 1", "docs/configuration.md"),
        ("cluster:", "'cluster' .* is empty"),
        ("cluster: 3", "cluster: "),
        ("cluster: {groups: many}", "cluster.groups: input should be a valid integer"),
        ("cluster: {replicas: 4}", "cluster: replicas must be 1, 3, 5 or 7, not 4"),
        ("cluster: {groups: 0}", "groups must be 1 to 64"),
        ("cluster: {namespace: 'a b'}", "namespace must be letters"),
        ("broker: {heartbeat_s: 9}", "heartbeat_s"),
        ("ray: {num_cpus: 0}", "num_cpus must be a number above 0"),
        ("supervisor: {check_every_s: -1}", "check_every_s must be a number above 0"),
        ("[1, 2]", "must hold sections"),
        ("a: [", "is not valid YAML"),
        (
            "cluster: {groups: 3}\nstorage: {}\ncluster: {replicas: 5}",
            "not valid YAML: a key is there twice, line 3, column 1$",
        ),
        ("cluster: {groups: 3, groups: 2}", "a key is there twice, line 1, column 22$"),
        ("cluster: {groups: 3, 'groups': 2}", "a key is there twice"),
        ("security: {secret: hunter2, secret: hunter3}", "a key is there twice, line 1, column 29$"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(written(tmp_path, text))


def test_a_key_beside_a_merged_one_is_not_there_twice(tmp_path: Path) -> None:
    text = "cluster: &some\n  groups: 2\n  <<: {replicas: 1, groups: 3}\n"
    config = load_config(written(tmp_path, text))
    assert (config.cluster.groups, config.cluster.replicas) == (2, 1)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file /no/such\.yaml"):
        load_config("/no/such.yaml")


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCROWMQ_BROKER__SEGMENT_BITES", "1")
    with pytest.raises(ConfigError, match="did you mean 'ESCROWMQ_BROKER__SEGMENT_BYTES'"):
        load_config()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("producer.acks", "docs/configuration.md lists all of them"),
        ("broker.retention", "docs/configuration.md lists all of them"),
        ("consumer.group_id", "docs/configuration.md lists all of them"),
        ("broker.segment_size", "did you mean 'broker.segment_bytes'?"),
        ("producer.fetch_bytes", "did you mean 'consumer.fetch_bytes'?"),
        ("feedbak.shards", "did you mean 'feedback.shards'?"),
        ("feedbak.shard", "did you mean 'feedback'?"),
    ],
)
def test_a_name_of_other_systems_gets_no_hint_that_leads_astray(wrong: str, hint: str) -> None:
    """Of two names, the section counted as likeness: ``producer.acks`` was told ``producer.part_bytes``."""
    known = [leaf.path for leaf in all_leaves()]
    assert nearest(wrong, known, {path.rpartition(".")[0] for path in known}) == hint


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'producer\.linger_ms'"):
        override(Config(), {"producer": {"linger": 1}})


def test_an_argument_of_the_wrong_type_is_refused_by_path() -> None:
    with pytest.raises(ConfigError, match=r"consumer\.fetch_bytes: "):
        override(Config(), {"consumer": {"fetch_bytes": "lots"}})


def test_a_secret_shows_in_no_error_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCROWMQ_SECURITY__SECRET", "hunter2")
    with pytest.raises(ConfigError, match="at least 16 characters") as refused:
        load_config()
    assert "hunter2" not in str(refused.value)

    monkeypatch.setenv("ESCROWMQ_SECURITY__SECRET", "correct horse battery staple")
    config = load_config()
    assert "horse" not in f"{config} {config!r} {config.security}"


SECRET = "k3yQwhZbnMp7Lx9TfVr"


@pytest.mark.parametrize(
    "text",
    [
        "security: {secret: @%}",
        "security: {secret: %, %",
        'security: {secret: "\\%"}',
        "security:\n  secret: !% x",
        "security:\n  secret: !'% x'x",
        "security:\n  secret: *%",
        "security: {secret: &% 1, secret_file: &% 2}",
        "security: {secret: !!int %}",
        "security: {secret: !!float %}",
        "security: {secret: !!bool %}",
        "security: {secret: !!timestamp %}",
        "security: {secret: !!binary %}",
        "? [%]\n: 1",
        "security: %",
        "security: {secret: [%]}",
        "security: {secret: {%: 1}}",
        "security: {secret:%}",
        "security: {secret=%}",
        "security: {secret:: %}",
        "security: {%: 1}",
        "{secret:%}",
        "secret=%: 1",
        "security: {secret_file: [%]}",
        "security: {tls_cert_file: /a, tls_key_file: -----BEGIN %, tls_ca_file: /a}",
    ],
)
def test_a_secret_in_a_wrong_file_is_not_quoted(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "cluster: {groups: 2}\n" * (text[0] == "s") + text.replace("%", SECRET))
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    said = "".join(traceback.format_exception(refused.value))
    assert not any(SECRET[at : at + 4] in said for at in range(len(SECRET) - 3)), said


def test_a_syntax_error_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not valid YAML: found character '@' .*, line 2, column 11$"):
        load_config(written(tmp_path, "security:\n  secret: @%"))


def test_a_secret_that_is_no_text_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the environment that are no UTF-8; encoding them would fail later, and show them."""
    monkeypatch.setenv("ESCROWMQ_SECURITY__SECRET", SECRET + "\udcff")
    with pytest.raises(ConfigError, match="secret must be valid UTF-8 text") as refused:
        load_config()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_the_secret_is_given_once(tmp_path: Path) -> None:
    text = f"security: {{secret: {'s' * 20}, secret_file: /run/secret}}"
    with pytest.raises(ConfigError, match="give only one of them"):
        load_config(written(tmp_path, text))


def test_every_default_has_its_reason() -> None:
    assert [leaf.path for leaf in all_leaves() if not reason(leaf)] == []


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = [variable_of(leaf.path) for leaf in all_leaves()]
    assert len(set(names)) == len(names)


def test_the_configuration_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == config_doc.page(), "run: python -m escrowmq.cluster.config_doc docs/configuration.md"


def test_the_tables_of_the_guide_are_current() -> None:
    guide = guide_doc.pages(ROOT / "docs/guide")
    assert guide == guide_doc.with_tables(guide), "run: python -m escrowmq.cluster.guide_doc docs/guide"


@pytest.mark.parametrize("options", guide_doc.TABLES.values())
def test_every_option_of_the_guide_has_its_meaning(options: type) -> None:
    assert not [leaf.path for leaf in leaves(options) if not reason(leaf)]


def test_a_guide_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="consumer options"):
        guide_doc.with_tables({Path("a.md"): "<!-- table: topic options (made) -->\n<!-- end of table -->\n"})
