"""The table by task as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bilevel.report.subject import shortened
from bilevel.tables.judging import AVERAGE, MODELS, Line

TASKS = 40  # the worst, that are drawn
# Colours that people with any colour vision tell apart (Okabe, Ito), and marks that tell them apart without colour.
MARKS = dict(zip(MODELS, (("#0072B2", "s"), ("#E69F00", "^"), ("#CC79A7", "D"), ("#000000", "o")), strict=True))


def losses(lines: Sequence[Line], kind: str, path: Path) -> None:
    """Draws the losses on rows held out of the worst tasks, by model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [line for line in lines if line.is_scored][:TASKS]
    figure = Figure(figsize=(7, 1.6 + 0.22 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(shown))
    for model, (colour, mark) in MARKS.items():
        values = [line.losses[model] for line in shown]
        # min-avg is hollow and larger: the two of ours are often in one place.
        look = {"s": 70, "facecolors": "none"} if model == AVERAGE else {"s": 22, "facecolors": colour}
        axes.scatter(values, places, marker=mark, label=model, edgecolors=colour, linewidths=1.2, **look)
    axes.set_yticks(places, [shortened(line.task, 28) for line in shown])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    unit = "cross-entropy" if kind == "classification" else "squared error in units of the target's variance"
    axes.set_xlabel(f"loss on rows held out ({unit})")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(MODELS), frameon=False)
    figure.savefig(path, dpi=120)
