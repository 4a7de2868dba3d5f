"""Pictures of results: losses over the steps, task weights, and every task's final loss.

Nothing here touches pyplot: a figure is made, drawn and saved without a display and without global state. Matplotlib is
imported when a picture is drawn. This file lays out the figure; `panels` draws what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from bilevel._core.averages import mean
from bilevel.results.plots.entries import (
    COLOURS,
    DPI,
    STYLE,
    TITLE_LENGTH,
    TITLE_SIZE,
    Entry,
    Plottable,
    plain_text,
    read_entries,
)
from bilevel.results.plots.panels import (
    Line,
    add_legend,
    band_handle,
    band_name,
    baselines_of,
    comparison_key,
    draw_lines,
    draw_regrets,
    draw_tasks,
    draw_weights,
    in_columns,
    of_same_tasks,
)

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilevel.weightings.baselines import Baselines

__all__ = ["check_path", "plot"]

SUFFIXES = (".png", ".pdf", ".svg")
# Without dates, so that the same results give the same file.
METADATA = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
WORST, MEAN = attrgetter("history.worst"), attrgetter("history.mean")


def plot(
    results: Plottable,
    path: str | os.PathLike[str] | None = None,
    labels: str | Sequence[str] | None = None,
    title: str | None = None,
    *,
    baselines: Baselines | ArrayLike | None = None,
) -> Figure:
    """Draws one result, or compares several.

    One result: worst and mean validation loss over the steps (worst selection loss dotted, worst test loss dashed), the
    tasks' weights (the heaviest in colour), the means of metrics where there are any, and every task's final loss.
    Several: the worst loss, the mean loss and the tasks' final losses of all. Where baselines are known, also the worst
    regret, which is the largest excess of a task's loss over its baseline. Runs with several seeds are drawn as a
    median and a band from the 10 % to the 90 % quantile; a run that ended early counts with its last value. Where the
    runs' tasks differ, or there are very many, tasks are shown by rank instead of name. An axis is logarithmic where
    its losses are positive and span more than a factor of ten.

    Args:
        results: a `Result`, a `Results`, or a list of them, or a dict of them by label.
        path: where to save the figure, as .png, .pdf or .svg; None = it is not saved.
        labels: names for the results, in their order; None = the keys of a dict, else the solvers' names.
        title: of the figure; None = the label of a single result, otherwise none.
        baselines: what each task could reach, as `bl.baselines` measures it, or one number per task; None = those of
            the first result whose weighting has baselines (`Regret`, `Ratio`).

    Returns:
        A matplotlib figure that pyplot does not manage: `figure.axes` to change it, `figure.savefig(...)` to save it.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=20, progress=False)
    >>> [axes.get_label() for axes in bl.plot(result).axes]
    ['losses', 'weights', 'tasks']
    """
    entries = read_entries(results, labels)
    known = baselines_of(entries, baselines)
    if path is not None:
        check_path(path)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = _draw(entries, title, known)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, format=suffix[1:], metadata=METADATA[suffix])
    return figure


def check_path(path: str | os.PathLike[str], argument: str = "plot(path={!r})") -> None:
    """Raises, before any work is done, if a figure cannot be saved there."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{argument.format(path)}: it needs the name of a file.")
    target, where = Path(path), argument.format(str(path))
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{where}: it needs a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    if target.is_dir():
        raise IsADirectoryError(f"{where}: it is a directory, and a figure is one file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{where}: there is no directory {str(target.parent)!r}.")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise PermissionError(f"{where}: there is no permission to write it.")


