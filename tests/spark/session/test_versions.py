"""Which Spark can be started how, by what is installed."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.session.spark_session import (
    installed_raydp_builds,
    installed_spark,
    pick_mode,
    raydp_builds,
)

JARS = [
    "raydp-1.7.0-SNAPSHOT.jar",
    "raydp-agent-1.7.0-SNAPSHOT.jar",
    "raydp-shims-common-1.7.0-SNAPSHOT.jar",
    "raydp-shims-spark350-1.7.0-SNAPSHOT.jar",
    "raydp-shims-spark420-1.7.0-SNAPSHOT.jar",
    "raydp-shims-spark4100-2.0.0.jar",
]


def test_raydp_s_builds_are_read_from_its_files() -> None:
    assert raydp_builds(JARS) == ["3.5", "4.2", "4.10"]


def test_auto_is_raydp_where_it_has_a_build_and_standalone_elsewhere() -> None:
    assert pick_mode("auto", "4.2.1", ["4.1", "4.2"]) == "raydp"
    assert pick_mode("auto", "4.3.0", ["4.1", "4.2"]) == "standalone"
    assert pick_mode("auto", "4.2.1", None) == "standalone"
    assert pick_mode("raydp", "4.2.9", ["4.2"]) == "raydp"
    for mode in ("standalone", "local"):
        assert pick_mode(mode, "4.3.0.dev1", None) == mode


@pytest.mark.parametrize(
    ("said", "mode", "spark", "builds"),
    [
        (r"pyspark, which is not installed: pip install 'escrowmq\[spark\]'", "local", None, None),
        (r"pyspark 3\.5\.7 is installed, but 4\.2 or newer .*pyspark==4\.2\.1", "auto", "3.5.7", ["3.5"]),
        (r'raydp, which is not installed.* mode="standalone"', "raydp", "4.2.1", None),
        (
            r'no build for pyspark 4\.3\.0 .*4\.1, 4\.2.*raydp==.*mode="standalone"',
            "raydp",
            "4.3.0",
            ["4.2", "4.1"],
        ),
        ("unreadable version", "local", "unknown", None),
    ],
)
def test_what_cannot_work_is_said_with_what_to_install(
    said: str, mode: str, spark: str | None, builds: list[str] | None
) -> None:
    with pytest.raises(ConfigError, match=said):
        pick_mode(mode, spark, builds)


@pytest.mark.spark
def test_what_the_extra_installs_goes_together() -> None:
    assert pick_mode("raydp", installed_spark(), installed_raydp_builds()) == "raydp"
