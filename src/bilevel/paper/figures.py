"""The paper's figures from finished runs: a panel for each variant, medians and bands over the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.experiment import VARIANTS, Experiment
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.records import COLUMNS, Record, write_table
from bilevel._studies.statistics import interval
from bilevel.paper.fashion import FASHION
from bilevel.paper.letter import BATCHES, LETTER, TASKS
from bilevel.paper.sinusoids import MORE_SINUSOIDS, SINUSOIDS
from bilevel.results.plots.legends import band_handle, in_columns
from bilevel.results.plots.panels import Line, draw_lines
from bilevel.results.plots.style import COLOURS, DPI, GREY, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREEN = COLOURS[:3]
Runs = Mapping[tuple[str, str], list[Record]]  # by experiment and method


class Figure(NamedTuple):
    """A figure of the paper."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    label: str  # of the vertical axis
    draw: Callable[[Any, Runs], list[Any]]  # fills one panel and returns the handles of the legend


def column(name: str) -> Callable[[Record], np.ndarray]:
    """A column of a run."""
    return lambda run: run[name]


def running_lowest(name: str) -> Callable[[Record], np.ndarray]:
    """The lowest value up to each step, as the paper draws its sinusoids."""
    return lambda run: np.fmin.accumulate(run[name])


def compare(experiment: Experiment, solid: tuple[str, str], dashed: tuple[str, str], of: Callable = column) -> Callable:
    """min-avg against min-max: two (name, column) each."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        lines = []
        for method, colour in (("min-avg", BLUE), ("min-max", RED)):
            own = runs[experiment.name, method]
            lines += [Line(f"{method}, {solid[0]}", own, of(solid[1]), colour)]
            lines += [Line(f"{method}, {dashed[0]}", own, of(dashed[1]), colour, test=True)]
        return draw_lines(axes, lines)

    return draw


def gradient_decay(axes: Axes, runs: Runs) -> list[Any]:
    """|gradient|^2 over the steps, both logarithmic, and the slope -2/5."""
    from matplotlib.ticker import LogLocator, NullFormatter

    own = [Record({k: v[1:] for k, v in run.columns.items()}) for run in runs[FASHION.name, "min-max"]]
    handles = draw_lines(axes, [Line("min-max", own, column("gradient_norm_squared"), RED)])
    steps = own[0]["step"]
    middle = np.nanmedian([run["gradient_norm_squared"] for run in own], axis=0)
    p = interval(np.array([measures.decay(run) for run in own]))
    centre = np.sqrt(steps[0] * steps[-1]), np.exp(np.nanmean(np.log(middle)))
    handles += axes.plot(steps, centre[1] * (steps / centre[0]) ** -0.4, color=GREY, linestyle=":", label="$K^{-2/5}$")
    axes.set_xlabel(f"step; fitted exponent {p.text(2)}")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    return handles


def gradients(experiments: Mapping[int, Experiment]) -> Callable:
    """|gradient|^2 over the steps for several numbers of tasks, on an axis of powers of two."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        lines = [
            Line(f"n = {n}", [_smooth(run) for run in runs[e.name, "min-max"]], column("smooth"), colour)
            for (n, e), colour in zip(experiments.items(), (BLUE, GREEN, RED), strict=True)
        ]
        handles = draw_lines(axes, lines)
        axes.set_yscale("log", base=2)
        return handles

    return draw


def _smooth(run: Record) -> Record:
    """Means of five neighbours, as single windows of steps are noisy."""
    wide = np.ones(5) / 5
    values = np.convolve(run["gradient_norm_squared"][1:], wide, mode="valid")
    return Record({"step": np.convolve(run["step"][1:], wide, mode="valid"), "smooth": values})


def batches(experiments: Mapping[int, Experiment]) -> Callable:
    """The worst test loss for several sizes of batches."""

    def draw(axes: Axes, runs: Runs) -> list[Any]:
        lines = [
            Line(f"batch {b}", runs[e.name, "min-max"], column("worst_test"), colour)
            for (b, e), colour in zip(experiments.items(), (BLUE, GREEN, RED), strict=True)
        ]
        return draw_lines(axes, lines)

    return draw


VALIDATION, TEST = ("validation", "worst_validation"), ("test", "worst_test")
SEEN, UNSEEN = ("seen", "worst_test"), ("unseen", "unseen_worst_test")

FIGURES = {
    figure.name: figure
    for figure in (
        Figure("1a", FASHION.title, (FASHION,), "worst loss", compare(FASHION, VALIDATION, TEST)),
        Figure("1b", FASHION.title, (FASHION,), "squared gradient norm", gradient_decay),
        Figure(
            "1c",
            SINUSOIDS.title,
            (SINUSOIDS,),
            "lowest worst loss so far",
            compare(SINUSOIDS, SEEN, UNSEEN, running_lowest),
        ),
        Figure(
            "C.1",
            MORE_SINUSOIDS.title,
            (MORE_SINUSOIDS,),
            "lowest worst loss so far",
            compare(MORE_SINUSOIDS, SEEN, UNSEEN, running_lowest),
        ),
        Figure("2a", LETTER.title, (LETTER,), "worst loss", compare(LETTER, VALIDATION, TEST)),
        Figure("2b", "Letter, more tasks", tuple(TASKS.values()), "squared gradient norm", gradients(TASKS)),
        Figure("2c", "Letter, larger batches", tuple(BATCHES.values()), "worst test loss", batches(BATCHES)),
    )
}


def draw(figure: Figure, records: RecordFiles, shorter: Callable[[Experiment], Experiment]) -> list[Path]:
    """Saves a figure as PNG and PDF, and its numbers as CSV; the files."""
    panels = {}
    for variant in VARIANTS:
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
        drawing = Drawing(figsize=(max(6.6, 3.6 * len(panels) + 0.6), 3.6), dpi=DPI, layout="constrained")
        FigureCanvasAgg(drawing)
        trials, handles = 0, []
        for number, (variant, runs) in enumerate(panels.items()):
            axes = drawing.add_subplot(1, len(panels), number + 1)
            handles = figure.draw(axes, {key: list(own.values()) for key, own in runs.items()})
            axes.set_title(VARIANTS[variant], fontsize=9.5)
            axes.set_xlabel(axes.get_xlabel() or "step")
            axes.set_ylabel(figure.label if number == 0 else "")
            trials = max(trials, *(len(own) for own in runs.values()))
        names = [*(str(handle.get_label()) for handle in handles), f"10 % to 90 % of {trials} trials"]
        drawing.legend(**in_columns([*handles, band_handle()], names, 90 * len(panels)), loc="outside lower center")
        drawing.suptitle(f"Figure {figure.name}. {figure.title}")
        files = [folder / f"figure-{figure.name}{suffix}" for suffix in (".png", ".pdf")]
        for file in files:
            drawing.savefig(file, metadata={"CreationDate": None} if file.suffix == ".pdf" else {})
    return files
