"""The picture of a comparison: worst loss against oracle calls and against time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel._studies.records import Record
from bilevel.comparison.compare import PAPER, Comparison
from bilevel.comparison.runner import Entry, diverged
from bilevel.results.plots.figure import check_path
from bilevel.results.plots.numbers import over_steps, spread
from bilevel.results.plots.panels import Line, draw_lines
from bilevel.results.plots.style import COLOURS, DPI, MARKERS, PALE, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURED, BANDS = 6, 2  # solvers in colour, the best ones, and with bands; the others are pale
_COLOURS = [colour for colour in COLOURS if colour != "#000000"]
BLACK = "#000000"  # for the paper's own run, which has another budget


def draw(comparison: Comparison, path: Any = None) -> Figure:
    """Medians over the seeds; for the best two, bands from the 10 % to the 90 % quantile.

    Solvers that diverged in all their runs are left out.
    """
    if path is not None:
        check_path(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paper = [entry for entry in comparison.entries if entry.entrant.name == PAPER]
    others = [entry for entry in comparison.entries if entry.entrant.name != PAPER and not diverged(entry).all()]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 4.4), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        for number, (label, unit) in enumerate((("oracle calls per task", "calls"), ("seconds of steps", "seconds"))):
            axes = figure.add_subplot(1, 2, number + 1)
            lines = [_line(entry, unit, rank) for rank, entry in enumerate(others)][::-1]  # the best above the others
            handles = draw_lines(axes, lines + [_line(entry, unit, None) for entry in paper])
            handles = handles[: len(others)][::-1], handles[len(others) :]
            axes.set(xlabel=label, ylabel="worst validation loss" if number == 0 else "", xscale="log")
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            axes.axhline(comparison.target, color=PALE, linewidth=1, linestyle=":")
        named = handles[0][: COLOURED + 1] + handles[1]
        names = [entry.entrant.name + _rates(entry) for entry in others]
        more = len(names) - COLOURED
        names[COLOURED:] = [f"{more} other{'s' * (more > 1)}"] * (more > 0)
        figure.legend(named, names + [PAPER] * len(paper), loc="outside lower center", ncols=5, frameon=False)
        figure.suptitle(comparison.title)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, metadata={"CreationDate": None} if suffix == ".pdf" else {})
    return figure


def _line(entry: Entry, unit: str, rank: int | None) -> Line:
    """One solver by its rank; None for the paper's run."""
    per_step = getattr(entry.entrant, unit)
    # What is before the first step cannot be shown on a logarithmic axis.
    runs = [Record({"step": r["step"][1:] * per_step, "worst": _clipped(r)[1:]}) for r in entry.runs.values()]
    if rank is None or rank >= BANDS:
        steps, values = over_steps(runs, [run["worst"] for run in runs])
        runs = [Record({"step": steps, "worst": spread(values)[0]})]
    colour = BLACK if rank is None else _COLOURS[rank] if rank < COLOURED else PALE
    return Line(entry.entrant.name, runs, lambda run: run["worst"], colour, MARKERS[0], test=rank is None)


def _clipped(record: Record) -> np.ndarray:
    """Losses up to twice the first: those of a run that flies off would flatten all the others."""
    worst = record["worst_validation"]
    return np.minimum(np.nan_to_num(worst, nan=np.inf), 2 * worst[0])


def _rates(entry: Entry) -> str:
    return " (automatic)" if entry.rates == "automatic" else ""
