"""The dashboard is one for Grafana: no panels overlap, and its types know every field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from escrowmq.cluster.exporter import board

#: The Prometheus data source reads it from an annotation; the dashboard's own types leave such fields open.
OF_THE_SOURCE = ".annotations.list[0].titleFormat"


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where ``kept`` has something else, or nothing."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            yield from lost(value, kept[name], f"{path}.{name}") if name in kept else [f"{path}.{name}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for at, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}[{at}]")
    elif given != kept:
        yield path


def unknown_to_grafana(shown: dict[str, Any]) -> list[str]:
    """Read into the types that Grafana Labs generate from Grafana's schemas, and written again, a dashboard
    loses what they do not know."""
    plugins.register_default_plugins()  # panels and queries by their types, not as they come
    return list(lost(shown, json.loads(JSONEncoder().encode(Dashboard.from_json(shown)))))


def test_grafanas_types_know_every_field() -> None:
    assert unknown_to_grafana(board.board()) == [OF_THE_SOURCE]
    misspelled = board.board()
    misspelled["panels"][1]["targets"][0]["expression"] = misspelled["panels"][1]["targets"][0].pop("expr")
    misspelled["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert unknown_to_grafana(misspelled)[1:] == [
        ".panels[1].fieldConfig.defaults.units",
        ".panels[1].targets[0].expression",
    ]


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    shown = board.board()["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    taken: set[tuple[int, int]] = set()
    for panel in shown:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= board.COLUMNS and not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["expr"] and target["legendFormat"]
