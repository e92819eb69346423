"""The metrics of searches for messages."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Kind, Metric, Panel
from escrowmq.cluster.exporter.tables.words import REPLICA, THE_BROKER, TOPICS, quantiles_of, rate_by

FIND_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_find_cache_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Files from which searches are answered; broker.find_cache_bytes at most.",
        source=THE_BROKER,
        panel=Panel(
            title="Files from which searches are answered",
            row=TOPICS,
            unit="bytes",
            lines=(("escrowmq_find_cache_bytes", "group {{group}}, replica {{replica}}"),),
        ),
    ),
    Metric(
        name="escrowmq_find_cache_files",
        kind=Kind.gauge,
        labels=REPLICA,
        help="The number of these files: one for each block of 65,536 offsets that was searched.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_find_memory_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Searched blocks in memory, such as the last block of a partition; 64 MiB at most.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_find_lookups_total",
        kind=Kind.counter,
        labels=(*REPLICA, "result"),
        help=(
            "Questions of searches about a block: hit (it was there), miss (its messages had to be read). "
            "Searches for headers are not counted: they read all messages."
        ),
        source=THE_BROKER,
        panel=Panel(
            title="Searched blocks per second",
            row=TOPICS,
            lines=(rate_by("escrowmq_find_lookups_total", "result"),),
        ),
    ),
    Metric(
        name="escrowmq_find_damaged_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Files that were removed because they could not be read, or were damaged.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_find_build_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time to read the messages of a block, with the pauses that broker.find_cpu_share demands.",
        source=THE_BROKER,
        panel=Panel(
            title="Time to read a block for a search",
            row=TOPICS,
            unit="s",
            lines=quantiles_of("escrowmq_find_build_seconds"),
        ),
    ),
)
