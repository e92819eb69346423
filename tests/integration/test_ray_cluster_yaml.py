"""ray_cluster.yaml is valid for Ray, every line is explained, and its start commands start EscrowMQ."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import ray
from ray.autoscaler._private.util import prepare_config, validate_config

from escrowmq.actors.client.topology import reconnect_s
from escrowmq.cluster.ray_use import system_config
from escrowmq.cluster.settings import RaySettings, head_of, head_problem
from tests.support.ray_nodes import BIN, FILE, cluster_file, free_port, ray_start


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return cluster_file()


def head_commands(content: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(arguments of ``ray start``, arguments of ``escrowmq up``) of the head node."""
    _, start, up = content["head_start_ray_commands"]
    return ray_start(start)[1], shlex.split(up)[2:]


def test_it_fits_rays_own_schema(content: dict[str, Any]) -> None:
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(content, json.loads(schema.read_text()))


def test_ray_takes_it_and_keeps_all_workers_up(content: dict[str, Any]) -> None:
    prepared = prepare_config(content)
    validate_config(prepared)
    (kind,) = prepared["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == len(content["provider"]["worker_ips"]) == 2


def test_its_ray_has_the_settings_of_the_embedded_one(content: dict[str, Any]) -> None:
    start, _ = head_commands(content)
    (given,) = [word.partition("=")[2] for word in start if word.startswith("--system-config=")]
    assert json.loads(given) == system_config(RaySettings())


def test_its_nodes_all_wait_for_a_lost_head_which_keeps_its_tables(content: dict[str, Any]) -> None:
    head, _ = ray_start(content["head_start_ray_commands"][1])
    worker, _ = ray_start(content["worker_start_ray_commands"][1])
    assert head_problem(head_of(head), {"worker": reconnect_s(worker)}) is None
    (made,) = [line for line in content["setup_commands"] if "install -d" in line]
    directory = Path(made.rpartition(" ")[2])
    assert "-m 700" in made and directory in Path(head["RAY_gcs_storage_path"]).parents, "it holds the secret"
    assert head["RAY_AUTH_MODE"] == worker["RAY_AUTH_MODE"] == "token"


def test_every_line_is_explained() -> None:
    explained = False
    for number, line in enumerate(FILE.read_text().splitlines(), start=1):
        text = line.strip()
        if text.startswith("#"):
            explained = True
        elif not text:
            explained = False
        elif not line.startswith(" " * 4):  # deeper lines continue a command
            assert explained, f"line {number} has no comment over it: {line}"
            explained = False


def test_every_file_it_names_is_there(content: dict[str, Any]) -> None:
    checkout = FILE.parent / content["file_mounts"]["/tmp/escrowmq-checkout"]
    assert (checkout / "pyproject.toml").exists() and (checkout / "constraints.txt").exists()


def check_a_lost_record_is_not_founded_over(
    escrowmq: Callable[..., subprocess.CompletedProcess[str]], address: str, data_dir: Path, cluster_id: str
) -> None:
    """Without cluster.json no new cluster is started over the data; ``--adopt`` takes the data over."""
    assert escrowmq("down", "--address", address).returncode == 0
    (data_dir / "cluster.json").unlink()
    up = ("up", "--address", address, "--data-dir", str(data_dir))
    refused = escrowmq(*up)
    assert refused.returncode == 1 and "or take over the data with 'escrowmq up --adopt'" in refused.stderr
    adopted = escrowmq(*up, "--adopt", "--format", "json")
    assert adopted.returncode == 0, adopted.stderr
    assert json.loads(adopted.stdout)["cluster_id"] == cluster_id


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(180)
def test_its_start_commands_start_ray_and_escrowmq(content: dict[str, Any]) -> None:
    """The commands as written, except what must differ on a test machine: port, directories, nodes."""
    start, up = head_commands(content)
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))
    port = free_port()
    address = f"127.0.0.1:{port}"
    replaced = [w for w in start if not w.startswith(("--port", "--autoscaling-config"))]
    more = [f"--port={port}", f"--temp-dir={directory / 'ray'}", "--include-dashboard=false", "--num-cpus=1"]
    up = [address if word == "127.0.0.1:6379" else word for word in up]
    up[up.index("--nodes-min") + 1] = "1"
    variables, _ = ray_start(content["head_start_ray_commands"][1])
    environment = {**os.environ, **variables, "RAY_gcs_storage_path": str(directory / "gcs")}

    def escrowmq(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "escrowmq", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], capture_output=True, timeout=60, check=True)
    raylet = subprocess.Popen(
        [BIN / "ray", *replaced, *more, "--block"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while (done := escrowmq(*up, "--data-dir", str(directory / "data"))).returncode == 3:
            assert time.monotonic() < deadline and raylet.poll() is None, done.stderr
            time.sleep(0.5)
        assert done.returncode == 0, done.stderr
        again = escrowmq("up", "--address", address, "--format", "json")  # waits until it is ready
        assert again.returncode == 0, again.stderr
        status = json.loads(escrowmq("status", "--address", address, "--format", "json").stdout)
        assert status["healthy"] and status["cluster_id"] == json.loads(again.stdout)["cluster_id"]
        assert (directory / "data" / "g0-r2" / "identity.json").exists()
        check_a_lost_record_is_not_founded_over(escrowmq, address, directory / "data", status["cluster_id"])
    finally:
        parent = psutil.Process(raylet.pid)
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        raylet.wait(10)
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(directory, ignore_errors=True)
