"""What one panel of a figure shows, for one variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel._studies import measures
from bilevel._studies.experiment import Experiment
from bilevel._studies.records import Record
from bilevel._studies.statistics import interval
from bilevel.results.plots.panels import Line, draw_lines
from bilevel.results.plots.style import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREEN = COLOURS[:3]
Runs = Mapping[tuple[str, str], list[Record]]  # by experiment and method
Panel = Callable[["Axes", Runs], list[Any]]  # draws, and returns the handles of a legend


def column(name: str) -> Callable[[Record], np.ndarray]:
    """A column of a run."""
    return lambda run: run[name]


def compare(experiment: Experiment, name: str) -> Panel:
    """min-avg against min-max."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        methods = {"min-avg": BLUE, "min-max": RED}
        own = {method: _settled(axes, runs[experiment.name, method]) for method in methods}
        return draw_lines(axes, [Line(method, own[method], column(name), methods[method]) for method in methods])

    return draw


def decay(experiment: Experiment, name: str) -> Panel:
    """A squared norm over the steps, both logarithmic, and the slope -2/5."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        settled = _settled(axes, runs[experiment.name, "min-max"])
        own = [known for run in settled if len((known := _where_known(run, name)).step) > 1]
        if not own:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
            return []
        handles = draw_lines(axes, [Line("min-max", own, column(name), RED)])
        handles += _slope(axes, own, name)
        p = interval(np.array([measures.decay(run, name) for run in own]))
        axes.text(0.03, 0.05, f"exponent {p.text(2)}", transform=axes.transAxes, fontsize=8)
        return handles

    return draw


def _settled(axes: Axes, runs: list[Record]) -> list[Record]:
    """The runs that did not diverge; the panel says how many did."""
    found = [run for run in runs if not measures.diverged(run, int(run["step"][-1]))]
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


def along_steps(experiments: Mapping[int, Experiment]) -> Panel:
    """The squared norm of batches over the steps for several numbers of tasks, on an axis of powers of two."""
    return _tasks(experiments, "gradient_norm_squared", _smooth)


def growth(experiments: Mapping[int, Experiment]) -> Panel:
    """What Theorem 1 bounds, for several numbers of tasks."""
    return _tasks(experiments, "residual", lambda run: _where_known(run, "residual"))


def _tasks(experiments: Mapping[int, Experiment], name: str, read: Callable[[Record], Record]) -> Panel:
    def draw(axes: Axes, runs: Runs) -> list[Any]:
        own = {n: [read(run) for run in runs[e.name, "min-max"]] for n, e in experiments.items()}
        known = {n: [run for run in found if len(run.step)] for n, found in own.items()}
        if not all(known.values()):
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
            return []
        colours = zip(known.items(), (BLUE, GREEN, RED), strict=True)
        handles = draw_lines(axes, [Line(f"n = {n}", found, column(name), colour) for (n, found), colour in colours])
        axes.set_yscale("log", base=2)
        return handles

    return draw


def _smooth(run: Record) -> Record:
    """Means of five neighbours, as single windows of steps are noisy."""
    wide, name = np.ones(5) / 5, "gradient_norm_squared"
    means = {key: np.convolve(run[key][1:], wide, mode="valid") for key in ("step", name)}
    return Record(means if len(run.step) > 5 else {key: run[key][1:] for key in means})


def along_batches(experiments: Mapping[int, Experiment]) -> Panel:
    """The worst test loss for several sizes of batches."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        lines = [
            Line(f"batch {b}", runs[e.name, "min-max"], column("worst_test"), colour)
            for (b, e), colour in zip(experiments.items(), (BLUE, GREEN, RED), strict=True)
        ]
        return draw_lines(axes, lines)

    return draw
