"""Which packages for Spark are installed, and which way of starting it suits them.

RayDP waits for ever under a Spark that it has no build for, so that is found out from its files first: a
build for Spark 4.2 is a jar named ``raydp-shims-spark420-...``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from escrowmq.replication.errors import ConfigError

#: What was tried together, and what the extra ``spark`` installs.
PINS = "pyspark==4.2.1 with raydp==1.7.0b20260911.dev0"
#: The first whose Python sources know read limits and Arrow sinks.
SPARK_MIN = (4, 2)
_INSTALL = "pip install 'escrowmq[spark]'"


def pick_mode(mode: str, spark: str | None, raydp_builds: Iterable[str] | None) -> str:
    """``mode`` if it can work with what is installed, with "auto" decided. Raises ConfigError.

    ``spark``: version of pyspark, None if it is not installed; ``raydp_builds``: the Sparks that RayDP has
    builds for, as "4.2", None if it is not installed.
    """
    if spark is None:
        raise ConfigError(f"Spark needs the package pyspark, which is not installed: {_INSTALL}")
    short = _major_minor(spark)
    if short < SPARK_MIN:
        least = ".".join(map(str, SPARK_MIN))
        raise ConfigError(
            f"pyspark {spark} is installed and {least} is the oldest that can be used: {_INSTALL} ({PINS})"
        )
    builds = set(raydp_builds or ())
    fits = ".".join(map(str, short)) in builds
    if mode == "auto":
        return "raydp" if fits else "standalone"
    if mode != "raydp" or fits:
        return mode
    if raydp_builds is None:
        raise ConfigError(
            f'mode="raydp" needs the package raydp, which is not installed: {_INSTALL}; or take '
            'mode="standalone", which needs none'
        )
    raise ConfigError(
        f"the installed RayDP has no build for pyspark {spark} (it has for {', '.join(sorted(builds))}) and "
        f'would hang: install {PINS}, or take mode="standalone", which goes with any Spark'
    )


def installed_spark() -> str | None:
    """Version of pyspark, None without."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    import pyspark

    return str(pyspark.__version__)


def installed_raydp_builds() -> list[str] | None:
    """The versions of Spark, as "4.2", that the installed RayDP has a build for; None without RayDP."""
    spec = importlib.util.find_spec("raydp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return raydp_builds(path.name for path in Path(spec.submodule_search_locations[0], "jars").glob("*.jar"))


def raydp_builds(jars: Iterable[str]) -> list[str]:
    """``raydp-shims-spark420-1.7.0.jar`` -> "4.2"; other names say nothing."""
    found = (re.match(r"raydp-shims-spark(\d)(\d+)\d-", name) for name in jars)
    return [f"{match.group(1)}.{match.group(2)}" for match in found if match]


def _major_minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"pyspark has an unreadable version: {version!r}")
    return int(found.group(1)), int(found.group(2))
