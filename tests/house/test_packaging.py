"""The package as users get it: the folders' links, the pinned versions, and a wheel that works elsewhere.

The folders are at the repository's root; links in ``escrowmq/`` make one package of them, which setuptools
discovers and tools read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "cluster", "feedback", "replication", "spark_integration")

ROUND_TRIP = """
import escrowmq
from escrowmq import Message

assert "site-packages" in escrowmq.__file__, escrowmq.__file__
with escrowmq.start_local(groups=1, replicas=1) as cluster:
    cluster.admin.create_topic("greetings", partitions=1)
    with cluster.producer(app="wheel") as producer:
        with producer.transaction() as tx:
            tx.send(Message("greetings", b"hello"))
            tx.prepare()
        producer.send(Message("greetings", b"plain")).result(timeout=30)
    with cluster.consumer(group="wheel", topics=["greetings"], auto_offset_reset="earliest") as consumer:
        seen = []
        for _ in range(30):
            seen += [record.value for record in consumer.poll(timeout_s=1.0)]
            if len(seen) >= 2:
                break
    assert sorted(seen) == [b"hello", b"plain"], seen
print("round trip done")
"""


def test_each_folder_has_a_relative_link() -> None:
    links = {entry.name: entry for entry in (ROOT / "escrowmq").iterdir() if entry.is_symlink()}
    assert set(links) == set(FOLDERS)
    for name, link in links.items():
        assert os.readlink(link) == f"../{name}", f"escrowmq/{name} must be a relative link"


def test_no_python_file_lies_in_a_folder_that_is_not_a_package() -> None:
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file} would be missing from the wheel"


def _pins() -> dict[str, str]:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line), f"not a plain pin: {line!r}"
            name, _, version = line.partition("==")
            pins[_normal(name)] = version
    return pins


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _closure(*first: tuple[str, frozenset[str]]) -> Iterator[metadata.Distribution]:
    """These distributions with what they require, as far as it belongs here."""
    from packaging.requirements import Requirement

    waiting, seen = list(first), set()
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        name, extras = item
        distribution = metadata.distribution(name)
        yield distribution
        for text in distribution.requires or []:
            requirement = Requirement(text)
            markers = requirement.marker
            if markers is None or any(markers.evaluate({"extra": extra}) for extra in extras | {""}):
                waiting.append((requirement.name, frozenset(requirement.extras)))


def test_everything_that_gets_installed_is_pinned() -> None:
    pins = _pins()
    for distribution in _closure(("escrowmq", frozenset({"dev", "demo", "spark", "sql"}))):
        name = _normal(distribution.name)
        if name != "escrowmq":
            assert pins.get(name) == distribution.version, (
                f"{name} {distribution.version} is installed, constraints.txt says {pins.get(name)}"
            )
    for tool in ("pip", "setuptools", "wheel"):
        assert tool in pins


def test_the_source_distribution_has_the_versions_that_the_readme_tells_to_use() -> None:
    assert "-c constraints.txt" in (ROOT / "README.md").read_text()
    assert "include constraints.txt" in (ROOT / "MANIFEST.in").read_text().splitlines()


def test_what_is_pinned_accepts_the_oldest_python_that_is_promised() -> None:
    """Debian 12 has Python 3.11.2, and a pin that asks for 3.11.5 would end its installation."""
    from packaging.specifiers import SpecifierSet

    pins = _pins()
    promised = [each.version for each in SpecifierSet(metadata.metadata("escrowmq")["Requires-Python"])]
    oldest = f"{min(promised)}.0"
    assert oldest == "3.11.0"
    refusing = {}
    for each in metadata.distributions():
        python = each.metadata.get("Requires-Python")
        if _normal(each.name) in pins and python is not None and oldest not in SpecifierSet(python):
            refusing[each.name] = python
    assert refusing == {}


def _run(*command: str | Path, cwd: Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        text=True,
        capture_output=True,
        timeout=seconds,
    )


#: What the package has besides its folders.
OWN_FILES = ("__init__.py", "integrations.py", "ray_data.py", "testing.py", "py.typed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that nothing is left behind in the checkout."""
    copy = tmp_path_factory.mktemp("source") / "checkout"
    copy.mkdir()
    for name in ("escrowmq", *FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        # cp keeps symlinks as symlinks, as in a clone
        subprocess.run(["cp", "-a", ROOT / name, copy / name], check=True)
    out = tmp_path_factory.mktemp("wheel")
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_holds_every_module_once_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    expected = {f"escrowmq/{name}" for name in OWN_FILES}
    for folder in FOLDERS:
        files = (ROOT / folder).rglob("*.py")
        expected |= {f"escrowmq/{file.relative_to(ROOT).as_posix()}" for file in files}
    assert sorted(names) == sorted(expected)


def _lend(site: Path) -> None:
    """Into ``site`` what the package requires without extras, and nothing else of this environment."""
    ours = Path(sysconfig.get_path("purelib"))
    for distribution in _closure(("escrowmq", frozenset())):
        if _normal(distribution.name) == "escrowmq":
            continue
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if (ours / top).exists() and not (site / top).exists():
                (site / top).symlink_to(ours / top)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(420)
@pytest.mark.parametrize("installed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_wheel_works_from_an_empty_environment_outside_the_checkout(
    wheel: Path, tmp_path: Path, installed: bool
) -> None:
    """``installed``: with everything that it requires, from the package index; otherwise that is lent."""
    # This environment's pip installs into the new one, and compiles nothing: most of it is never imported.
    made = _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    python = tmp_path / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-compile")
    pip += ("--quiet", "--disable-pip-version-check", "--retries", "1")
    what = ("-c", ROOT / "constraints.txt") if installed else ("--no-deps",)
    done = _run(*pip, *what, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if not installed:
        (site,) = (tmp_path / "env").glob("lib/python3.*/site-packages")
        _lend(site)

    shown = _run(tmp_path / "env" / "bin" / "escrowmq", "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "topic" in shown.stdout
    assert "txn" in shown.stdout

    done = _run(python, "-W", "ignore", "-c", ROUND_TRIP, cwd=tmp_path)
    assert "round trip done" in done.stdout, done.stdout + done.stderr
