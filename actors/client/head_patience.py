"""How long a process of a Ray cluster waits for Ray's lost head, before Ray ends it.

Ray reads it from the environment in which a process was started, with a default of a minute. It must be the
same on all nodes and in the applications: the process that waits least ends first. Nothing here asks Ray.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Read by Ray in raylets, workers and drivers. Raylets have no other way to set it.
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
#: Ray's default.
RECONNECT_S = 60.0


def reconnect_s(environment: Mapping[str, str]) -> float:
    """How long a process with this environment waits for a lost control store before Ray ends it."""
    try:
        return float(environment[RECONNECT_VARIABLE])
    except (KeyError, ValueError):  # then Ray uses its default too
        return RECONNECT_S
