"""The figures of a run as Markdown, for docs/evidence/load.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.page import table


def render(figures: dict[str, Any]) -> str:
    """The text for all experiments that were run."""
    parts: dict[str, Callable[[dict[str, Any]], str]] = {
        "overload": _overload,
        "open": _open,
        "polls": _polls,
        "crowd": _crowd,
        "slow": _slow,
        "dead": _dead,
    }
    return "\n".join(write(figures[name]) for name, write in parts.items() if name in figures)


def _overload(f: dict[str, Any]) -> str:
    rows = [
        (name, *(f"{s[k]:,.0f}" for k in ("first", "max", "last")), f"{s['slope_per_min']:+.1f}")
        for name, s in f["memory_mb"].items()
    ]
    waits = [(what, f"{q['p50']:,.0f}", f"{q['p99']:,.0f}") for what, q in f["latency_ms"].items()]
    c = f["comparison"]
    cores = "not capped" if f["broker_cores"] is None else f"capped at {f['broker_cores']:g} cores together"
    return (
        "### Overload\n\n"
        f"{f['clients']} clients, {f['seconds'] / 60:.1f} minutes, brokers {cores}. Sustainable: "
        f"{f['sustainable_per_s']:,.0f}/s. Offered: {f['offered_per_s']:,.0f}/s, {f['factor']:.1f}\ntimes as "
        f"much; accepted {f['accepted_per_s']:,.0f}/s, refused {100 * f['refused_share']:.0f} %, all with "
        f"`Overloaded` and a time after which to retry.\nRead at the end: {c['read']:,} messages; of "
        f"{c['accepted']:,} acknowledged ones {c['lost']} lost, {c['twice']} duplicated; of\n"
        f"{c['refused']:,} refused ones {c['refused_but_there']} readable; {c['out_of_order']} out of order; "
        f"{c['unknown']} without an answer.\n\n"
        "Latency of accepted work (a transaction makes two calls in sequence; "
        "*start* "
        "is how late the\nclient's own event loop started it):\n\n"
        + table(("ms", "p50", "p99"), waits)
        + f"\nThe p99 of the worst second: {f['worst_second_p99_ms']:,.0f} ms; the term increased by "
        f"{f['leader_changes']}. Memory of each process in MB (slope: least "
        "squares after the first minute, per minute):\n\n"
        + table(("process", "first", "max", "last", "slope"), rows)
    )


def _open(f: dict[str, Any]) -> str:
    each = max(f["bytes_each"].values())
    rows = [(name, f"{s:.2f}") for name, s in f["listing_s"].items()]
    lone, beside = f["lone_ms_before"], f["lone_ms_while_listing"]
    return (
        f"### {f['opened']:,} open transactions\n\n"
        f"Memory: {each:,.0f} bytes each in the replica that needs most. Commits: "
        f"{f['commits_per_s']['none']:,.0f}/s with none open,\n{f['commits_per_s']['many']:,.0f}/s with all "
        f"of them, in turns: a ratio of {f['ratio']:.2f} (median; {min(f['ratios']):.2f} to "
        f"{max(f['ratios']):.2f}). Processor time of the\nleader for each: {f['leader_us']['none']:.1f} and "
        f"{f['leader_us']['many']:.1f} µs. Checks resolved through one producer:\n"
        f"{f['checks_per_s']['none']:,.0f} a second with none open besides, "
        f"{f['checks_per_s']['many']:,.0f} with all of them: a ratio of {f['check_ratio']:.2f} (median;\n"
        f"{min(f['check_ratios']):.2f} to {max(f['check_ratios']):.2f}). SIGKILL of the leader: next commit "
        f"after {f['first_commit_after_leader_s']:.2f} s, the "
        f"replica back after {f['back_after_leader_s']:.1f} s. SIGKILL of all:\nnext commit after "
        f"{f['first_commit_after_all_s']:.1f} s, all back after {f['back_after_all_s']:.1f} s, with every "
        "transaction still open.\n\n"
        + table(("listing", "seconds"), rows)
        + f"\nA lone transaction takes {lone['p50_ms']:.1f} ms (p99 {lone['p99_ms']:.0f}, max "
        f"{lone['max_ms']:.0f}) before, and {beside['p50_ms']:.1f} ms (p99 {beside['p99_ms']:.0f}, max "
        f"{beside['max_ms']:.0f}) while they are listed.\n"
    )


def _polls(f: dict[str, Any]) -> str:
    cores = f["broker_cores"]
    wait = f["check_latency"]
    return (
        "### Parked polls\n\n"
        f"{f['parked']:,} polls of producers parked at {f['shards']} feedback processes, of {f['apps']} apps "
        f"({f['producers_each']} producers each), for up to {f['poll_s']:g} s each.\nA process takes "
        f"{f['actor_mb_empty']:.0f} MB, and {f['kb_per_parked_poll']:.0f} KB for each poll. Idle, with "
        f"{f['polls_per_s']:,.0f} polls/s in all, a process keeps\n{f['actor_cores_each']:.3f} cores busy "
        f"({f['actor_cores_all']:.2f} all of them), the leader {cores['leader']:.2f}, the producers' process "
        f"{f['pollers_cores']:.2f}; load average {f['load'][0]:.0f} to {f['load'][1]:.0f}.\nA check reaches "
        f"a producer after p50 {wait['p50_ms']:,.0f} ms, p99 {wait['p99_ms']:,.0f} ms. Commits beside it: "
        f"{f['commits_per_s_with']:,.0f}/s instead of\n{f['commits_per_s_without']:,.0f} "
        f"({f['commit_ratio']:.2f}; the pollers take their share of the same cores).\n"
    )


def _crowd(f: dict[str, Any]) -> str:
    wait, calls = f["check_latency"], f["calls_per_s"]
    return (
        "### Parked polls of many apps, in one process\n\n"
        f"{f['parked']:,} polls parked at {f['apps']} apps ({f['producers_each']} each), their feedback and "
        f"three replicas in one process without Ray.\n{f['kb_per_parked_poll']:.1f} KB for each poll. Idle: "
        f"{f['polls_per_s']:,.0f} polls/s, {calls.get('due_pairs', 0):,.0f} questions for checks to "
        f"the leader and\n{calls.get('whoami', 0):,.0f} of who leads each second, {f['cores']:.2f} cores. A "
        f"check reaches a producer after p50 {wait['p50_ms']:,.0f} ms, p99 {wait['p99_ms']:,.0f} ms\n(20 "
        "checks a second, each of a random app).\n"
    )


def _phases(latency: dict[str, dict[str, float]]) -> str:
    rows = [(name, *(f"{s[k]:,.0f}" for k in ("p50_ms", "p99_ms", "max_ms"))) for name, s in latency.items()]
    return table(("phase", "p50 ms", "p99 ms", "max ms"), rows)


def _slow(f: dict[str, Any]) -> str:
    return (
        "### A slow follower\n\n"
        "Stopped for 2 s of every 3. Plain messages, 200 a second:\n\n" + _phases(f["latency"]) + "\n"
        f"It had caught up {f['caught_up_s']:.1f} s after the last stop. The leader's memory: "
        f"{f['leader_mb']['first']:.0f} MB, at most {f['leader_mb']['max']:.0f}.\n"
    )


def _dead(f: dict[str, Any]) -> str:
    parts = ["### A dead follower\n\n"]
    for name, how in (("log", "It reads the leader's log"), ("copy", "Retention has removed what it lacks")):
        s = f[name]
        parts.append(
            f"{how}: {f['log_mb']:,} MB were written without it; back after {s['back_s']:.1f} s "
            f"({s['mb_per_s']:.0f} MB/s), while others\nwrote {s['beside_mb_per_s']:.1f} MB/s. Then the "
            f"leader's log holds {s['leader_log_mb']:,.0f} MB; its memory was at most "
            f"{s['leader_mb']['max']:.0f} MB.\nPlain messages beside, 200 a second:\n\n"
            + _phases(s["latency"])
            + "\n"
        )
    return "".join(parts)
