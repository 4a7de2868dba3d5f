"""What the page of a fitted table has before all else: losses on rows held out."""

from __future__ import annotations

from bilevel.report.tables import Cell, Section, Table
from bilevel.tables import text
from bilevel.tables.folder import Kept
from bilevel.tables.judging import AVERAGE, MODELS, ROBUST

TASKS = 100  # rows of the table
ABOUT = (
    "What follows is of the runs in which what tasks share was learnt. Each task is there in parts that change places, "
    "one training while another validates. The model is not the last point of a run but the one at which the mean loss "
    "on selection rows was lowest, with heads fitted to the end, so that losses and findings here are not the model's."
)


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
        "On rows held out",
        kept.verdict.sentence(),
        _facts(kept),
        [*text.remarks(kept), text.saved(kept)],
        Table(caption, head, rows),
        ABOUT,
        (ROBUST, AVERAGE),
    )


def _facts(kept: Kept) -> list[tuple[str, str]]:
    """The numbers at the top."""
    measures = {"worst loss": kept.verdict.worst, "mean loss": kept.verdict.mean}
    found = [(f"{name}, {model}", f"{of[model]:.3f}") for model in (ROBUST, AVERAGE) for name, of in measures.items()]
    return [*found, ("tasks", f"{len(kept.lines):,}")]
