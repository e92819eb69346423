"""``escrowmq exporter`` as a process of its own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

from escrowmq import Cluster


@contextlib.contextmanager
def exporting(cluster: Cluster) -> Iterator[str]:
    """host:port of what it serves; it looks twice a second, and ends in order."""
    command = [sys.executable, "-c", "from escrowmq.cluster.cli import main; main()", "exporter"]
    process = subprocess.Popen(
        [*command, "--address", cluster.address, "--listen", "127.0.0.1:0", "--every", "0.5"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://(\S+)/metrics", said)):
            said = process.stderr.readline()
            assert said, f"the exporter ended with {process.wait(10)}"
        yield found[1]
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
