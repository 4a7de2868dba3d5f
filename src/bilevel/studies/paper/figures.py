"""The paper's figures from finished runs: a column for each variant, a row for each quantity, bands over the trials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel.results.plots.entries import COLOURS, DPI, GREY, STYLE
from bilevel.results.plots.panels import Line, band_handle, draw_lines, in_columns
from bilevel.studies import statistics
from bilevel.studies.paper.experiments import (
    BATCHES,
    DRAWN,
    FASHION,
    LETTER,
    MORE_SINUSOIDS,
    PRINTED,
    SCRIPT_SINUSOIDS,
    SINUSOIDS,
    TASKS,
    VARIANTS,
)
from bilevel.studies.records import COLUMNS, Experiment, Record, RecordFiles, write_table
from bilevel.studies.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BLUE, RED, GREEN = COLOURS[:3]
Runs = Mapping[tuple[str, str], list[Record]]  # by experiment and method
Panel = Callable[["Axes", Runs], list[Any]]  # draws, and returns the handles of a legend


class Figure(NamedTuple):
    """A figure of the paper: a row of panels for each label of a vertical axis."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    rows: Mapping[str, Panel]


def methods_along_steps(axes: Axes, runs: Runs, experiment: Experiment, name: str) -> list[Any]:
    """min-avg against min-max."""
    methods = {"min-avg": BLUE, "min-max": RED}
    settled = {method: _settled(axes, runs[experiment.name, method]) for method in methods}
    return draw_lines(axes, [Line(method, settled[method], itemgetter(name), methods[method]) for method in methods])


def decay_along_steps(axes: Axes, runs: Runs, experiment: Experiment, name: str) -> list[Any]:
    """A squared norm over the steps, both logarithmic, and the slope -2/5."""
    settled = _settled(axes, runs[experiment.name, "min-max"])
    own = [known for run in settled if len((known := _where_known(run, name)).step) > 1]
    if not own:
        return _not_measured(axes)
    handles = draw_lines(axes, [Line("min-max", own, itemgetter(name), RED)])
    handles += _slope(axes, own, name)
    p = interval(np.array([statistics.decay(run, name) for run in own]))
    axes.text(0.03, 0.05, f"exponent {p.text(2)}", transform=axes.transAxes, fontsize=8)
    return handles


def numbers_of_tasks(axes: Axes, runs: Runs, name: str, read: Callable[[Record], Record]) -> list[Any]:
    """A squared norm over the steps for several numbers of tasks, on an axis of powers of two."""
    own = {n: [read(run) for run in runs[e.name, "min-max"]] for n, e in TASKS.items()}
    known = {f"n = {n}": [run for run in found if len(run.step)] for n, found in own.items()}
    if not all(known.values()):
        return _not_measured(axes)
    handles = _three_lines(axes, known, name)
    axes.set_yscale("log", base=2)
    return handles


def along_batches(axes: Axes, runs: Runs) -> list[Any]:
    """The worst test loss for several sizes of batches."""
    return _three_lines(axes, {f"batch {b}": runs[e.name, "min-max"] for b, e in BATCHES.items()}, "worst_test")


def _three_lines(axes: Axes, runs: Mapping[str, list[Record]], name: str) -> list[Any]:
    colours = zip(runs.items(), (BLUE, GREEN, RED), strict=True)
    return draw_lines(axes, [Line(label, own, itemgetter(name), colour) for (label, own), colour in colours])


def _not_measured(axes: Axes) -> list[Any]:
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
    return []


def _smooth(run: Record) -> Record:
    """Means of five neighbours, as single windows of steps are noisy."""
    wide, name = np.ones(5) / 5, "gradient_norm_squared"
    means = {key: np.convolve(run[key][1:], wide, mode="valid") for key in ("step", name)}
    return Record(means if len(run.step) > 5 else {key: run[key][1:] for key in means})


def _settled(axes: Axes, runs: list[Record]) -> list[Record]:
    """The runs that did not diverge; the panel says how many did."""
    found = [run for run in runs if not statistics.diverged(run)]
    if len(found) < len(runs):
        text = f"{len(runs) - len(found)} of {len(runs)} diverged, not drawn"
        axes.text(0.97, 0.95, text, transform=axes.transAxes, fontsize=8, ha="right", va="top")
    return found


def _where_known(run: Record, name: str) -> Record:
    """The rows after the start at which a column is known."""
    known = np.isfinite(run[name]) & (run.step > 0)
    return Record({k: v[known] for k, v in run.columns.items()})


