"""The typed configuration tree: defaults, then a YAML file, ``ESCROWMQ_…`` variables, and arguments.

An unknown key is an error that names the nearest known key. Otherwise a misspelt limit would silently keep
its default, and the mistake would show only in production. Values are checked by the frozen dataclasses that
the tree consists of. Error texts never contain secrets.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import os
import re
import textwrap
import typing
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.cluster.settings import (
    ClusterSettings,
    RaySettings,
    SecuritySettings,
    StorageSettings,
    SupervisorSettings,
)
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.replication.errors import ConfigError

# ------------------------------------------------------------------------------------------------------------
# Walks the dataclasses of the configuration: paths, defaults, reasons, and suggestions for misspelt keys.
#
# The reason of a default is the ``#:`` comment above it in the source, so whoever changes the value sees it.
# Settings on consecutive lines may share one comment.

_FIELD = re.compile(r"    ([a-z_][a-z0-9_]*)\s*:\s*\S")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its path below the section, its type and default, and the class that defines it."""

    path: str
    type_name: str
    default: Any
    owner: type[Any]
    field: str

    def under(self, section: str) -> Leaf:
        """A copy with ``section`` put in front of its path."""
        return dataclasses.replace(self, path=f"{section}.{self.path}")


def leaves(section: type[Any]) -> Iterator[Leaf]:
    """The settings of a dataclass and of the dataclasses nested in it, in source order."""
    types = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        kind = types[item.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            for leaf in leaves(kind):
                yield leaf.under(item.name)
        else:
            yield Leaf(item.name, _type_name(kind), _default(item), section, item.name)


def nearest(wrong: str, known: Collection[str], groups: Collection[str] = ()) -> str:
    """``did you mean …?`` for a misspelt name, or where all names are listed."""
    dot = DELIMITER if wrong.startswith(PREFIX) else "."
    section, _, name = wrong.rpartition(dot)
    names = {path: path.rpartition(dot)[2] for path in (*known, *groups)}
    sections = {path.rpartition(dot)[0] for path in known} - {""}
    # The section is compared for itself: as a part of the name it would make everything in it alike.
    here = {names[path]: path for path in names if path.rpartition(dot)[0] == section}
    alike = difflib.get_close_matches(name, here, n=1, cutoff=0.7)
    near = difflib.get_close_matches(section, sections, n=1, cutoff=0.7) if section not in sections else []
    found = [path for path in names if names[path] == name][:1]  # perhaps only the section is wrong
    found = (
        [path for one in near if (path := one + dot + name) in names] or found or [here[one] for one in alike]
    )
    if found or near:
        return f"did you mean {(found or near)[0]!r}?"
    return "docs/configuration.md lists all of them"


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"[a-z_]+\.", "", text).replace("SecretStr", "str").replace("Path", "path")


def reason(leaf: Leaf) -> str:
    """Why the default has its value; empty if the source has no comment."""
    return _reasons(cast(Hashable, leaf.owner)).get(leaf.field, "")


@functools.cache
def _reasons(section: Any) -> dict[str, str]:
    """Field -> the comment block above it; consecutive fields share the block above the first."""
    found: dict[str, str] = {}
    block: list[str] = []
    open_block = False
    for line in textwrap.dedent(inspect.getsource(section)).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            if not open_block:
                block = []
            block.append(text[2:].strip())
            open_block = True
            continue
        field = _FIELD.match(line)
        if field:
            found[field[1]] = " ".join(block)
        elif not text or text.startswith(("def ", "@", '"""')):
            block = []
        open_block = False
    return found


PREFIX, DELIMITER = "ESCROWMQ_", "__"
#: Names the YAML file; not a setting itself.
FILE_VARIABLE = PREFIX + "CONFIG"
#: Used by the command line only: the name of the profile that says which cluster to use.
PROFILE_VARIABLE = PREFIX + "PROFILE"
#: Messages of the YAML parser that quote only what it expected and one character of what it found. All other
#: messages may quote names and values of the file, so the quoted part is removed from them.
_QUOTES_ONE_CHARACTER = ("expected ", "could not find expected ", "found character ", "found unknown escape ")
_QUOTED = re.compile(r"['\"].*['\"]", re.DOTALL)
#: `secret=hunter2`, or `secret:hunter2` without the space, is parsed as a key that contains the secret. So
#: only keys that look like plain names are quoted in an error.
_KEY_TO_SHOW = re.compile(r"\w{1,40}")


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice. YAML forbids it, but the parser would take the last one and say
    nothing, so a section that was added again at the end would undo the first."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The parser's own, checked before anchors are merged, which may repeat keys."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.composer.ComposerError(None, None, "a key is there twice", key.start_mark)
                seen.add((key.tag, key.value))
        return node


class Config(BaseSettings):
    """The whole tree, built by ``load_config``; each field is the configuration of one component."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, extra="forbid", frozen=True, validate_default=False
    )

    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    supervisor: SupervisorSettings = Field(default_factory=SupervisorSettings)
    broker: BrokerConfig = Field(default_factory=BrokerConfig)
    producer: ProducerConfig = Field(default_factory=ProducerConfig)
    consumer: ConsumerConfig = Field(default_factory=ConsumerConfig)
    share_consumer: ShareConsumerConfig = Field(default_factory=ShareConsumerConfig)
    feedback: FeedbackConfig = Field(default_factory=FeedbackConfig)
    answerer: AnswererConfig = Field(default_factory=AnswererConfig)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment variables override the file, whose content ``load_config`` passes as arguments here.

        The caller's own overrides are applied after both.
        """
        return env_settings, init_settings


