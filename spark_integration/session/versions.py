"""Finds out which packages for Spark are installed, and which kind of session works with them.

RayDP waits forever with a version of Spark that it has no build for, so its files are checked first: a build
for Spark 4.2 is a jar named ``raydp-shims-spark420-...``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from escrowmq.replication.errors import ConfigError

#: The versions that were tested together and that the extra ``spark`` installs.
PINS = "pyspark==4.2.1 with raydp==1.7.0b20260911.dev0"
#: The first version whose Python data sources support read limits and Arrow sinks.
SPARK_MIN = (4, 2)
_INSTALL = "pip install 'escrowmq[spark]'"


def pick_mode(mode: str, spark: str | None, raydp_builds: Iterable[str] | None) -> str:
    """``mode`` if it works with the installed packages; "auto" is replaced by a mode. Raises ConfigError.

    ``spark``: version of pyspark, None if it is not installed. ``raydp_builds``: the versions of Spark, such
    as "4.2", that RayDP has builds for; None if it is not installed.
    """
    if spark is None:
        raise ConfigError(f"Spark needs the package pyspark, which is not installed: {_INSTALL}")
    short = _major_minor(spark)
    if short < SPARK_MIN:
        least = ".".join(map(str, SPARK_MIN))
        raise ConfigError(
            f"pyspark {spark} is installed, but {least} or newer is needed: {_INSTALL} ({PINS})"
        )
    builds = set(raydp_builds or ())
    fits = ".".join(map(str, short)) in builds
    if mode == "auto":
        return "raydp" if fits else "standalone"
    if mode != "raydp" or fits:
        return mode
    if raydp_builds is None:
        raise ConfigError(
            f'mode="raydp" needs the package raydp, which is not installed: {_INSTALL}; or use '
            'mode="standalone", which does not need it'
        )
    raise ConfigError(
        f"the installed RayDP has no build for pyspark {spark} (only for {', '.join(sorted(builds))}) and "
        f'would hang; install {PINS}, or use mode="standalone", which works with any Spark'
    )


def installed_spark() -> str | None:
    """The installed version of pyspark; None if it is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    import pyspark

    return str(pyspark.__version__)


def installed_raydp_builds() -> list[str] | None:
    """The versions of Spark, such as "4.2", for which the installed RayDP has a build; None without RayDP."""
    spec = importlib.util.find_spec("raydp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return raydp_builds(path.name for path in Path(spec.submodule_search_locations[0], "jars").glob("*.jar"))


def raydp_builds(jars: Iterable[str]) -> list[str]:
    """``raydp-shims-spark420-1.7.0.jar`` -> "4.2"; other names are ignored."""
    found = (re.match(r"raydp-shims-spark(\d)(\d+)\d-", name) for name in jars)
    return [f"{match.group(1)}.{match.group(2)}" for match in found if match]


def _major_minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"pyspark has an unreadable version: {version!r}")
    return int(found.group(1)), int(found.group(2))
