"""With the real uvicorn, a container stop runs the lifespan's shutdown, and Ray's handler raises nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]


def stopped(number: signal.Signals, **variables: str) -> str:
    """The output of a service that gets this signal when it is up."""
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "tests.integration.asgi_service:app",
        "--port",
        "0",
        "--lifespan",
        "on",
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": directory, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        said = ""
        try:
            for line in process.stdout:
                said += line
                if "startup complete" in line:
                    process.send_signal(number)
            process.wait(60)
        finally:
            process.kill()
        left = [path.name for path in Path(directory).glob("escrowmq-*")]
    assert left == []
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_connected_ends_in_order(ray_local: str, cluster: object, number: int) -> None:
    said = stopped(signal.Signals(number), EMQ_ADDRESS=ray_local)
    assert "closed in order" in said and "Finished server process" in said and "Traceback" not in said, said


@pytest.mark.long
def test_a_service_with_a_cluster_of_its_own_ends_in_order() -> None:
    said = stopped(signal.SIGTERM, EMQ_LOCAL="1")
    assert "closed in order" in said and "Finished server process" in said and "Traceback" not in said, said
