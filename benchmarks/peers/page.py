"""The figures as Markdown, between marks: ratios in docs/performance.md, all in docs/evidence/peers.md.

``python -m benchmarks.peers --rounds 0`` only writes the pages again, from the figures that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import table
from benchmarks.peers.neighbours import OTHERS_MAX
from benchmarks.peers.packages import versions
from benchmarks.peers.ratios import Line, Round, Spread, lines, visibility
from benchmarks.peers.results import Results
from benchmarks.peers.rows import COMPARISONS, TX_64, TX_256, Unit
from benchmarks.peers.system import Peer
from benchmarks.peers.turns import BUSY, rounds_of

BEGIN, END = "<!-- peers: written by benchmarks/peers/page.py -->", "<!-- end of peers -->"
#: Below the folder of the documents.
PAGES = ("performance.md", "evidence/peers.md", "../README.md")
#: What the README quotes.
QUOTED = ("plain messages of 256 B", "transactions, 64 in flight", "the same, EscrowMQ with one-way commit")
QUOTED_AS = (
    "plain messages of 256 B",
    "64 transactions in flight, waiting for COMMIT",
    "with one-way commit",
)
#: In its place, where it was measured: our client makes batches by itself, so only batches are comparable.
FAIRER = {"plain messages of 256 B": "256 B, the other in its own batches of 64"}


def parts_of_pages(docs: Path) -> list[tuple[Path, str, str]]:
    """Each page with what stands before and behind the marks. Raises ValueError: one or its marks are
    missing."""
    parts = []
    for name in PAGES:
        page = docs / name
        if not page.is_file():
            raise ValueError(f"{page} is missing; the pages are {', '.join(PAGES)}, below {docs}")
        before, mark, rest = page.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not mark or not end:
            raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
        parts.append((page, before, after))
    return parts


def write_pages(results: Results, peers: Sequence[type[Peer]], docs: Path) -> None:
    """Replace the text between the marks of all pages. Raises ValueError as ``parts_of_pages``."""
    texts = (ratios(results, peers), figures(results, peers), quote(results, peers))
    for (page, before, after), text in zip(parts_of_pages(docs), texts, strict=True):
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def measured(results: Results, peers: Sequence[type[Peer]]) -> dict[type[Peer], list[Line]]:
    """The peers that have rounds, with their lines."""
    found = {}
    for peer in peers:
        rounds = [one for run in results.of(peer.name) for one in rounds_of(run, quiet=True)]
        if known := lines(rounds, peer.name):
            found[peer] = known
    return found


def ratios(results: Results, peers: Sequence[type[Peer]]) -> str:
    """One table: a line for each comparison, a column for each peer. Then versions and settings."""
    columns = measured(results, peers)
    rows = []
    for comparison in COMPARISONS:
        cells = []
        for known in columns.values():
            line = next((line for line in known if line.comparison == comparison), None)
            cells.append("–" if line is None else _spread(line.ratio, ".2f"))
        if any(cell != "–" for cell in cells):
            rows.append((comparison.title, *cells))
    parts = []
    if rows:
        durable = ("durable at the answer", *(peer.durable for peer in columns))
        parts.append(table(("", *(peer.title for peer in columns)), [durable, *rows]))
    else:
        parts.append("Nothing has been measured on a quiet machine yet.\n")
    parts.append(_missing(results, peers))
    settings = [f"- **{peer.title}** ({_pins(peer.product)}): {peer.settings}\n" for peer in peers]
    parts.append("".join(["Versions and settings:\n\n", *settings]))
    return "\n".join(part for part in parts if part)


def quote(results: Results, peers: Sequence[type[Peer]]) -> str:
    """A sentence with medians of ratios, or nothing if nothing was measured."""
    columns = measured(results, peers)
    said = []
    for title, name in zip(QUOTED, QUOTED_AS, strict=True):
        cells = []
        for peer, known in columns.items():
            lines = {line.comparison.title: line for line in known}
            line = lines.get(FAIRER.get(title, ""))
            batches = "" if line is None else ", in its own batches"
            if (line := line or lines.get(title)) is not None:
                cells.append(f"{_short(line.ratio.median)} ({peer.title}{batches})")
        if cells:
            said.append(f"{name}: {', '.join(cells)}")
    if not said:
        return ""
    return f"In turns with others, EscrowMQ's rate as a multiple of theirs (medians). {'. '.join(said)}.\n"


def figures(results: Results, peers: Sequence[type[Peer]]) -> str:
    """For each peer: versions, when it ran, and a table with medians of both and their ratio."""
    parts = []
    for peer, known in measured(results, peers).items():
        runs = results.of(peer.name)
        rounds = [one for run in runs for one in rounds_of(run, quiet=True)]
        body = [
            (
                line.comparison.title,
                _figure(line.ours, line.comparison.unit),
                _figure(line.theirs, line.comparison.unit),
                _spread(line.ratio, ".2f"),
                str(line.rounds),
            )
            for line in known
        ]
        head = ("", "EscrowMQ", peer.title, "ratio", "rounds")
        parts += [f"### {peer.title}\n", f"{_pins(peer.product)}. Durable at the answer: {peer.durable}.\n"]
        parts += [_ran(runs), table(head, body)]
        for row, count in ((TX_64, 64), (TX_256, 256)):
            if (seen := visibility(rounds, peer.name, row)) is not None:
                parts.append(
                    f"Of the transactions that were acknowledged with {count} in flight, consumers could "
                    f"read {seen.at_end:.0%} when the load ended, and {seen.later:.0%} after "
                    f"{seen.waited_s:.1f} s more (medians).\n"
                )
        parts += _failures(peer, runs)
    return "\n".join([*parts, _missing(results, peers)])


def _ran(runs: list[dict[str, Any]]) -> str:
    said = [
        f"{run['began']} at {run['revision']}, {run['warmed_s']:.0f} s of load before, "
        f"{run['seconds']:g} s a row"
        for run in runs
        if any(rounds_of(run, quiet=True))
    ]
    return "Runs: " + "; ".join(said) + ".\n"


def _count(one: Round) -> int:
    return sum(figure != BUSY for rows in one.values() for figure in rows.values())


def _failures(peer: type[Peer], runs: list[dict[str, Any]]) -> list[str]:
    """Rows that failed are not in the table; that they failed is."""
    said: dict[str, int] = {}
    for run in runs:
        if "ended" in run:
            said[f"a run ended early: {run['ended']}"] = 1
        for one in rounds_of(run, quiet=True):
            for row, figure in one.get(peer.name, {}).items():
                if figure.error is not None and figure != BUSY:
                    text = f"`{row}` failed: {figure.error}"
                    said[text] = said.get(text, 0) + 1
    return [f"- {text} ({count} times)\n" if count > 1 else f"- {text}\n" for text, count in said.items()]


def _missing(results: Results, peers: Sequence[type[Peer]]) -> str:
    names = {peer.name: peer.title for peer in peers}
    said = [
        f"- {names.get(name, name)}: not available: {why}\n" for name, why in results.not_available.items()
    ]
    for peer in peers:
        runs = results.of(peer.name)
        taken, used = (
            sum(_count(one) for run in runs for one in rounds_of(run, quiet)) for quiet in (False, True)
        )
        if used < taken:
            said.append(
                f"- {peer.title}: {taken - used} of {taken} figures are left out, since other work took more "
                f"than {OTHERS_MAX:.0%} of the machine meanwhile, or since the peer was not warm\n"
            )
    return "".join(said)


def _pins(product: str) -> str:
    pins = [
        f"{name.rpartition(':')[2]} {version}"
        for kind in versions()[product].values()
        for name, version in kind.items()
    ]
    return ", ".join(pins)


def _figure(spread: Spread, unit: Unit) -> str:
    return f"{spread.median:.2f} ms" if unit == "p50_ms" else f"{spread.median:,.0f}/s"


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"


def _spread(spread: Spread, how: str) -> str:
    return f"{spread.median:{how}} ({spread.low:{how}}–{spread.high:{how}})"
