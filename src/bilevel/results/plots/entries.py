"""Entries of a plot and their style: runs and labels, short names; colours, markers, letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bilevel.results.result import Result

# Okabe and Ito, "Color universal design", 2008: distinguishable for all readers. Yellow is last, being faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY, PALE = "#767676", "#C4C4C4"
MARKERS = ("o", "s", "^", "D")  # used in turn when the colours repeat

TITLE_SIZE, TITLE_LENGTH = 11, 96
STYLE: dict[Any, Any] = {
    **{"font.family": "DejaVu Sans", "font.size": 9, "axes.labelsize": 9.5, "figure.titlesize": TITLE_SIZE},
    **{"legend.fontsize": 8.5, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "text.usetex": False},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.linewidth": 0.8},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#E8E8E8", "grid.linewidth": 0.7},
    **{"xtick.color": "#404040", "ytick.color": "#404040", "lines.linewidth": 1.6, "lines.markersize": 4.5},
    **{"figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white"},
    **{"savefig.bbox": "standard", "svg.hashsalt": "bilevel"},
    **{"pdf.fonttype": 42, "svg.fonttype": "none"},  # text stays text
}
DPI = 200
Look: TypeAlias = dict[str, Any]  # options of matplotlib's
MARKED_POINTS = 20  # a line with this many points or fewer shows them
LINES = {"validation": "-", "selection": ":", "test": "--"}


Plottable = Result | Sequence[Result] | Sequence[Sequence[Result]] | Mapping[str, Result | Sequence[Result]]


class Entry(NamedTuple):
    """One thing to draw: runs that belong together, under one label."""

    label: str
    runs: list[Result]
    number: int

    @property
    def colour(self) -> str:
        """Its colour."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def marker(self) -> str:
        """Its marker."""
        return MARKERS[self.number // len(COLOURS) % len(MARKERS)]

    def has(self, rows: str) -> bool:
        """Whether all runs have losses on these rows, "selection" or "test"."""
        return all(getattr(run.last, f"{rows}_losses") is not None and rows in run.history for run in self.runs)

    @property
    def held_out(self) -> list[str]:
        """The kinds of rows besides validation rows on which all runs have losses."""
        return [rows for rows in ("selection", "test") if self.has(rows)]

    @property
    def tasks(self) -> list[tuple[str, ...]]:
        """The names of the tasks of each run."""
        return [tuple(map(str, run.last.y.names)) for run in self.runs]


def read_entries(results: Plottable, labels: str | Sequence[str] | None) -> list[Entry]:
    """The runs to draw, with their labels."""
    if isinstance(results, (Mapping, list, tuple)):
        items = results.items() if isinstance(results, Mapping) else enumerate(results)
        runs = [_runs(item, f"results[{key!r}]") for key, item in items]
    else:
        runs = [_runs(results, "results")]
    if not runs:
        raise ValueError(f"plot(results={results!r}): it needs at least one result.")
    if labels is None:
        labels = list(results) if isinstance(results, Mapping) else _own_labels(runs)
    labels = [labels] if isinstance(labels, str) else list(labels)
    if len(labels) != len(runs):
        raise ValueError(f"plot(labels={labels!r}): it needs {len(runs)}, one for each result.")
    return [Entry(str(label), own, i) for i, (label, own) in enumerate(zip(labels, runs, strict=True))]


def _runs(item: object, place: str) -> list[Result]:
    if isinstance(item, Result):
        return [item]
    if isinstance(item, str) or not isinstance(item, Sequence) or not all(isinstance(run, Result) for run in item):
        kind = type(item).__name__
        raise TypeError(f"plot({place}) got {kind}: it needs a Result or Results, or a list or dict of them.")
    if not len(item):
        raise ValueError(f"plot({place}={item!r}): it needs at least one run.")
    return list(item)


def _own_labels(runs: Sequence[Sequence[Result]]) -> list[str]:
    """The solvers' names, with their weightings or else with numbers if two are the same."""
    solvers = [own[0].solver for own in runs]
    names = [s.partition("(")[0] if isinstance(s, str) else type(s).__name__ for s in solvers]
    if len(set(names)) == len(names):
        return names
    longer = [f"{name}, {type(getattr(s, 'weighting', None)).__name__}" for name, s in zip(names, solvers, strict=True)]
    if len(set(longer)) == len(longer):
        return longer
    return [f"{name} ({i})" for i, name in enumerate(names, 1)]


def plain_text(words: str, length: int) -> str:
    """One line of plain text, cut in the middle if it is long; matplotlib shows its dollars and underscores as such."""
    words = " ".join(str(words).split())
    if len(words) > length:
        words = words[: length // 2].rstrip() + "…" + words[len(words) - (length - length // 2 - 1) :].lstrip()
    return (" " if words.startswith("_") else "") + words.replace("$", r"\$")


def line_look(colour: str, marker: str, rows: str, points: int) -> Look:
    """Lines of selection rows are dotted, of test rows dashed, both hollow; the points of short lines are marked."""
    hollow = rows != "validation"
    look = {"color": colour, "linestyle": LINES[rows], "markerfacecolor": "white" if hollow else colour}
    return look | {"marker": marker if points <= MARKED_POINTS else None}
