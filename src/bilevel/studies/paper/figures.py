"""The paper's figures from finished runs: a column for each variant, a row for each quantity, bands over the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class PanelRow(NamedTuple):
    """A quantity of a figure."""

    label: str  # of the vertical axis
    draw: Callable[[Any, Runs], list[Any]]  # fills one panel and returns the handles of the legend


class Figure(NamedTuple):
    """A figure of the paper."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    rows: tuple[PanelRow, ...]


def column(name: str) -> Callable[[Record], np.ndarray]:
    """A column of a run."""
    return lambda run: run[name]


def methods_along_steps(experiment: Experiment, name: str) -> Panel:
    """min-avg against min-max."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        methods = {"min-avg": BLUE, "min-max": RED}
        own = {method: _settled(axes, runs[experiment.name, method]) for method in methods}
        return draw_lines(axes, [Line(method, own[method], column(name), methods[method]) for method in methods])

    return draw


def decay_along_steps(experiment: Experiment, name: str) -> Panel:
    """A squared norm over the steps, both logarithmic, and the slope -2/5."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        settled = _settled(axes, runs[experiment.name, "min-max"])
        own = [known for run in settled if len((known := _where_known(run, name)).step) > 1]
        if not own:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
            return []
        handles = draw_lines(axes, [Line("min-max", own, column(name), RED)])
        handles += _slope(axes, own, name)
        p = interval(np.array([statistics.decay(run, name) for run in own]))
        axes.text(0.03, 0.05, f"exponent {p.text(2)}", transform=axes.transAxes, fontsize=8)
        return handles

    return draw


def along_steps(experiments: Mapping[int, Experiment]) -> Panel:
    """The squared norm of batches over the steps for several numbers of tasks, on an axis of powers of two."""
    return _tasks(experiments, "gradient_norm_squared", _smooth)


def growth(experiments: Mapping[int, Experiment]) -> Panel:
    """The quantity that Theorem 1 bounds, for several numbers of tasks."""
    return _tasks(experiments, "residual", lambda run: _where_known(run, "residual"))


