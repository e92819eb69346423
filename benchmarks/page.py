"""Puts the figures of a run into docs/evidence/benchmarks.md, between two marks; the prose stays as it is.

``make bench ARGS="--page docs/evidence/benchmarks.md"``, or later, from the artefact:
``python -m benchmarks.page artifacts/bench.json docs/evidence/benchmarks.md``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

BEGIN, END = "<!-- figures: written by benchmarks/page.py -->", "<!-- end of figures -->"
PROCESSES = ("client", "leader", "follower 1", "follower 2", "raylet", "gcs_server")


def write_page(figures: dict[str, Any], page: Path) -> None:
    """Replace the text between the marks. Raises ValueError if the page lacks them."""
    text = page.read_text()
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{render(figures)}\n{END}{after}")


def render(figures: dict[str, Any]) -> str:
    """The figures of the run as Markdown."""
    parts = [_machine(figures["machine"])]
    if "ceiling" in figures:
        parts.append(_ceiling(figures["ceiling"]))
    for title in figures:
        if title.startswith(("Transactions", "Plain")):
            parts.append(_traffic(title, figures[title]))
    if "reading" in figures:
        parts.append(_reading(figures["reading"]))
    if "shares" in figures:
        parts.append(_shares(figures["shares"]))
    if "delays" in figures:
        parts.append(_delays(figures["delays"]))
    if "open_transactions" in figures:
        parts.append(_open(figures["open_transactions"]))
    if "across_groups" in figures:
        parts.append(_across(figures["across_groups"]))
    if "stable_cuts" in figures:
        parts.append(_stable_cuts(figures["stable_cuts"]))
    if "recovery" in figures:
        parts.append(_recovery(figures["recovery"]))
    return "\n".join(parts)


def _machine(facts: dict[str, Any]) -> str:
    probe = facts["fdatasync_4k"]
    return (
        "### Machine\n\n"
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB; Linux {facts['kernel']}, Python "
        f"{facts['python']}.\nEverything (client, three brokers, Ray) on this one machine. Append of 4 KiB + "
        f"`fdatasync`:\np50 {probe['p50_ms']:.2f} ms, p99 {probe['p99_ms']:.2f} ms. Load average before: "
        f"{facts['load_before']:.1f}.\n"
    )


def _ceiling(rows: list[dict[str, Any]]) -> str:
    body = [
        (
            f"{row['call_bytes']:,}",
            f"{row['in_flight']}",
            f"{row['calls_per_s']:,.0f}",
            f"{row['bytes_per_s'] / 1e6:.1f}",
            f"{row['latency']['p50_ms']:.2f}",
            f"{row['latency']['p99_ms']:.2f}",
        )
        for row in rows
    ]
    head = ("bytes per call", "calls in flight", "calls/s", "MB/s", "p50 ms", "p99 ms")
    return "### Ceiling\n\n" + table(head, body)


def _traffic(title: str, figures: dict[str, Any]) -> str:
    ceiling = figures["ceiling_bytes_per_s"]
    rows = {name: row for name, row in figures.items() if isinstance(row, dict)}
    speed, cost = [], []
    for name, row in rows.items():
        latency = row["latency"]
        times = (f"{latency['p50_ms']:.2f}", f"{latency['p99_ms']:.2f}") if latency else ("", "")
        share = f"{row['bytes_per_s'] / ceiling:.2f}"
        speed.append((name, f"{row['per_s']:,.0f}", f"{row['bytes_per_s'] / 1e6:.1f}", share, *times))
        used, busy = row["cpu_us_per_item"], row["cores_busy"]
        cost.append((name, *(f"{used.get(p, 0):.1f} ({busy.get(p, 0):.2f})" for p in PROCESSES)))
    head = ("", "per second", "MB/s", "of ceiling", "p50 ms", "p99 ms")
    return (
        f"### {title}\n\n"
        + table(head, speed)
        + "\nCPU time in µs for each, by process (cores kept busy):\n\n"
        + table(("", *PROCESSES), cost)
    )


def _reading(row: dict[str, Any]) -> str:
    size = row["message_bytes"]
    return (
        "### Reading\n\n"
        f"One consumer reads {row['per_s']:,.0f} messages of {size} B per second "
        f"({row['per_s'] * size / 1e6:.0f} MB/s).\n"
    )


def _shares(row: dict[str, Any]) -> str:
    beside, leader_us, paced = row["beside"], row["leader_us"], row["beside_paced"]
    body = [
        ("polled and acked in batches of 500", f"{row['batches_per_s']:,.0f}"),
        ("handled and acked one by one by 64 handlers", f"{row['handlers_per_s']:,.0f}"),
        ("nacked one by one by 64 handlers, each waits", f"{row['nacks_per_s']:,.0f}"),
        ("plain messages sent, nobody reads them", f"{beside['nobody']:,.0f}"),
        ("plain messages sent beside a stream consumer", f"{beside['stream']:,.0f}"),
        ("plain messages sent beside a share consumer", f"{beside['share']:,.0f}"),
        *(
            (f"plain messages sent beside 20,000 others a second, read by {kind}", f"{paced[kind]:,.0f}")
            for kind in ("nobody", "stream", "share")
        ),
        ("taken by 1,000 members, of 500 sent", f"{row['members_per_s']:,.0f}"),
    ]
    return (
        "### Share groups\n\n"
        + table(("one consumer, four partitions", "per second"), body)
        + f"\nThe 1,000 members make {row['members_calls_per_s']:,.0f} calls a second. A message is handed "
        f"out {row['members_p50_ms']:,.0f} ms (p50) and {row['members_p99_ms']:,.0f} ms (p99)\n"
        "after it was sent. For each plain message the leader spends "
        f"{leader_us['nobody']:.1f} µs of processor time if nobody\nreads, {leader_us['stream']:.1f} beside "
        f"the stream consumer, and {leader_us['share']:.1f} beside the share consumer.\n"
    )


def _delays(row: dict[str, Any]) -> str:
    late, million = row["late_ms"], row["million"]
    body = [
        (way, f"{plain:,.0f}", f"{row['scheduled'][way]:,.0f}", f"{median(row['ratios'][way]):.2f}")
        for way, plain in row["plain"].items()
    ]
    drained = [
        (name, *(f"{found[k]:,.0f}" for k in ("per_s", "before", "beside", "after")))
        for name, found in row["drained"].items()
    ]
    return (
        "### Delayed messages\n\n"
        + table(("messages of 256 B, a second", "plain", "delayed", "ratio of the pairs"), body)
        + f"\n{row['due_per_s']:,.0f} a second that become due are read {late['p50_ms']:.1f} ms (p50), "
        f"{late['p99_ms']:.1f} ms (p99) and {late['max_ms']:.0f} ms (max) after their time.\n"
        f"{million:,} that are due in one second, and transactions of 64 asyncio tasks, a second:\n\n"
        + table(("due", "become readable", "commits before", "beside", "after"), drained)
    )


def _open(row: dict[str, Any]) -> str:
    return (
        "### Open transactions\n\n"
        f"{row['per_s_without']:,.0f} transactions per second are committed with none open, and "
        f"{row['per_s_with']:,.0f} with {row['opened']:,}\nopen: a ratio of {row['ratio']:.2f}. Opening them "
        f"took {row['opening_s']:.0f} s and {row['leader_memory_mb']:,.0f} MB of the leader's memory. Its "
        f"CPU time per transaction changes\nfrom {row['cpu_us_without']['leader']:.1f} to "
        f"{row['cpu_us_with']['leader']:.1f} µs.\n"
    )


def _across(row: dict[str, Any]) -> str:
    return (
        "### Over two broker groups\n\n"
        f"Transactions of two messages each, in bulk: {row['two_groups_per_s']:,.0f} per second with one "
        f"message in each group,\n{row['one_group_per_s']:,.0f} with both in one: a ratio of "
        f"{row['ratio']:.2f}. A lone one takes {row['two_groups_p50_ms']:.2f} ms and "
        f"{row['one_group_p50_ms']:.2f} ms (p50).\n"
    )


def _stable_cuts(row: dict[str, Any]) -> str:
    busy = f"beside {row['commits_per_s']:,.0f} commits a second over both"
    body = [
        (name, *(f"{times[which]:.0f}" for which in ("p50_ms", "p99_ms", "max_ms", "samples")))
        for name, times in (("idle", row["idle"]), (busy, row["busy"]))
    ]
    head = ("through two broker groups", "p50 ms", "p99 ms", "max ms", "cuts")
    return "### Stable cuts\n\n" + table(head, body)


def _recovery(rows: list[dict[str, Any]]) -> str:
    body = [
        (
            f"{row['log_mb']:,.0f}",
            f"{row['messages']:,}",
            f"{row['entries']:,}",
            f"{row['entries_redone']:,}",
            f"{row['read_mb']:.1f}",
            f"{row['seconds']:.2f}",
        )
        for row in rows
    ]
    head = ("log MB", "messages", "entries", "entries redone", "MB read", "seconds")
    return "### Recovery\n\n" + table(head, body)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; all columns but the first are aligned right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, rule, *rows))


if __name__ == "__main__":
    write_page(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
