"""The demo as a new user runs it, only smaller: one command, in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def test_every_order_is_readable_exactly_once_or_not_at_all_and_spark_agrees(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("escrowmq")), "demo", "--scale", "0.001", "--seed", "11"]
    command += ["--picture", "run.svg"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=380, cwd=tmp_path, check=False)
    shown = run.stdout
    assert run.returncode == 0, shown + run.stderr[-3000:]
    assert "producer 1 killed with SIGKILL" in shown and "leader broker" in shown
    assert re.search(r"orders placed\s+│\s+1,500", shown)
    assert re.search(r"resolved by feedback\s+│\s+[1-9]", shown)
    assert re.search(r"fail-over: leader killed to next commit\s+│\s+\d+\.\d\d s", shown)
    assert shown.count(" = │") >= 8 and "differs" not in shown
    assert "exactly once or not at all" in shown
    assert "a picture of this run: run.svg" in shown
    drawn = ElementTree.parse(tmp_path / "run.svg").getroot()
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "1,500 orders through escrow, as the exporter saw them" in texts
    assert any(text.startswith("leader killed; next commit after") for text in texts)
