"""The request for a Spark session: checks its settings and translates them into Spark's.

Pure: everything here is decided before any process is started or asked, so that a mistake is reported at
once. The modules beside this one start sessions, one module for each mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from escrowmq.replication.errors import ConfigError

#: Spark refuses smaller executors.
MEMORY_BYTES_MIN = 512 << 20
#: RayDP has been seen to take 50 s on two busy cores; a start that takes longer than this is stuck.
START_TIMEOUT_S = 180.0

#: Reasons: a job of seconds needs no UI and no port for it; the progress bar garbles other output; timestamps
#: are in UTC, as brokers write them.
BASE_CONFIGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

#: The simple compiler and garbage collector start in half the time but are slower in the long run. Measured
#: on two busy cores: a session in 15 s instead of 24 to 38 s, and first queries in half the time.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_CONFIGS: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ray.raydp_app_master.extraJavaOptions": QUICK_JVM,
}


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The wanted session. ``memory_bytes`` and ``cores`` are per executor.

    ``executors`` are running when the session starts. With ``executors_max``, Spark asks for up to that many
    while tasks wait, and gives back executors that have been idle.
    """

    app_name: str
    executors: int
    cores: int
    memory_bytes: int
    configs: Mapping[str, str] = field(default_factory=dict)
    executors_max: int | None = None
    start_timeout_s: float = START_TIMEOUT_S

    @property
    def most(self) -> int:
        """The maximum number of executors."""
        return self.executors if self.executors_max is None else self.executors_max


def session_request(
    app_name: str,
    *,
    executors: int | tuple[int, int],
    cores: int,
    memory: str,
    quick_start: bool,
    configs: Mapping[str, str],
    start_timeout_s: float,
) -> SessionRequest:
    """Checked settings. Raises ConfigError, which names the wrong one."""
    if not app_name:
        raise ConfigError("app_name must not be empty")
    least, most = _sizes(executors)
    if type(cores) is not int or cores < 1:
        raise ConfigError(f"cores must be a whole number of at least 1, not {cores!r}")
    if not start_timeout_s > 0:
        raise ConfigError(f"start_timeout_s must be above 0, not {start_timeout_s!r}")
    # Spark's default of 200 shuffle partitions is meant for clusters with hundreds of cores.
    shuffle = {"spark.sql.shuffle.partitions": str(max(2, 2 * (most or least) * cores))}
    return SessionRequest(
        app_name,
        least,
        cores,
        memory_bytes(memory),
        {
            **BASE_CONFIGS,
            **shuffle,
            **(QUICK_CONFIGS if quick_start else {}),
            **({} if most is None else _dynamic(least, most)),
            **configs,
        },
        most,
        start_timeout_s,
    )


def memory_bytes(text: str) -> int:
    """``"512m"``, ``"2g"``, ``"1GiB"`` in bytes; at least 512 MiB, since smaller executors do not start."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", str(text).lower())
    if found is None:
        raise ConfigError(f"memory must be a number with k, m, g or t, as in '1g', not {text!r}")
    size: int = int(found.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found.group(2)]
    if size < MEMORY_BYTES_MIN:
        raise ConfigError(f"memory must be at least 512m for a Spark executor, not {text!r}")
    return size


def _sizes(executors: int | tuple[int, int]) -> tuple[int, int | None]:
    """(initial number, maximum); the maximum is None for a fixed size."""
    if type(executors) is int and executors >= 1:
        return executors, None
    if isinstance(executors, tuple) and len(executors) == 2:
        least, most = executors
        if type(least) is int and type(most) is int and 1 <= least <= most:
            return least, most
    raise ConfigError(
        "executors must be a whole number of at least 1, or a pair (least, most) of them for a session that "
        f"grows and shrinks, not {executors!r}"
    )


def _dynamic(least: int, most: int) -> dict[str, str]:
    return {
        "spark.dynamicAllocation.enabled": "true",
        # Ray has no shuffle service, so an executor has to stay as long as its shuffle files are needed.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(least),
        "spark.dynamicAllocation.initialExecutors": str(least),
        "spark.dynamicAllocation.maxExecutors": str(most),
    }
