"""What differs between the cluster that runs and the one that ``escrowmq up`` was asked for. Pure.

Everything counts that the supervisor was given, also what nobody stated: a default that has changed since
the cluster was started will count after the next stop and start. Left out is what only the founding or the
command itself goes by; and what the founding has fixed, unless it is stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Not settings of what runs: founding is over, and the command waits by its own.
_OF_THE_COMMAND = frozenset(("supervisor.nodes_min", "supervisor.start_timeout_s"))
#: What a cluster has from its founding on, and what is not asked for unless it is stated.
AS_FOUNDED = frozenset(("cluster.groups", "cluster.replicas", "storage.data_dir"))
_FIXED = "fixed when the cluster was founded: give what it has, or found another one in another namespace"
_MOVED = "'escrowmq down', move the directory on every node, 'escrowmq up'"
_RESTART = "'escrowmq down', then 'escrowmq up' with it"
#: How a setting is changed, by the longest beginning of its path.
_HOW = {
    "cluster.": _FIXED,
    "cluster.replicas": "fixed when the cluster was founded: give that, and use 'escrowmq members set'",
    "security.secret": _FIXED,
    "storage.data_dir": _MOVED,
    "": _RESTART,
}
#: In place of secrets, which are never shown.
_HIDDEN = {"security.secret": ("another one", "the one that is given")}


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting: how it is and how it was asked for, and what to do to have it so."""

    path: str
    running: Any
    wanted: Any
    how: str

    def __str__(self) -> str:
        return f"{self.path} is {self.running}, not {self.wanted} ({self.how})"


def differences(
    running: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Of two trees ``{section: {name: value}}``, in the order of the second.

    What only one of the two versions knows is passed over: the other does as it always did.
    """
    there, asked = dict(_leaves(running)), dict(_leaves(wanted))
    found = []
    for path, value in asked.items():
        if path in there and there[path] != value and path not in _OF_THE_COMMAND:
            was, is_to_be = _HIDDEN.get(path, (there[path], value))
            found.append(Difference(path, was, is_to_be, how_to_change(path)))
    return found


def how_to_change(path: str) -> str:
    """For people: what to do to have another value."""
    return _HOW[max((start for start in _HOW if path.startswith(start)), key=len)]


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        elif name != "version":
            yield above + name, value
