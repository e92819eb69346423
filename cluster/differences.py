"""The differences between the running cluster and the one that ``escrowmq up`` was asked for. Pure.

All settings that the supervisor was given are compared, including those left at their defaults: a default
that has changed since the cluster was started takes effect after the next stop and start. Not compared are
settings that matter only when the cluster is founded or to the command itself. Settings that were fixed when
the cluster was founded are compared only if they were given explicitly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Not compared: one matters only at the founding, the other only to the command, which uses its own value.
_OF_THE_COMMAND = frozenset(("supervisor.nodes_min", "supervisor.start_timeout_s"))
#: Fixed when the cluster was founded; compared only if given explicitly.
AS_FOUNDED = frozenset(("cluster.groups", "cluster.replicas", "storage.data_dir"))
_FIXED = "fixed when the cluster was founded: give that value, or start a new cluster in another namespace"
_MOVED = "'escrowmq down', move the directory on every node, 'escrowmq up'"
_RESTART = "'escrowmq down', then 'escrowmq up' with this value"
#: How a setting is changed, by the longest matching prefix of its path.
_HOW = {
    "cluster.": _FIXED,
    "cluster.replicas": "fixed when the cluster was founded: give that, and use 'escrowmq members set'",
    "security.secret": _FIXED,
    "storage.data_dir": _MOVED,
    "": _RESTART,
}
#: Shown in place of secrets (running, wanted).
_HIDDEN = {"security.secret": ("another one", "the given one")}


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting: its running value, the wanted value, and how to change it."""

    path: str
    running: Any
    wanted: Any
    how: str

    def __str__(self) -> str:
        return f"{self.path} is {self.running}, not {self.wanted} ({self.how})"


def differences(
    running: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """The differences of two trees ``{section: {name: value}}``, in the order of the second.

    A setting that only one of the two versions knows is ignored: the other version behaves as it always did.
    """
    there, asked = dict(_leaves(running)), dict(_leaves(wanted))
    found = []
    for path, value in asked.items():
        if path in there and there[path] != value and path not in _OF_THE_COMMAND:
            was, is_to_be = _HIDDEN.get(path, (there[path], value))
            found.append(Difference(path, was, is_to_be, how_to_change(path)))
    return found


def how_to_change(path: str) -> str:
    """A text that says how to change the setting at ``path``."""
    return _HOW[max((start for start in _HOW if path.startswith(start)), key=len)]


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        elif name != "version":
            yield above + name, value
