"""Prints tables for people and writes a JSON file for programs. It formats figures and computes ratios."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.across_groups import AcrossFigure
from benchmarks.ceiling import CeilingFigure
from benchmarks.delays import DelayFigure
from benchmarks.group import Traffic
from benchmarks.open_transactions import OpenFigure
from benchmarks.recovery import RecoveryFigure
from benchmarks.share_groups import ShareFigure
from benchmarks.stable_cuts import CutFigure
from benchmarks.workload import Timed


class Report:
    """Collects rows and figures while the benchmark runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.figures: dict[str, Any] = {}

    def machine(self, facts: dict[str, Any]) -> None:
        self.figures["machine"] = facts
        probe = facts["fdatasync_4k"]
        self._console.print(
            f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}, "
            f"Python {facts['python']}; append 4 KiB + fdatasync: p50 {probe['p50_ms']:.2f} ms, "
            f"p99 {probe['p99_ms']:.2f} ms; load before: {facts['load_before']:.1f}"
        )

    def ceiling(self, rows: list[CeilingFigure]) -> None:
        table = _table("Ceiling: bare threaded Ray actor, copies over TCP, fdatasync; no Raft, no logic")
        for name in ("bytes per call", "calls in flight", "calls/s", "MB/s", "p50 ms", "p99 ms"):
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(
                f"{row.call_bytes:,}",
                str(row.in_flight),
                f"{row.calls_per_s:,.0f}",
                f"{row.bytes_per_s / 1e6:.1f}",
                f"{row.latency['p50_ms']:.2f}",
                f"{row.latency['p99_ms']:.2f}",
            )
        self._console.print(table)
        self.figures["ceiling"] = [
            {
                "call_bytes": row.call_bytes,
                "in_flight": row.in_flight,
                "calls_per_s": row.calls_per_s,
                "bytes_per_s": row.bytes_per_s,
                "latency": row.latency,
                "cpu_us_per_call": row.cpu.us_per_item(),
            }
            for row in rows
        ]

    def traffic(self, title: str, what: str, rows: dict[str, Timed], ceiling_bytes_per_s: float) -> None:
        """Report a table of rates. ``what``: the unit of work, in the singular."""
        table = _table(title)
        table.add_column("")
        for name in (f"{what}s/s", "MB/s", "of ceiling", "p50 ms", "p99 ms", "KB per call"):
            table.add_column(name, justify="right")
        for name, row in rows.items():
            table.add_row(
                name,
                f"{row.traffic.per_s:,.0f}",
                f"{row.traffic.bytes_per_s / 1e6:.1f}",
                f"{row.traffic.bytes_per_s / ceiling_bytes_per_s:.2f}",
                *_times(row.latency),
                f"{row.traffic.bytes_per_call / 1e3:.1f}",
            )
        self._console.print(table)
        self._cpu(what, {name: row.traffic for name, row in rows.items()})
        self.figures[title] = {
            name: {**traffic_figures(row.traffic), "latency": row.latency} for name, row in rows.items()
        } | {"ceiling_bytes_per_s": ceiling_bytes_per_s}

    def reading(self, row: Traffic, message_bytes: int) -> None:
        self._console.print(
            f"\n[bold]One consumer reads[/bold] {row.per_s:,.0f} messages/s of {message_bytes} B "
            f"({row.per_s * message_bytes / 1e6:.0f} MB/s)"
        )
        self._cpu("message", {"reading": row})
        self.figures["reading"] = traffic_figures(row) | {"message_bytes": message_bytes}

    def open_transactions(self, row: OpenFigure) -> None:
        without, having = row.cpu_us_without["leader"], row.cpu_us_with["leader"]
        self._console.print(
            f"\n[bold]Open transactions:[/bold] {row.per_s_without:,.0f} committed/s with none open, "
            f"{row.per_s_with:,.0f}/s with {row.opened:,} open: ratio {row.ratio:.2f}. Opening them took "
            f"{row.opening_s:.0f} s and {row.leader_memory_mb:,.0f} MB in the leader, whose "
            f"CPU time per transaction changes from {without:.1f} to {having:.1f} µs."
        )
        self.figures["open_transactions"] = {**vars(row), "ratio": row.ratio}

    def across_groups(self, row: AcrossFigure) -> None:
        self._console.print(
            f"\n[bold]Transactions of two messages:[/bold] {row.two_groups_per_s:,.0f}/s in bulk over two "
            f"broker groups, {row.one_group_per_s:,.0f}/s in one: ratio {row.ratio:.2f}. A lone one takes "
            f"{row.two_groups_p50_ms:.2f} ms, in one group {row.one_group_p50_ms:.2f} ms (p50)."
        )
        self.figures["across_groups"] = {**vars(row), "ratio": row.ratio}

    def stable_cuts(self, row: CutFigure) -> None:
        idle, busy = (
            f"{times['p50_ms']:.0f} ms (p50), {times['p99_ms']:.0f} ms (p99)"
            for times in (row.idle, row.busy)
        )
        self._console.print(
            f"\n[bold]A stable cut through two broker groups:[/bold] {idle} idle; {busy} beside "
            f"{row.commits_per_s:,.0f} commits/s over both."
        )
        self.figures["stable_cuts"] = vars(row)

    def shares(self, row: ShareFigure) -> None:
        beside = ", ".join(
            f"{kind} {rate:,.0f}/s ({row.leader_us[kind]:.1f})" for kind, rate in row.beside.items()
        )
        paced = ", ".join(f"{kind} {rate:,.0f}/s" for kind, rate in row.beside_paced.items())
        self._console.print(
            f"\n[bold]Share groups:[/bold] {row.batches_per_s:,.0f} messages/s polled and acked in batches "
            f"of 500, {row.handlers_per_s:,.0f}/s by 64 handlers, {row.nacks_per_s:,.0f} nacks/s. 1,000 "
            f"members took {row.members_per_s:,.0f}/s, {row.members_p50_ms:,.0f} ms (p50) and "
            f"{row.members_p99_ms:,.0f} ms (p99) after they were sent, with {row.members_calls_per_s:,.0f} "
            f"calls/s. Plain messages sent beside each reader (leader's µs each): {beside}. "
            f"To another topic, beside a reader of 20,000/s: {paced}."
        )
        self.figures["shares"] = vars(row)

    def delays(self, row: DelayFigure) -> None:
        ways = ", ".join(
            f"{way} {row.scheduled[way]:,.0f}/s beside {row.plain[way]:,.0f}/s plain "
            f"({median(row.ratios[way]):.2f})"
            for way in row.plain
        )
        late = row.late_ms
        drained = "; ".join(
            f"{name} at {found.per_s:,.0f}/s, commits of 64 tasks before, beside and after "
            f"{found.before:,.0f}, {found.beside:,.0f} and {found.after:,.0f}/s"
            for name, found in row.drained.items()
        )
        self._console.print(
            f"\n[bold]Delayed messages:[/bold] scheduled with {ways}. {row.due_per_s:,.0f}/s due are read "
            f"{late['p50_ms']:.1f} ms (p50) and {late['p99_ms']:.1f} ms (p99) late. {row.million:,} due in "
            f"one second become readable {drained}."
        )
        self.figures["delays"] = asdict(row)

    def recovery(self, rows: list[RecoveryFigure]) -> None:
        table = _table("Recovery of a stopped replica: reads what follows its newest snapshot")
        for name in ("log MB", "messages", "log entries", "entries redone", "MB read", "seconds"):
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(
                f"{row.log_mb:,.0f}",
                f"{row.messages:,}",
                f"{row.entries:,}",
                f"{row.entries_redone:,}",
                f"{row.read_mb:,.1f}",
                f"{row.seconds:.2f}",
            )
        self._console.print(table)
        self.figures["recovery"] = [vars(row) for row in rows]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.figures, indent=2) + "\n")
        self._console.print(f"\nFigures written to {path}")

    def _cpu(self, what: str, rows: dict[str, Traffic]) -> None:
        names = sorted({name for row in rows.values() for name in row.cpu.by_process})
        table = _table(f"CPU time, µs per {what} (cores kept busy)")
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right")
        for label, row in rows.items():
            per_item, busy = row.cpu.us_per_item(), row.cpu.busy()
            table.add_row(label, *(f"{per_item[n]:.1f} ({busy[n]:.2f})" for n in names))
        self._console.print(table)


def traffic_figures(row: Traffic) -> dict[str, Any]:
    """A measurement as plain values."""
    return {
        "per_s": row.per_s,
        "items": row.items,
        "seconds": row.seconds,
        "calls": row.calls,
        "bytes_per_s": row.bytes_per_s,
        "bytes_per_item": row.bytes_per_item,
        "cpu_us_per_item": row.cpu.us_per_item(),
        "cores_busy": row.cpu.busy(),
    }


def _times(latency: dict[str, float]) -> tuple[str, str]:
    if not latency:
        return "", ""
    return f"{latency['p50_ms']:.2f}", f"{latency['p99_ms']:.2f}"


def _table(title: str) -> Table:
    return Table(title=f"\n{title}", title_justify="left", title_style="bold")
