"""The examples for Spark run, and their results are those in their texts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import spark_streaming_revenue, spark_topic_to_tables
from tests.integration.spark_modes import shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> SparkSession:
    return shared("local")


def test_streaming_revenue_arrives_at_every_minute_s_total_once(
    cluster: Cluster, spark: SparkSession, unique: Unique
) -> None:
    assert spark_streaming_revenue.run(cluster, spark, unique("sales"), unique("revenue"))


def test_tables_hold_every_committed_order_once_over_a_restart(
    cluster: Cluster, spark: SparkSession, unique: Unique, tmp_path: Path
) -> None:
    assert spark_topic_to_tables.run(cluster, spark, tmp_path, unique("shop") + "-")


@pytest.mark.long
def test_the_walk_through_runs_as_a_script_and_draws_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    environment = {**os.environ, "SPARK_MODE": "local", "PICTURE": str(picture)}
    script = [sys.executable, "examples/spark_walkthrough.py"]
    run = subprocess.run(
        script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=220, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "1050 baskets sold, 150 abandoned" in run.stdout
    assert "the stream arrives at the same" in run.stdout
    assert picture.read_text().rstrip().endswith("</svg>")
