"""What the demo shows at its end: what happened, and both answers side by side."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from escrowmq.cluster.demo.events import COMMITTED, LEFT_OPEN, ROLLED_BACK
from escrowmq.cluster.demo.mishaps import Mishap, MishapPlan
from escrowmq.cluster.demo.queries import QUESTIONS, Answer
from escrowmq.cluster.demo.tally import Tally
from escrowmq.feedback.states import TransactionState


def happened(
    tally: Tally, plan: MishapPlan, orders: int, messages: int, production_s: float, resolve_s: float
) -> Table:
    """The table of what happened."""
    table = Table(title="What happened", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    committed, rolled_back = TransactionState.COMMITTED, TransactionState.ROLLBACK
    fail_over = tally.fail_over_s()
    planned = {kind: sum(mishap is kind for mishap in plan.orders.values()) for kind in Mishap}
    rows = [
        ("orders placed", f"{tally.through:,}"),
        ("  in", f"{production_s:.1f} s, {tally.through / production_s:,.0f} a second"),
        ("committed by their producer", f"{tally.outcomes[COMMITTED]:,}"),
        ("rolled back by their producer", f"{tally.outcomes[ROLLED_BACK]:,}"),
        ("left undecided by a producer that lived on", f"{tally.outcomes[LEFT_OPEN]:,}"),
        ("left by the killed producer, found in the database", f"{tally.taken_over:,}"),
        *((f"  planned: {kind.value}", f"{count:,}") for kind, count in planned.items()),
        ("resolved by feedback", f"{len(tally.resolved):,}"),
        ("  as committed", f"{tally.resolved_as(committed):,}"),
        ("  as rolled back", f"{tally.resolved_as(rolled_back):,}"),
        ("checks answered UNKNOWN, asked again", f"{tally.answers[TransactionState.UNKNOWN.value]:,}"),
        ("  last one resolved", f"{resolve_s:.1f} s after the last order"),
        ("leader killed: next commit acknowledged after", "-" if fail_over is None else f"{fail_over:.2f} s"),
        ("orders in the database", f"{orders:,}"),
        ("messages that consumers can read", f"{messages:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def side_by_side(title: str, spark: Answer | None, duck: Answer) -> tuple[Table, bool]:
    """One question's answers as a table, and whether they are equal row for row."""
    columns, duck_rows = duck
    names = QUESTIONS[title][0]
    table = Table(title=title, title_justify="left")
    for heading in columns[:names]:
        table.add_column(heading, style="bold")
    table.add_column("")
    table.add_column("Spark on Ray, committed messages", justify="right")
    table.add_column("DuckDB, business database", justify="right")
    table.add_column("")
    spark_rows = duck_rows if spark is None else spark[1]
    equal = spark is None or (spark[0] == columns and spark_rows == duck_rows)
    for i in range(max(len(spark_rows), len(duck_rows))):
        ours = spark_rows[i] if i < len(spark_rows) else ["-"] * len(columns)
        theirs = duck_rows[i] if i < len(duck_rows) else ["-"] * len(columns)
        for j in range(names, len(columns)):
            head = (theirs if theirs[0] != "-" else ours)[:names] if j == names else [""] * names
            same = (
                "[green]=[/]"
                if ours[j] == theirs[j] and ours[:names] == theirs[:names]
                else "[red]differs[/]"
            )
            left, mark = (ours[j], same) if spark is not None else ("not asked", "")
            table.add_row(*head, columns[j], left, theirs[j], mark, end_section=j == len(columns) - 1)
    return table, equal


def show_problems(console: Console, problems: list[str]) -> None:
    """Breaches of the promise, one a line."""
    for problem in problems:
        console.print(f"[red]problem:[/] {problem}", highlight=False)
