"""The figure of a comparison: worst losses against oracle calls and against time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel._studies.records import Record
from bilevel.comparison.benchmarks import PAPER
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.ranks import Rank
from bilevel.comparison.tuning import AUTOMATIC
from bilevel.results.plots.figure import check_path
from bilevel.results.plots.numbers import over_steps, spread
from bilevel.results.plots.panels import Line, draw_lines
from bilevel.results.plots.style import COLOURS, DPI, MARKERS, PALE, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURED, BANDS = 6, 2  # solvers in colour, and with bands, the best ones; the others are pale
ALWAYS = ("Tandem", "MORBiT")  # in colour wherever they come in
_COLOURS = [colour for colour in COLOURS if colour != "#000000"]
BLACK = "#000000"  # for the paper's own run, which has another budget


class Levels(NamedTuple):
    """Losses that mean something."""

    target: float
    optimum: float | None = None  # where it is known the gap to it is drawn


class Curve(NamedTuple):
    """What is drawn of every run: a column, and the levels that belong to it."""

    column: str
    target: float | None = None
    optimum: float | None = None

    @property
    def label(self) -> str:
        """What its axis is called."""
        gap = "" if self.optimum is None else f" - {self.optimum:.4g}, the optimum"
        name = self.column.replace("_", " ")
        return f"worst {name}" if name.startswith("regret") else f"{name} loss{gap}"


def _curves(candidate: Candidate, levels: Levels) -> list[Curve]:
    """Of validation rows, whose levels are known, of selection and test rows, and regrets on those ranked by."""
    first, by = Curve("worst_validation", levels.target, levels.optimum), candidate.ranked_by
    others = [Curve(name) for name in ("worst_selection", "worst_test") if candidate.has(name)]
    regret = by.replace("worst", "regret")
    return [first, *others, *[Curve(regret)] * candidate.has(regret)]


def draw(
    title: str,
    candidates: Sequence[Candidate],
    levels: Levels,
    path: str | os.PathLike | None = None,
    ranks: Mapping[tuple[str, str], Rank] | None = None,
) -> Figure:
    """Medians over the seeds; for the best two, bands from the 10 % to the 90 % quantile.

    Above the worst validation loss, and below it those on selection and test rows, where there are any. `ranks`, by
    name and rates, stand beside the names with their intervals. Solvers that diverged in all their runs are left out,
    unless all did.
    """
    if path is not None:
        check_path(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paper = [c for c in candidates if c.name == PAPER]
    rivals = [c for c in candidates if c.name != PAPER]
    others = _coloured_first([c for c in rivals if not c.diverged.all()] or rivals)
    units = {"oracle calls per task": "calls", "seconds of steps": "seconds"}
    if any(np.isnan(c.profile.calls) for c in candidates):  # they are counted on bilevel problems only
        del units["oracle calls per task"]
    with matplotlib.rc_context(STYLE):
        shown = _curves(others[0], levels)
        figure = Figure(figsize=(5.25 * len(units), 1.2 + 3.2 * len(shown)), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        handles = []
        for number, (curve, (label, unit)) in enumerate(itertools.product(shown, units.items())):
            axes = figure.add_subplot(len(shown), len(units), number + 1)
            # The best above the others.
            lines = [_line(c, unit, rank, curve) for rank, c in enumerate(others)][::-1]
            handles = draw_lines(axes, lines + [_line(c, unit, None, curve) for c in paper])
            handles = handles[: len(others)][::-1] + handles[len(others) :]
            axes.set(ylabel=curve.label if number % len(units) == 0 else "", xscale="log")
            axes.set_xlabel(label if curve is shown[-1] else "")
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            if curve.target is not None:
                axes.axhline(curve.target - (curve.optimum or 0.0), color=PALE, linewidth=1, linestyle=":")
        _legend(figure, handles, others, len(paper), ranks or {})
        figure.suptitle(title)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, metadata={"CreationDate": None} if suffix == ".pdf" else {})
    return figure


def _legend(
    figure: Figure,
    handles: list,
    others: Sequence[Candidate],
    papers: int,
    ranks: Mapping[tuple[str, str], Rank],
) -> None:
    """The solvers in colour by name and rank, the pale ones by their number, the paper's run last."""
    more = len(others) - COLOURED
    names = [c.name + _rates(c) + _place(ranks.get((c.name, c.rates))) for c in others[:COLOURED]]
    names += [f"{more} other{'s' * (more > 1)}"] * (more > 0)
    named = handles[: len(names)] + handles[len(others) :]
    by = others[0].ranked_by.replace("_", " ")
    said = f"rank by {by} loss [in 95 % of resamples of the seeds]; where intervals overlap, solvers tie"
    figure.legend(
        named,
        names + [PAPER] * papers,
        loc="outside lower center",
        ncols=4 if ranks else 5,
        frameon=False,
        title=said if ranks else None,
    )


def _place(rank: Rank | None) -> str:
    """The rank and its interval, for a legend."""
    if rank is None:
        return ""
    return f": {rank.place}" + ("" if np.isnan(rank.low) else f" [{rank.low:.0f}, {rank.high:.0f}]")


def _coloured_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The order of the candidates, but those that are always in colour come before others that would not be."""
    others = max(0, COLOURED - sum(c.name in ALWAYS for c in candidates))
    coloured, pale = [], []
    for candidate in candidates:
        best = candidate.name not in ALWAYS and others > 0
        others -= best
        (coloured if best or candidate.name in ALWAYS else pale).append(candidate)
    return coloured + pale


def _line(candidate: Candidate, unit: str, rank: int | None, curve: Curve) -> Line:
    """One solver by its place; None for the paper's run, which is dashed."""
    own = candidate.profile
    at = own.calls_at if unit == "calls" else lambda steps: steps * own.seconds
    # What is before the first step cannot be shown on a logarithmic axis.
    runs = [Record({"step": at(r["step"][1:]), "worst": _gap(r, curve)[1:]}) for r in candidate.runs.values()]
    if rank is None or rank >= BANDS:
        steps, values = over_steps(runs, [run["worst"] for run in runs])
        runs = [Record({"step": steps, "worst": spread(values)[0]})]
    colour = BLACK if rank is None else _COLOURS[rank] if rank < COLOURED else PALE
    look = "test" if rank is None else "validation"
    return Line(candidate.name, runs, lambda run: run["worst"], colour, MARKERS[0], look)


def _gap(record: Record, curve: Curve) -> np.ndarray:
    """Losses, or what they exceed the optimum by; up to twice the first, as a run that diverges flattens all others.

    They may lie below the optimum while y is not yet the minimiser: nothing is drawn there.
    """
    worst, optimum = record[curve.column], curve.optimum
    clipped = np.minimum(np.nan_to_num(worst, nan=np.inf), worst[0] + abs(worst[0]))  # a regret may be negative
    return clipped if optimum is None else np.where(clipped > optimum, clipped - optimum, np.nan)


def _rates(candidate: Candidate) -> str:
    return " (automatic)" if candidate.rates == AUTOMATIC else ""
