"""The figures as Markdown, and their place in docs/evidence/spark.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.page import table

BEGIN, END = "<!-- spark figures: written by benchmarks/spark/page.py -->", "<!-- end of spark figures -->"
#: Title of a contest, the path to its figures, and what it is compared with.
CONTESTS = (
    ("Batch read, `sum(length(value))`", ("reading", "sum(length(value))"), "Parquet"),
    ("Batch read, `groupBy(key)`", ("reading", "groupBy(key)"), "Parquet"),
    ("Stream, all in one micro-batch", ("streaming",), "rate source"),
    ("Write", ("writing",), "Parquet"),
    ("Reader of one task without Spark, by fetches in flight", ("ahead",), "one"),
)


def render(figures: dict[str, Any]) -> str:
    """Tables by contest; rows are contenders and record sizes."""
    facts = figures["machine"]
    parts = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Python {facts['python']}; load "
        f"average before: {facts['load_before']:.1f}. Spark: mode `{figures['mode']}`, {figures['cores']} "
        f"cores; {figures['megabytes']} MiB of values for each size of record.\n"
    ]
    sizes = [name for name in figures if name.isdecimal()]
    for title, way, beside in CONTESTS:
        body = []
        for size in sizes:
            found: Any = figures[size]
            for step in way:
                found = found[step]
            body += [_row(f"{name}, {int(size):,} B", figure) for name, figure in found.items()]
        head = ("", "rows/s", "MB/s", f"of {beside}", "quartiles", "brokers' CPU ms/MB")
        parts.append(f"**{title}**\n\n{table(head, body)}")
    if "trickle" in figures:
        t = figures["trickle"]
        parts.append(
            f"**Light load** (two messages per second, default trigger): from the acknowledgement to "
            f"`foreachBatch` p50 {t['p50_ms'] / 1000:.2f} s, p99 {t['p99_ms'] / 1000:.2f} s "
            f"({t['samples']:.0f} messages).\n"
        )
    return "\n".join(parts)


def _row(name: str, figure: dict[str, float]) -> tuple[str, ...]:
    return (
        name,
        f"{figure['rows_per_s']:,.0f}",
        f"{figure['mb_per_s']:,.1f}",
        f"{figure['ratio']:.2f}",
        f"{figure['ratio_low']:.2f}–{figure['ratio_high']:.2f}",
        f"{figure['broker_cpu_ms_per_mb']:.2f}",
    )


def write_page(text: str, page: Path) -> None:
    """Replace the text between the marks. Raises ValueError if the page lacks them."""
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
