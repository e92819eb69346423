"""``escrowmq profile``: names for the clusters that a user works with.

A profile holds the values of the connection options: address, namespace, settings file. A profile is used
only if ``--profile`` or ``ESCROWMQ_PROFILE`` names it. There is no stored default: otherwise a profile chosen
yesterday could make today's command delete a production topic. The profiles file holds no secrets; a settings
file may refer to one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.output import Format, Shown, note, show_rows

app = typer.Typer(no_args_is_help=True, help="Name the clusters that you work with: --profile NAME.")
VARIABLE = "ESCROWMQ_PROFILE"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """Values of the connection options; None: the profile does not set this one."""

    address: str | None = None
    namespace: str | None = None
    config: str | None = None


def file() -> Path:
    """The file of profiles: ``escrowmq/profiles.yaml`` in the user's configuration folder (XDG)."""
    return Path(typer.get_app_dir("escrowmq")) / "profiles.yaml"


def load() -> dict[str, Profile]:
    """All profiles by name. Raises ConfigError for a file that is not a valid profiles file."""
    import yaml

    from escrowmq.replication.errors import ConfigError

    try:
        content = yaml.safe_load(file().read_text()) or {}
        return {_checked(name): Profile(**fields) for name, fields in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file()} cannot be read: {error}; correct it or remove it") from None


def named(name: str | None) -> Profile:
    """The profile with this name, else the one that ESCROWMQ_PROFILE names, else an empty one."""
    from escrowmq.replication.errors import ConfigError

    name = name if name is not None else os.environ.get(VARIABLE)
    if not name:
        return Profile()
    known = load()
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"no profile {name!r}; known profiles: {there} ('escrowmq profile set NAME --address ...')"
        )
    return known[name]


def _checked(name: Any) -> str:
    from escrowmq.replication.errors import ConfigError

    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} is not a valid profile name; use letters, digits, '.', '_' and '-'")
    return name


def _save(profiles: Mapping[str, Profile]) -> None:
    """Replace the file atomically: another command may read it at the same time."""
    import yaml

    content = {name: {k: v for k, v in asdict(p).items() if v is not None} for name, p in profiles.items()}
    file().parent.mkdir(parents=True, exist_ok=True)
    beside = file().with_name(f"{file().name}.{os.getpid()}")
    beside.write_text(yaml.safe_dump(content))
    beside.replace(file())


@app.command("list")
def list_profiles(shown: Shown = Format.table) -> None:
    """List all profiles; the one that ESCROWMQ_PROFILE names is marked."""
    chosen = os.environ.get(VARIABLE)
    rows = [{"profile": n, **asdict(p), "chosen": n == chosen} for n, p in sorted(load().items())]
    columns = ("profile", "address", "namespace", "config", "chosen")
    show_rows(shown, rows, columns, empty=f"no profiles in {file()}")


@app.command("set")
def set_profile(
    name: Annotated[str, typer.Argument(help="Name of the profile.", show_default=False)],
    address: Annotated[str | None, typer.Option(help="Ray cluster, host:port.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Ray namespace of the EscrowMQ cluster.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with settings.", exists=True, dir_okay=False, resolve_path=True),
    ] = None,
) -> None:
    """Create a profile, or replace it."""
    from escrowmq.replication.errors import ConfigError

    if address is None and namespace is None and config is None:
        raise ConfigError("a profile cannot be empty; give --address, --namespace or --config")
    made = Profile(address, namespace, None if config is None else str(config))
    _save(load() | {_checked(name): made})
    note(f"to use it: escrowmq status --profile {name}, or set {VARIABLE}={name}")


@app.command("remove")
def remove_profile(
    name: Annotated[str, typer.Argument(help="Name of the profile.", show_default=False)],
) -> None:
    """Remove a profile. The cluster is not affected."""
    from escrowmq.replication.errors import ConfigError

    profiles = load()
    if profiles.pop(name, None) is None:
        raise ConfigError(f"no profile {name!r}; 'escrowmq profile list' shows all profiles")
    _save(profiles)
