"""The table by task, as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

from bilevel.report.subject import shortened
from bilevel.tables.folder import Kept
from bilevel.tables.judging import MODELS, Line
from bilevel.tables.outcomes import CLASSIFICATION

TASKS = 25  # that are shown, the worst
NAME = 24  # letters of a task's name
WIDEST = 100  # lines of words
Numbers = Mapping[str, float]
Cells = list[str]


def table(kept: Kept, width: int) -> str:
    """The table, the verdict, and what was kept.

    Args:
        kept: what the folder says.
        width: of the screen, in letters: losses and scores are beside each other where there is room.
    """
    measure = score(kept)
    scored = [line for line in kept.lines if line.is_scored]
    shown = scored[:TASKS]
    names = [*(shortened(line.task, NAME) for line in shown), "worst", "mean"]
    begin = [["task", *names], ["rows", *(f"{line.rows:,}" for line in shown), "", ""]]
    weights = [["weight", *(f"{line.weight:.3f}" for line in shown), "", ""]]
    losses = [_column(model, shown, scored, lambda line: line.losses, max) for model in MODELS]
    scores = [_column(model, shown, scored, lambda line: line.scores, min) for model in MODELS]
    beside = _laid([*begin, *losses, *scores, *weights], {2: "loss", 2 + len(MODELS): measure})
    if max(map(len, beside)) > width:
        beside = [*_laid([*begin, *losses, *weights], {2: "loss"}), "", *_laid([*begin, *scores], {2: measure})]
    more = len(scored) - TASKS
    beyond = [f"{more:,} more tasks are in {kept.path / 'tasks.csv'}."] if more > 0 else []
    words = [*beyond, *remarks(kept), "", kept.verdict.sentence(), kept.verdict.against(), saved(kept)]
    return "\n".join([*beside, "", *(textwrap.fill(line, min(width, WIDEST)) for line in words)])


def _column(
    model: str, shown: Sequence[Line], scored: Sequence[Line], of: Callable[[Line], Numbers], worst: Callable
) -> Cells:
    known = [value for line in scored if not math.isnan(value := of(line)[model])]
    both = [worst(known), sum(known) / len(known)] if known else [math.nan, math.nan]
    return [model, *(_short(value) for value in [*(of(line)[model] for line in shown), *both])]


def _laid(columns: list[Cells], headings: Mapping[int, str]) -> list[str]:
    """Aligned: names to the left, numbers to the right; a rule above the last two lines, headings above groups."""
    widths = [max(map(len, column)) for column in columns]
    gaps = ["   " if place in headings or columns[place][0] in ("weight",) else "  " for place in range(len(columns))]
    top, rows = "", []
    for place, width in enumerate(widths):
        start = len(top) + len(gaps[place])
        top = top.ljust(start) + headings.get(place, "")
        top = top.ljust(start + width)
    for cells in zip(*columns, strict=True):
        aligned = [
            cell.ljust(w) if not k else cell.rjust(w) for k, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        rows.append("".join(gap + cell for gap, cell in zip(gaps, aligned, strict=True)).rstrip())
    rule = " " * len(gaps[0]) + "-" * (max(map(len, rows)) - len(gaps[0]))
    return [top.rstrip(), rows[0], rule, *rows[1:-2], rule, *rows[-2:]]


def score(kept: Kept) -> str:
    """What the scores are."""
    return "accuracy" if kept.kind == CLASSIFICATION else "R2"


def remarks(kept: Kept) -> list[str]:
    """What is to be said of the table."""
    small = sum(not line.is_scored for line in kept.lines)
    smallest = kept.document.get("smallest")
    found = [f"{small:,} tasks with fewer than {smallest} rows are fitted, and not scored."] if small else []
    unit = "cross-entropy" if kept.kind == CLASSIFICATION else "squared error in units of the target's variance"
    rows, held = (sum(getattr(line, name) for line in kept.lines) for name in ("rows", "held_out"))
    where = f"on rows held out from everything ({held:,} of {rows:,})"
    return [*found, f"Loss ({unit}) and {score(kept)} {where}; the worst task first."]


def saved(kept: Kept) -> str:
    """What the model that was kept has seen."""
    if kept.refitted:
        return (
            "The model that is kept shares what was judged here, with the heads of the tasks fitted again to all rows."
        )
    return "The model that is kept is the one that was judged: it has not seen the rows held out."


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"
