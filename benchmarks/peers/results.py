"""The JSON file of all runs: each run is added, so that several short ones make one table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Results:
    """Runs, and which peers could not be had, with the reasons."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.runs: list[dict[str, Any]] = known.get("runs", [])
        self.not_available: dict[str, str] = known.get("not_available", {})

    def put(self, run: dict[str, Any]) -> None:
        """Add a run, or replace the one that began at the same time: it has more rounds now."""
        self.runs = [*(r for r in self.runs if r["began"] != run["began"]), run]
        self.not_available.pop(run["peer"], None)
        self._save()

    def refuse(self, peer: str, why: str) -> None:
        """This peer could not be measured. Its earlier runs stay."""
        self.not_available[peer] = why
        self._save()

    def of(self, peer: str) -> list[dict[str, Any]]:
        """The runs with this peer that used the same versions as its newest."""
        runs = [run for run in self.runs if run["peer"] == peer]
        return [run for run in runs if run["versions"] == runs[-1]["versions"]]

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".half")
        half.write_text(json.dumps({"runs": self.runs, "not_available": self.not_available}, indent=1) + "\n")
        os.replace(half, self.path)