def along_batches(experiments: Mapping[int, Experiment]) -> Panel:
    """The worst test loss for several sizes of batches."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        lines = [
            Line(f"batch {b}", runs[e.name, "min-max"], column("worst_test"), colour)
            for (b, e), colour in zip(experiments.items(), (BLUE, GREEN, RED), strict=True)
        ]
        return draw_lines(axes, lines)

    return draw


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


def _settled(axes: Axes, runs: list[Record]) -> list[Record]:
    """The runs that did not diverge; the panel says how many did."""
    found = [run for run in runs if not statistics.diverged(run, int(run["step"][-1]))]
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


def _losses(name: str, experiment: Experiment) -> Figure:
    """min-avg and min-max by validation and by test rows."""
    rows = [
        PanelRow(f"worst {kind} loss", methods_along_steps(experiment, f"worst_{kind}"))
        for kind in ("validation", "test")
    ]
    return Figure(name, experiment.title, (experiment,), tuple(rows))


def _sinusoids(name: str, experiment: Experiment) -> Figure:
    """min-avg and min-max on seen and on unseen tasks: the lowest worst loss so far, as the paper draws it."""
    columns = {"seen": "lowest_worst_test", "unseen": "lowest_unseen_worst_test"}
    rows = [
        PanelRow(f"lowest worst loss, {kind}", methods_along_steps(experiment, column))
        for kind, column in columns.items()
    ]
    return Figure(name, experiment.title, (experiment,), tuple(rows))


_BATCH, _BOUNDED = "squared norm, batches", "squared residual, all data"
FIGURES = {
    figure.name: figure
    for figure in (
        _losses("1a", FASHION),
        Figure(
            "1b",
            FASHION.title,
            (FASHION,),
            (
                PanelRow(_BATCH, decay_along_steps(FASHION, "gradient_norm_squared")),
                PanelRow(_BOUNDED, decay_along_steps(FASHION, "residual")),
            ),
        ),
        _sinusoids("1c", SINUSOIDS[PRINTED]),
        _sinusoids("1c-drawn", SINUSOIDS[DRAWN]),
        _sinusoids("C.1", MORE_SINUSOIDS[PRINTED]),
        _sinusoids("C.1-drawn", MORE_SINUSOIDS[DRAWN]),
        _sinusoids("C.1-script", SCRIPT_SINUSOIDS),
        _losses("2a", LETTER),
        Figure(
            "2b",
            "Letter, more tasks",
            tuple(TASKS.values()),
            (PanelRow(_BATCH, along_steps(TASKS)), PanelRow(_BOUNDED, growth(TASKS))),
        ),
        Figure(
            "2c",
            "Letter, larger batches",
            tuple(BATCHES.values()),
            (PanelRow("worst test loss", along_batches(BATCHES)),),
        ),
    )
}


def draw(figure: Figure, records: RecordFiles, shorter: Callable[[Experiment], Experiment]) -> list[Path]:
    """Saves a figure as PNG and PDF, and its numbers as CSV; returns the files."""
    panels = {}
    for variant in VARIANTS:
        if not all(variant in e.methods for e in figure.experiments):
            continue
        runs = {
            (e.name, m): records.read(shorter(e), variant, m) for e in figure.experiments for m in e.methods[variant]
        }
        if all(runs.values()):
            panels[variant] = runs
    if not panels:
        return []
    csv = records.folder / f"figure-{figure.name}.csv"
    write_table(csv, _rows(panels))
    return [csv, *_save(figure, panels, records.folder)]


def _rows(panels: Mapping[str, Mapping]) -> list[dict[str, Any]]:
    return [
        {"variant": variant, "experiment": experiment, "method": method, "seed": seed}
        | {name: float(record[name][i]) for name in COLUMNS}
        for variant, runs in panels.items()
        for (experiment, method), own in runs.items()
        for seed, record in own.items()
        for i in range(len(record["step"]))
    ]


def _save(figure: Figure, panels: Mapping[str, Mapping], folder: Path) -> list[Path]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    with matplotlib.rc_context(STYLE):
        size = max(6.6, 3.1 * len(panels) + 0.6), 2.6 * len(figure.rows) + 1.0
        drawing = Drawing(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(drawing)
        # Every row has one scale, so that the variants can be compared.
        grid = drawing.subplots(len(figure.rows), len(panels), sharex="col", sharey="row", squeeze=False)
        handles, *_ = [_fill(row, own, panels) for row, own in zip(figure.rows, grid, strict=True)]
        for axes, variant in zip(grid[0], panels, strict=True):
            axes.set_title(f"{VARIANTS[variant]}\n{_trials(panels[variant])} trials", fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        names = [*(str(handle.get_label()) for handle in handles), "10 % to 90 % of the trials"]
        drawing.legend(**in_columns([*handles, band_handle()], names, 90 * len(panels)), loc="outside lower center")
        drawing.suptitle(f"Figure {figure.name}. {figure.title}")
        files = [folder / f"figure-{figure.name}{suffix}" for suffix in (".png", ".pdf")]
        for file in files:
            drawing.savefig(file, metadata={"CreationDate": None} if file.suffix == ".pdf" else {})
    return files


def _fill(row: PanelRow, grid: Sequence[Axes], panels: Mapping[str, Mapping]) -> list[Any]:
    """One row of panels; the handles of the legend."""
    handles: list[Any] = []
    for axes, runs in zip(grid, panels.values(), strict=True):
        handles = row.draw(axes, {key: list(own.values()) for key, own in runs.items()}) or handles
    grid[0].set_ylabel(row.label)
    return handles


def _trials(runs: Mapping) -> str:
    counts = {len(own) for own in runs.values()}
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