def _draw(entries: list[Entry], title: str | None, known: Baselines | None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    single = len(entries) == 1
    alone = all(len(names) == 1 for entry in entries for names in entry.tasks)
    figure = Figure(figsize=(6.0, 3.8) if alone else (10.0, 6.0), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    measured = single and any(run.history.metrics for run in entries[0].runs)
    with_regrets = [] if alone else of_same_tasks(entries, known)
    names = ["losses", "weights"] if single else ["worst", "mean"]
    names += ["regrets"] * bool(with_regrets) + ["metrics"] * measured
    panels = _panels(figure, names, alone)
    if with_regrets and known is not None:
        draw_regrets(panels["regrets"], with_regrets, known, single)
    if single:
        _one(panels, entries[0])
        count = len(entries[0].runs)
        title = entries[0].label + (f", {count} runs" if count > 1 else "") if title is None else title
        figure.suptitle(plain_text(title, TITLE_LENGTH))
    else:
        _several(panels, entries)
        # The legend carries the title: the layout makes room for a legend, and a title of the figure would cover it.
        key = in_columns(*comparison_key(entries), 64 if alone else 110)
        title = None if title is None else plain_text(title, TITLE_LENGTH)
        figure.legend(**key, title=title, title_fontsize=TITLE_SIZE, loc="outside upper center")
    return figure


def _panels(figure: Figure, names: list[str], alone: bool) -> dict[str, Axes]:
    """Panels over the steps and one of tasks; for a single task only the first, as its worst loss is its mean."""
    if alone:
        panel = figure.add_subplot(label=names[0])
        panel.set_xlabel("step")
        return {names[0]: panel}
    left, right = figure.add_gridspec(1, 2, width_ratios=(1.15, 1))
    places = left.subgridspec(len(names), 1)
    panels: dict[str, Axes] = {}
    for k, name in enumerate(names):
        panels[name] = figure.add_subplot(places[k], label=name, sharex=panels.get(names[0]))
        panels[name].tick_params(labelbottom=name == names[-1])
    panels[names[-1]].set_xlabel("step")
    return {**panels, "tasks": figure.add_subplot(right, label="tasks")}


def _one(panels: dict[str, Axes], entry: Entry) -> None:
    losses, alone = panels["losses"], len(panels) == 1
    lines = [Line("validation" if alone else "worst", entry.runs, WORST, COLOURS[0])]
    if not alone:
        lines += [Line("mean", entry.runs, MEAN, COLOURS[1])]
    for rows in entry.held_out:
        lines += [_held_out(rows if alone else f"worst ({rows})", entry, rows)]
    handles, names = draw_lines(losses, lines), [line.label for line in lines]
    losses.set_ylabel(_loss_label([entry]))
    if len(entry.runs) > 1:
        handles, names = [*handles, band_handle()], [*names, band_name([entry])]
    add_legend(losses, handles, names, 80 if alone else 58)
    if not alone:
        draw_weights(panels["weights"], entry)
        if "metrics" in panels:
            _metrics(panels["metrics"], entry)
        handles = draw_tasks(panels["tasks"], [entry])
        add_legend(panels["tasks"], handles, ["validation", "test"][: len(handles)])


def _metrics(axes: Axes, entry: Entry) -> None:
    """The mean of each metric over the tasks, on validation rows and, dotted and dashed, on selection and test rows."""
    names = [name for name in entry.runs[0].history.metrics if all(name in run.history for run in entry.runs)]
    kinds = list(dict.fromkeys(name.partition(" ")[2] for name in names))
    lines = []
    for name in names:
        rows, _, kind = name.partition(" ")
        colour = COLOURS[kinds.index(kind) % len(COLOURS)]
        lines.append(Line(name, entry.runs, lambda run, name=name: mean(run.history[name], axis=1), colour, rows=rows))
    add_legend(axes, draw_lines(axes, lines), [line.label for line in lines])
    axes.set_ylabel("mean of the tasks")


def _several(panels: dict[str, Axes], entries: list[Entry]) -> None:
    lines = [Line(e.label, e.runs, WORST, e.colour, e.marker) for e in entries]
    others = [_held_out(f"{entry.label} ({rows})", entry, rows) for entry in entries for rows in entry.held_out]
    draw_lines(panels["worst"], lines + others)
    panels["worst"].set_ylabel(_loss_label(entries) if len(panels) == 1 else f"worst {_loss_label(entries)}")
    if len(panels) > 1:
        draw_lines(panels["mean"], [line._replace(of=MEAN) for line in lines])
        panels["mean"].set_ylabel("mean validation loss")
        draw_tasks(panels["tasks"], entries)


def _loss_label(entries: list[Entry]) -> str:
    """The name of an axis; losses on held-out rows, where there are any, share it."""
    return "loss" if any(entry.held_out for entry in entries) else "validation loss"


def _held_out(label: str, entry: Entry, rows: str) -> Line:
    return Line(label, entry.runs, lambda run: run.history[rows].max(axis=1), entry.colour, entry.marker, rows)
