"""Options that many commands share, and how a command joins the cluster that they name.

Every command that talks to a cluster takes a :class:`ConnectionOptions` as its first parameter. The command
line offers the fields of that class as options.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from escrowmq.actors.client.call_arguments import is_text
from escrowmq.replication.errors import ConfigError

if TYPE_CHECKING:
    from escrowmq.cluster.handle import Cluster

P = ParamSpec("P")


AUTO = "auto"
#: Of every number that is less than 2**63.
DIGITS_MAX = 18
TIME = "ISO 8601 (UTC unless it has an offset), such as 2026-01-31T12:00Z, or ms since the epoch"
#: Of --tag, in both commands that have it.
TAG_HELP = "Tag: produce gives it to its messages, consume prints only messages with it (repeatable)."
App = Annotated[str | None, typer.Option("--app", help="App that the transaction belongs to.")]


def number_or_date(option: str, text: str, wanted: str) -> int | datetime:
    """A whole number, or a date and time in ISO 8601, UTC unless it has an offset.

    Raises ConfigError for anything else, and for a number that fits into no request; ``wanted`` says what
    the option takes.
    """
    if text.isdecimal():
        if len(text) <= DIGITS_MAX:
            return int(text)
        raise ConfigError(f"{option} {text:.30}... is too large; give {wanted}")
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} must be {wanted}, not {text!r:.100}") from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def time_ms(option: str, text: str) -> int:
    """A point in time as milliseconds since the epoch: such a number, or a date. Raises ConfigError."""
    found = number_or_date(option, text, TIME)
    return found if isinstance(found, int) else int(found.timestamp() * 1000)


@dataclass(frozen=True)
class ConnectionOptions:
    """The cluster to talk to. The fields are the connection options of every command that needs one."""

    address: Annotated[
        str,
        typer.Option(
            help="Ray cluster, host:port. 'auto': RAY_ADDRESS, else the only one on this machine.",
            show_default=True,
            rich_help_panel="Connection",
        ),
    ] = AUTO
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Ray namespace of the EscrowMQ cluster ('escrowmq').", rich_help_panel="Connection"
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with settings; see docs/configuration.md.", rich_help_panel="Connection"
        ),
    ] = None

    profile: Annotated[
        str | None,
        typer.Option(
            help="Profile that fills in options not given (ESCROWMQ_PROFILE); see 'escrowmq profile'.",
            rich_help_panel="Connection",
        ),
    ] = None

    def resolved(self) -> ConnectionOptions:
        """These options, with the profile's values for those that were not given."""
        from escrowmq.cluster.cli.profiles import named

        profile = named(self.profile)
        return ConnectionOptions(
            address=profile.address or AUTO if self.address == AUTO else self.address,
            namespace=self.namespace if self.namespace is not None else profile.namespace,
            config=self.config or (Path(profile.config) if profile.config else None),
        )

    def read(self, what: str, *arguments: Any) -> Any:
        """The answer to one of ``READS``: from an exporter or supervisor of this user on this machine, if one
        answers, else from the cluster itself."""
        from escrowmq.cluster.reading_client import READS, NotAnswered, ask

        try:
            return ask(self.address, self.namespace, self.config, what, list(arguments))
        except NotAnswered:
            with self.joined() as cluster:
                return READS[what].ask(cluster, *arguments)

    @contextlib.contextmanager
    def joined(self) -> Iterator[Cluster]:
        """Connect to the cluster that the options name; disconnect at the end."""
        from escrowmq.cluster.connecting import connect

        with connect(self.address, self.namespace, config=self.config) as cluster:
            yield cluster


def with_connection(command: Callable[Concatenate[ConnectionOptions, P], None]) -> Callable[..., None]:
    """Replace a command's first parameter by the options of :class:`ConnectionOptions`."""
    own = inspect.signature(command, eval_str=True)
    options = inspect.signature(ConnectionOptions, eval_str=True).parameters

    @functools.wraps(command)
    def run(*args: P.args, **given: P.kwargs) -> None:
        for name, value in given.items():
            for text in value if isinstance(value, list) else (value,):
                if isinstance(text, str) and not text.isascii() and not is_text(text):
                    raise ConfigError(f"{name} must be text in UTF-8, not {text!r:.100}")
        chosen: dict[str, Any] = {name: given.pop(name) for name in options}
        command(ConnectionOptions(**chosen).resolved(), *args, **given)

    _, *others = own.parameters.values()
    run.__signature__ = own.replace(parameters=[*others, *options.values()])  # type: ignore[attr-defined]
    return run
