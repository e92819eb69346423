"""The embedded Ray: it has the settings that matter, and it prints nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import ray

pytestmark = pytest.mark.ray


def test_the_shared_ray_has_eight_logical_cpus(ray_local: str) -> None:
    assert ray.cluster_resources()["CPU"] == 8
    assert ray.get_runtime_context().gcs_address == ray_local


def test_an_embedded_ray_says_nothing_and_takes_no_signal() -> None:
    program = (
        "import ray, signal\n"
        "from escrowmq.cluster.ray_use import start_ray\n"
        "from escrowmq.cluster.settings import RaySettings\n"
        "start_ray(RaySettings(), 'quiet')\n"
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "ray.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
