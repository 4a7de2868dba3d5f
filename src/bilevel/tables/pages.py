"""What the page of a fitted table has before all else: losses on rows held out."""

from __future__ import annotations

from bilevel.report.tables import Cell, Section, Table
from bilevel.tables import text
from bilevel.tables.folder import Kept
from bilevel.tables.judging import MODELS

TASKS = 100  # rows of the table


def title(kept: Kept) -> str:
    """Of the page."""
    return f"{kept.target} by {kept.task}"


def section(kept: Kept) -> Section:
    """The table by task, the verdict, and what was kept."""
    score = text.score(kept)
    scored = [line for line in kept.lines if line.is_scored]
    head = [
        "task",
        "rows",
        *(f"{model}: loss" for model in MODELS),
        *(f"{model}: {score}" for model in MODELS),
        "weight",
    ]
    rows: list[list[Cell]] = [
        [line.task, line.rows, *(line.losses[m] for m in MODELS), *(line.scores[m] for m in MODELS), line.weight]
        for line in scored[:TASKS]
    ]
    caption = f"The worst {TASKS} of {len(scored):,} tasks" if len(scored) > TASKS else "Tasks, the worst first"
    return Section(
        "On rows held out", [kept.verdict.sentence(), *text.remarks(kept), text.saved(kept)], Table(caption, head, rows)
    )
