"""The picture of a comparison: worst loss against oracle calls and against time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel.comparison.compare import Comparison
from bilevel.comparison.court import Entry
from bilevel.experiments.records import Record
from bilevel.plotting.figure import check_path
from bilevel.plotting.numbers import over_steps, spread
from bilevel.plotting.panels import Line, draw_lines
from bilevel.plotting.style import COLOURS, DPI, MARKERS, PALE, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURED = 8  # solvers in colour, the best ones; the others are pale


def draw(comparison: Comparison, path: Any = None) -> Figure:
    """Medians over the seeds, and bands from the 10 % to the 90 % quantile."""
    if path is not None:
        check_path(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 4.4), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        for number, (label, unit) in enumerate((("oracle calls per task", "calls"), ("seconds of steps", "seconds"))):
            axes = figure.add_subplot(1, 2, number + 1)
            shown = list(enumerate(comparison.entries))[::-1]  # the best above the others
            handles = draw_lines(axes, [_line(e, unit, rank) for rank, e in shown])[::-1]
            axes.set(xlabel=label, ylabel="worst validation loss" if number == 0 else "")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.axhline(comparison.target, color=PALE, linewidth=1, linestyle=":")
        named = handles[: COLOURED + 1] if len(handles) > COLOURED else handles
        names = [entry.entrant.name + _rates(entry) for entry in comparison.entries]
        names[COLOURED:] = [f"{len(names) - COLOURED} others"] * (len(names) > COLOURED)
        figure.legend(named, names, loc="outside lower center", ncols=5, frameon=False)
        figure.suptitle(comparison.title)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, metadata={"CreationDate": None} if suffix == ".pdf" else {})
    return figure


def _line(entry: Entry, unit: str, rank: int) -> Line:
    per_step = getattr(entry.entrant, unit)
    runs = [Record({"step": r["step"] * per_step, "worst": _clipped(r)}) for r in entry.runs.values()]
    colour = COLOURS[rank] if rank < COLOURED else PALE
    if rank >= COLOURED:  # a pale line is enough of them, without its band
        steps, values = over_steps(runs, [run["worst"] for run in runs])
        runs = [Record({"step": steps, "worst": spread(values)[0]})]
    return Line(entry.entrant.name, runs, lambda run: run["worst"], colour, MARKERS[0])


def _clipped(record: Record) -> np.ndarray:
    """Losses up to ten times the first: those of a run that flies off would flatten all the others."""
    worst = record["worst_validation"]
    return np.minimum(np.nan_to_num(worst, nan=np.inf), 10 * worst[0])


def _rates(entry: Entry) -> str:
    return " (automatic)" if entry.rates == "automatic" else ""
