"""The figure of a comparison: worst losses against oracle calls and against time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bilevel.results.plots import check_path
from bilevel.results.plots.entries import COLOURS, DPI, MARKERS, PALE, STYLE
from bilevel.results.plots.panels import Line, draw_lines, over_steps, spread
from bilevel.studies.comparison.benchmarks import PAPER
from bilevel.studies.comparison.candidates import AUTOMATIC, Candidate, Rank
from bilevel.studies.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURED, BANDS = 6, 2  # how many solvers are in colour, and have bands: the best ones; others are pale
ALWAYS = ("Tandem", "MORBiT")  # always in colour
_COLOURS = [colour for colour in COLOURS if colour != "#000000"]
BLACK = "#000000"  # for the paper's own run, which has another budget


def _columns(candidate: Candidate) -> list[str]:
    """The panels: losses of validation rows, of selection and test rows, and the regrets that ranks go by."""
    others = ("worst_selection", "worst_test", candidate.ranked_by.replace("worst", "regret"))
    return ["worst_validation", *filter(candidate.has, others)]


def draw(
    title: str,
    candidates: Sequence[Candidate],
    target: float,
    optimum: float | None = None,
    path: str | os.PathLike | None = None,
    ranks: Mapping[tuple[str, str], Rank] | None = None,
) -> Figure:
    """Medians over the seeds; for the best two, bands from the 10 % to the 90 % quantile.

    The worst validation loss is at the top, with the target, and as a gap to the optimum where that is known; the worst
    losses on selection and test rows, if any, are below. `ranks`, by name and rates, are printed beside the names with
    their intervals. Solvers whose runs all diverged are left out, unless that holds for every solver.
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
    if any(np.isnan(c.profile.calls) for c in candidates):  # only those on bilevel problems are counted
        del units["oracle calls per task"]
    with matplotlib.rc_context(STYLE):
        shown = _columns(others[0])
        figure = Figure(figsize=(5.25 * len(units), 1.2 + 3.2 * len(shown)), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        handles = []
        for number, (column, (label, unit)) in enumerate(itertools.product(shown, units.items())):
            axes = figure.add_subplot(len(shown), len(units), number + 1)
            least = optimum if column == "worst_validation" else None
            # The best above the others.
            lines = [_line(c, unit, rank, column, least) for rank, c in enumerate(others)][::-1]
            handles = draw_lines(axes, lines + [_line(c, unit, None, column, least) for c in paper])
            handles = handles[: len(others)][::-1] + handles[len(others) :]
            axes.set(ylabel=_label(column, least) if number % len(units) == 0 else "", xscale="log")
            axes.set_xlabel(label if column == shown[-1] else "")
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            if column == "worst_validation":
                axes.axhline(target - (optimum or 0.0), color=PALE, linewidth=1, linestyle=":")
        _legend(figure, handles, others, len(paper), ranks or {})
        figure.suptitle(title)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, metadata={"CreationDate": None} if suffix == ".pdf" else {})
    return figure


def _label(column: str, optimum: float | None) -> str:
    name = column.replace("_", " ")
    if name.startswith("regret"):
        return f"worst {name}"
    return f"{name} loss" + ("" if optimum is None else f" - {optimum:.4g}, the optimum")


def _legend(
    figure: Figure,
    handles: list,
    others: Sequence[Candidate],
    papers: int,
    ranks: Mapping[tuple[str, str], Rank],
) -> None:
    """Names and ranks of the solvers in colour, the number of pale ones, and the paper's run last."""
    more = len(others) - COLOURED
    automatic = " (automatic)"
    names = [
        c.name + automatic * (c.rates == AUTOMATIC) + _place(ranks.get((c.name, c.rates))) for c in others[:COLOURED]
    ]
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
    if rank is None:
        return ""
    return f": {rank.place}" + ("" if np.isnan(rank.low) else f" [{rank.low:.0f}, {rank.high:.0f}]")


def _coloured_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates in order, except that those always in colour move up among the coloured ones."""
    others = max(0, COLOURED - sum(c.name in ALWAYS for c in candidates))
    coloured, pale = [], []
    for candidate in candidates:
        best = candidate.name not in ALWAYS and others > 0
        others -= best
        (coloured if best or candidate.name in ALWAYS else pale).append(candidate)
    return coloured + pale


def _line(candidate: Candidate, unit: str, rank: int | None, column: str, optimum: float | None) -> Line:
    """One solver by its place; None for the paper's run, which is dashed."""
    own = candidate.profile
    at = own.calls_at if unit == "calls" else lambda steps: steps * own.seconds
    # A logarithmic axis cannot show step 0.
    runs = [Record({"step": at(r["step"][1:]), "worst": _gap(r[column], optimum)[1:]}) for r in candidate.runs.values()]
    if rank is None or rank >= BANDS:
        steps, values = over_steps(runs, [run["worst"] for run in runs])
        runs = [Record({"step": steps, "worst": spread(values)[0]})]
    colour = BLACK if rank is None else _COLOURS[rank] if rank < COLOURED else PALE
    look = "test" if rank is None else "validation"
    return Line(candidate.name, runs, lambda run: run["worst"], colour, MARKERS[0], look)


def _gap(worst: np.ndarray, optimum: float | None) -> np.ndarray:
    """Losses, or their gaps to the optimum; cut at twice the first loss, as a diverging run would flatten all others.

    A loss may be below the optimum while y is not yet the minimiser: nothing is drawn there.
    """
    clipped = np.minimum(np.nan_to_num(worst, nan=np.inf), worst[0] + abs(worst[0]))  # a regret may be negative
    return clipped if optimum is None else np.where(clipped > optimum, clipped - optimum, np.nan)
