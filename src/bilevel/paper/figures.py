"""The paper's figures from finished runs: a column for each variant, a row for each quantity, bands over the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bilevel._studies.experiment import Experiment
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.records import COLUMNS, Record, write_table
from bilevel.paper.fashion import FASHION
from bilevel.paper.letter import BATCHES, LETTER, TASKS
from bilevel.paper.panels import along_batches, along_steps, compare, decay, growth
from bilevel.paper.sinusoids import DRAWN, MORE_SINUSOIDS, PRINTED, SCRIPT_SINUSOIDS, SINUSOIDS
from bilevel.paper.variants import VARIANTS
from bilevel.results.plots.legends import band_handle, in_columns
from bilevel.results.plots.style import DPI, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runs = Mapping[tuple[str, str], list[Record]]  # by experiment and method


class Row(NamedTuple):
    """A quantity of a figure."""

    label: str  # of the vertical axis
    draw: Callable[[Any, Runs], list[Any]]  # fills one panel and returns the handles of the legend


class Figure(NamedTuple):
    """A figure of the paper."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    rows: tuple[Row, ...]


def _losses(name: str, experiment: Experiment) -> Figure:
    """min-avg and min-max by validation and by test rows."""
    rows = [Row(f"worst {kind} loss", compare(experiment, f"worst_{kind}")) for kind in ("validation", "test")]
    return Figure(name, experiment.title, (experiment,), tuple(rows))


def _sinusoids(name: str, experiment: Experiment) -> Figure:
    """min-avg and min-max on seen and on unseen tasks: the lowest worst loss so far, as the paper draws it."""
    columns = {"seen": "lowest_worst_test", "unseen": "lowest_unseen_worst_test"}
    rows = [Row(f"lowest worst loss, {kind}", compare(experiment, column)) for kind, column in columns.items()]
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
            (Row(_BATCH, decay(FASHION, "gradient_norm_squared")), Row(_BOUNDED, decay(FASHION, "residual"))),
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
            (Row(_BATCH, along_steps(TASKS)), Row(_BOUNDED, growth(TASKS))),
        ),
        Figure(
            "2c", "Letter, larger batches", tuple(BATCHES.values()), (Row("worst test loss", along_batches(BATCHES)),)
        ),
    )
}


def draw(figure: Figure, records: RecordFiles, shorter: Callable[[Experiment], Experiment]) -> list[Path]:
    """Saves a figure as PNG and PDF, and its numbers as CSV; the files."""
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


def _fill(row: Row, grid: Sequence[Axes], panels: Mapping[str, Mapping]) -> list[Any]:
    """One row of panels; the handles of the legend."""
    handles: list[Any] = []
    for axes, runs in zip(grid, panels.values(), strict=True):
        handles = row.draw(axes, {key: list(own.values()) for key, own in runs.items()}) or handles
    grid[0].set_ylabel(row.label)
    return handles


def _trials(runs: Mapping) -> str:
    counts = {len(own) for own in runs.values()}
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
