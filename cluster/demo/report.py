"""The demo's final output: a table of what happened, and both engines' answers side by side."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from rich.console import Console
from rich.table import Table

from escrowmq.cluster.demo.events import COMMITTED, LEFT_OPEN, ROLLED_BACK
from escrowmq.cluster.demo.mishaps import Mishap, MishapPlan
from escrowmq.cluster.demo.queries import QUESTIONS, QueryAnswer
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
        ("  in", f"{production_s:.1f} s, {tally.through / production_s:,.0f}/s"),
        ("mishaps planned", f"{len(plan.orders):,}"),
        *((f"  {kind.value}", f"{count:,}") for kind, count in planned.items()),
        ("committed by their producer", f"{tally.outcomes[COMMITTED]:,}"),
        ("rolled back by their producer", f"{tally.outcomes[ROLLED_BACK]:,}"),
        ("left undecided by their producer", f"{tally.outcomes[LEFT_OPEN]:,}"),
        ("done by the killed producer, never reported", f"{tally.taken_over:,}"),
        ("resolved by feedback", f"{len(tally.resolved):,}"),
        ("  as committed", f"{tally.resolved_as(committed):,}"),
        ("  as rolled back", f"{tally.resolved_as(rolled_back):,}"),
        ("  checks answered UNKNOWN and asked again", f"{tally.answers[TransactionState.UNKNOWN.value]:,}"),
        ("  the last one, after the last order", f"{resolve_s:.1f} s"),
        ("fail-over: leader killed to next commit", "-" if fail_over is None else f"{fail_over:.2f} s"),
        ("orders in the database", f"{orders:,}"),
        ("messages that consumers can read", f"{messages:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def side_by_side(title: str, spark: QueryAnswer | None, duck: QueryAnswer) -> tuple[Table, bool]:
    """One question's answers as a table, and whether they are equal row for row."""
    columns, duck_rows = duck
    names = QUESTIONS[title][0]
    table = Table(title=title, title_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("")
    table.add_column("Spark: messages", justify="right", no_wrap=True)
    table.add_column("DuckDB: database", justify="right", no_wrap=True)
    table.add_column("")
    spark_rows = duck_rows if spark is None else spark[1]
    equal = spark is None or (spark[0] == columns and spark_rows == duck_rows)
    nothing = ["-"] * len(columns)
    for i in range(max(len(spark_rows), len(duck_rows))):
        ours = spark_rows[i] if i < len(spark_rows) else nothing
        theirs = duck_rows[i] if i < len(duck_rows) else nothing
        for j in range(names, len(columns)):
            head = " ".join((ours if theirs is nothing else theirs)[:names]) if j == names else ""
            same = ours[j] == theirs[j] and ours[:names] == theirs[:names]
            mark = "" if spark is None else "[green]=[/]" if same else "[red]differs[/]"
            left = "not asked" if spark is None else _shown(ours[j])
            table.add_row(head, columns[j], left, _shown(theirs[j]), mark, end_section=j == len(columns) - 1)
    return table, equal


def _shown(text: str) -> str:
    """A value for display: thousands separated, averages to six places. (Comparison uses the exact text.)"""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    exponent = number.as_tuple().exponent
    long = isinstance(exponent, int) and exponent < -6
    return f"{number:,.6f}" if long else f"{number:,}"


def show_problems(console: Console, problems: list[str]) -> None:
    """Print the violations that were found, one per line."""
    for problem in problems:
        console.print("problem:", style="bold red")
        console.print(problem, highlight=False, markup=False)
