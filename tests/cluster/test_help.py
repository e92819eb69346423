"""``--help`` explains every command, argument and option, and the same name means the same everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import escrowmq
from escrowmq.cluster.cli.app import app

#: Options that a command may explain in its own words, because they mean something else there.
OF_THEIR_OWN = {
    "--address", "--app", "--config", "--group", "--header", "--key", "--namespace",
    "--partition", "--replicas", "--table", "--topic", "--wait",
}  # fmt: skip


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, found
    for name, command in getattr(found, "commands", {}).items():
        yield from commands(command, (*path, name))


ALL = list(commands(get_command(app)))


def options(command: Any) -> Iterator[Any]:
    return (parameter for parameter in command.params if parameter.opts[0].startswith("-"))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) or "escrowmq" for path, _ in ALL])
def test_every_command_explains_itself_and_its_parameters(path: tuple[str, ...], command: Any) -> None:
    assert command.help and command.help.rstrip().endswith(".")
    for parameter in command.params:
        assert parameter.help, f"{' '.join(path)}: {parameter.name} has no help"
    done = CliRunner().invoke(app, [*path, "--help"])
    assert done.exit_code == 0 and "Usage" in done.output


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for _, command in ALL:
        for option in options(command):
            for name in option.opts:
                meanings[name].add(option.help)
    told = {name: helps for name, helps in meanings.items() if len(helps) > 1}
    assert told.keys() <= OF_THEIR_OWN, told


def test_what_can_be_read_by_a_program_has_one_way_to_ask_for_it() -> None:
    """Every command that prints a result takes --format; none has another option for that."""
    printing = {"list", "describe", "show", "status", "settings", "members", "leftovers", "consume", "plan"}
    for path, command in ALL:
        names = {name for option in options(command) for name in option.opts}
        if path and path[-1] in printing:
            assert "--format" in names, path
        assert "--output" not in names and "-o" not in names, path


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == escrowmq.__version__