def sections() -> dict[str, type[Any]]:
    """Section name -> its dataclass, in the order of the tree."""
    return {name: cast(type[Any], info.annotation) for name, info in Config.model_fields.items()}


@functools.cache
def all_leaves() -> tuple[Leaf, ...]:
    """Every setting with its path from the root."""
    return tuple(leaf.under(name) for name, section in sections().items() for leaf in leaves(section))


def load_config(
    file: Path | str | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Config:
    """The configuration of this process. ``file`` defaults to what ESCROWMQ_CONFIG names, if set.

    ``overrides``: ``{section: {key: value}}``, which override everything else; None values are ignored.
    Raises ConfigError, naming the key and what is allowed.
    """
    _refuse_unknown_variables()
    named = file if file is not None else os.environ.get(FILE_VARIABLE)
    content = _read_yaml(Path(named)) if named else {}
    _refuse_unknown_keys(content, str(named))
    try:
        config = Config(**content)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    return override(config, overrides or {})


def stated(
    file: Path | str | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> frozenset[str]:
    """Paths of the settings that were given explicitly; all others have their defaults.

    The arguments are those of ``load_config``, which must have accepted them before.
    """
    named = file if file is not None else os.environ.get(FILE_VARIABLE)
    given = [_read_yaml(Path(named)) if named else {}, overrides or {}]
    variables = {name.upper() for name in os.environ}
    return frozenset(
        leaf.path
        for leaf in all_leaves()
        if variable_of(leaf.path) in variables or any(_holds(tree, leaf.path) for tree in given)
    )


def _holds(tree: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(tree, Mapping) or tree.get(name) is None:
            return False
        tree = tree[name]
    return True


def override(config: Config, changes: Mapping[str, Mapping[str, Any]]) -> Config:
    """A copy with the values of ``{section: {key: value}}``; None values are ignored."""
    _refuse_unknown_keys(changes, "arguments")
    wanted = {name: {k: v for k, v in values.items() if v is not None} for name, values in changes.items()}
    updated = {}
    for name, values in wanted.items():
        if values:
            updated[name] = change_section(name, getattr(config, name), values)
    return config.model_copy(update=updated) if updated else config


def change_section(name: str, section: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a section with some values replaced and checked. Raises ConfigError for a bad value."""
    _refuse_unknown_keys({name: values}, "arguments")
    kept = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    try:
        return TypeAdapter(type(section)).validate_python({**kept, **values})
    except ValidationError as error:
        raise ConfigError(_explain(error, name)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = _Loader(path.read_text()).get_single_data()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except Exception as error:  # bad UTF-8, 99 May, too deep nesting, a tag that does not fit its value
        raise ConfigError(f"{path} is not valid YAML: {_yaml_problem(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        expected = ", ".join(sections())
        raise ConfigError(f"{path} must hold sections ({expected}), not a {type(content).__name__}")
    return content


def _yaml_problem(error: Exception) -> str:
    """What is wrong and where; never a piece of the file, which may contain a secret."""
    if not isinstance(error, yaml.MarkedYAMLError):
        where = f", position {error.position}" if isinstance(error, yaml.reader.ReaderError) else ""
        return f"a value, or its encoding, does not fit ({type(error).__name__}{where})"
    text = error.problem or error.context or "it does not parse"
    if not text.startswith(_QUOTES_ONE_CHARACTER):
        text = _QUOTED.sub("…", text)
    mark = error.problem_mark or error.context_mark
    return text if mark is None else f"{text}, line {mark.line + 1}, column {mark.column + 1}"


def _refuse_unknown_keys(content: Mapping[str, Any], where: str) -> None:
    known = [leaf.path for leaf in all_leaves()]
    groups = {path.rsplit(".", n)[0] for path in known for n in range(1, path.count(".") + 1)}

    def walk(node: Mapping[Any, Any], prefix: str) -> None:
        for key, value in node.items():
            path = f"{prefix}{key}"
            if path in known:
                continue
            if path not in groups:
                shown = prefix != "security." and _KEY_TO_SHOW.fullmatch(str(key)) is not None
                above = f"below {prefix[:-1]!r}" if prefix else "at the top"
                name = repr(path) if shown else f"(it may hold a secret) {above}"
                raise ConfigError(f"unknown key {name} in {where}; {nearest(path, known, groups)}")
            if value is None:
                raise ConfigError(f"{path!r} in {where} is empty; give its keys, or leave it out")
            if isinstance(value, Mapping):
                walk(value, path + ".")

    walk(content, "")


def _refuse_unknown_variables() -> None:
    known = {variable_of(leaf.path) for leaf in all_leaves()} | {FILE_VARIABLE, PROFILE_VARIABLE}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise ConfigError(f"unknown variable {name}; {nearest(name.upper(), known)}")


def variable_of(path: str) -> str:
    """``broker.segment_bytes`` -> ``ESCROWMQ_BROKER__SEGMENT_BYTES``."""
    return PREFIX + path.replace(".", DELIMITER).upper()


def _explain(error: ValidationError, *above: str) -> str:
    """For each problem the key and what is wrong with it; never the value, which may be a secret."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in (*above, *problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text[:1].lower()}{text[1:]}")
    return "; ".join(lines)