def _slope(axes: Axes, own: list[Record], name: str) -> list[Any]:
    """The line K^-2/5 through the middle of the runs, and logarithmic axes."""
    from matplotlib.ticker import LogLocator, NullFormatter

    steps = max((run.step for run in own), key=len)
    middle = np.exp(np.mean([np.mean(np.log(run[name][run[name] > 0])) for run in own]))
    line = middle * (steps / np.sqrt(steps[0] * steps[-1])) ** -0.4
    handles = axes.plot(steps, line, color=GREY, linestyle=":", label="$K^{-2/5}$")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,) if name == "residual" and axis is axes.yaxis else (1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    return handles


def _methods(name: str, experiment: Experiment, columns: Mapping[str, str]) -> Figure:
    """min-avg and min-max by some columns."""
    rows = {
        label: functools.partial(methods_along_steps, experiment=experiment, name=of) for label, of in columns.items()
    }
    return Figure(name, experiment.title, (experiment,), rows)


_LOSSES = {"worst validation loss": "worst_validation", "worst test loss": "worst_test"}
# As the paper draws it.
_LOWEST = {"lowest worst loss, seen": "lowest_worst_test", "lowest worst loss, unseen": "lowest_unseen_worst_test"}
_BATCH, _BOUNDED = "squared norm, batches", "squared residual, all data"
_DECAYS = {
    _BATCH: functools.partial(decay_along_steps, experiment=FASHION, name="gradient_norm_squared"),
    _BOUNDED: functools.partial(decay_along_steps, experiment=FASHION, name="residual"),
}
_GROWTHS = {
    _BATCH: functools.partial(numbers_of_tasks, name="gradient_norm_squared", read=_smooth),
    _BOUNDED: functools.partial(numbers_of_tasks, name="residual", read=lambda run: _where_known(run, "residual")),
}
FIGURES = {
    figure.name: figure
    for figure in (
        _methods("1a", FASHION, _LOSSES),
        Figure("1b", FASHION.title, (FASHION,), _DECAYS),
        _methods("1c", SINUSOIDS[PRINTED], _LOWEST),
        _methods("1c-drawn", SINUSOIDS[DRAWN], _LOWEST),
        _methods("C.1", MORE_SINUSOIDS[PRINTED], _LOWEST),
        _methods("C.1-drawn", MORE_SINUSOIDS[DRAWN], _LOWEST),
        _methods("C.1-script", SCRIPT_SINUSOIDS, _LOWEST),
        _methods("2a", LETTER, _LOSSES),
        Figure("2b", "Letter, more tasks", tuple(TASKS.values()), _GROWTHS),
        Figure("2c", "Letter, larger batches", tuple(BATCHES.values()), {"worst test loss": along_batches}),
    )
}


def draw(figure: Figure, records: RecordFiles, shorter: Callable[[Experiment], Experiment]) -> list[Path]:
    """Saves a figure as PNG and PDF, and its numbers as CSV; returns the files."""
    panels: dict[str, dict[tuple[str, str], dict[int, Record]]] = {}
    for variant in VARIANTS:
        if all(variant in e.methods for e in figure.experiments):
            found = {
                (e.name, method): records.read(shorter(e), variant, method)
                for e in figure.experiments
                for method in e.methods[variant]
            }
            panels |= {variant: found} if all(found.values()) else {}
    if not panels:
        return []
    rows = [
        {"variant": variant, "experiment": experiment, "method": method, "seed": seed}
        | {name: float(record[name][i]) for name in COLUMNS}
        for variant, runs in panels.items()
        for (experiment, method), own in runs.items()
        for seed, record in own.items()
        for i in range(len(record["step"]))
    ]
    csv = records.folder / f"figure-{figure.name}.csv"
    write_table(csv, rows)
    return [csv, *_save(figure, panels, records.folder)]


def _save(figure: Figure, panels: Mapping[str, Mapping], folder: Path) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    with matplotlib.rc_context(STYLE):
        size = max(6.6, 3.1 * len(panels) + 0.6), 2.6 * len(figure.rows) + 1.0
        drawing = Drawing(figsize=size, dpi=DPI, layout="constrained")
        # Every row has one scale, so that the variants can be compared.
        grid = drawing.subplots(len(figure.rows), len(panels), sharex="col", sharey="row", squeeze=False)
        filled = zip(figure.rows.items(), grid, strict=True)
        handles, *_ = [_fill(label, panel, row, panels) for (label, panel), row in filled]
        for axes, (variant, runs) in zip(grid[0], panels.items(), strict=True):
            few, many = (pick(map(len, runs.values())) for pick in (min, max))
            axes.set_title(f"{VARIANTS[variant]}\n{many if few == many else f'{few} to {many}'} trials", fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        names = [*(str(handle.get_label()) for handle in handles), "10 % to 90 % of the trials"]
        drawing.legend(**in_columns([*handles, band_handle()], names, 90 * len(panels)), loc="outside lower center")
        drawing.suptitle(f"Figure {figure.name}. {figure.title}")
        files = [folder / f"figure-{figure.name}{suffix}" for suffix in (".png", ".pdf")]
        for file in files:
            drawing.savefig(file, metadata={"CreationDate": None} if file.suffix == ".pdf" else {})
    return files


def _fill(label: str, panel: Panel, row: Sequence[Axes], panels: Mapping[str, Mapping]) -> list[Any]:
    """Draws one row of panels; returns the handles of the legend."""
    handles: list[Any] = []
    for axes, runs in zip(row, panels.values(), strict=True):
        handles = panel(axes, {key: list(own.values()) for key, own in runs.items()}) or handles
    row[0].set_ylabel(label)
    return handles
