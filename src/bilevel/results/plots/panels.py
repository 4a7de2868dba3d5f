"""The panels: losses over the steps, weights over the steps, and the tasks' final losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel.results.history import column_names
from bilevel.results.plots.entries import Entry, short_names
from bilevel.results.plots.legends import add_legend
from bilevel.results.plots.numbers import log_limits, over_steps, padded, spread
from bilevel.results.plots.style import COLOURS, MARKED_POINTS, MARKERS, PALE, line_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

COLOURED_TASKS = 8
ALIKE = "all tasks alike"
NAMED_TASKS, NAMED_DOTS = 30, 90  # up to this many tasks, and dots of one kind, every task has a row with its name
KEY_LENGTH, NAME_LENGTH = 19, 26  # letters of a task in a legend, of one in a row
READABLE_DECADES = 3  # up to this many, an axis shows 0.1, 0.2, 0.5 and not only powers of ten


class Line(NamedTuple):
    """One number per evaluation, to be drawn over the steps."""

    label: str
    runs: list[Any]  # results, or the records of a study
    of: Callable[[Any], np.ndarray]
    colour: str
    marker: str = MARKERS[0]
    rows: str = "validation"


def draw_lines(axes: Axes, lines: list[Line]) -> list[Line2D]:
    """Losses over the steps; the handles of a legend."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, evaluated = [], [], set()
    for number, line in enumerate(lines):
        steps, values = over_steps(line.runs, [line.of(run) for run in line.runs])
        look = line_look(line.colour, line.marker, line.rows, len(steps))
        if line.marker != MARKERS[0] and len(steps) > MARKED_POINTS:
            look |= {"marker": line.marker, "markevery": (0.01 * (number % 10), 0.1)}  # so that markers do not coincide
        handles.append(_curve(axes, steps, values, line.label, look))
        seen.append(values)
        evaluated.update(steps.tolist())
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.02)
    if len(evaluated) == 1:
        axes.set_xticks([*evaluated])
    _scale(axes, "y", seen)
    return handles


def _curve(axes: Axes, at: np.ndarray, values: np.ndarray, label: str, look: dict[str, Any]) -> Line2D:
    """The median over the runs, the first axis of the values, and the band around it; the handle of a legend."""
    middle, low, high = spread(values)
    [handle] = axes.plot(at, middle, label=label, **look)
    if len(values) > 1:
        faint = 0.18 if look.get("linestyle") == "-" else 0.08
        axes.fill_between(at, low, high, color=look["color"], alpha=faint, linewidth=0)
    return handle


def draw_weights(axes: Axes, entry: Entry) -> None:
    """The weights over the steps: the heaviest in colour, by name; by rank where the tasks of the runs differ."""
    names, order = _heaviest(entry)
    curves, steps = [], np.zeros(0)
    for rank in range(len(names)):
        own = [run.history.weights[:, places[rank]] for run, places in zip(entry.runs, order, strict=True)]
        steps, values = over_steps(entry.runs, own)
        curves.append(values)
    others = curves[COLOURED_TASKS:]
    pale = [_one_line(axes, steps, np.stack(others, axis=1))] if others else []
    coloured = []
    for rank in reversed(range(len(names[:COLOURED_TASKS]))):  # the heaviest are drawn last, above the others
        look = line_look(COLOURS[rank], MARKERS[0], "validation", len(steps))
        coloured.append(_curve(axes, steps, curves[rank], names[rank], look))
    axes.set_ylim(0, 1.08 * np.nanmax(curves))
    followed, there = (max(map(len, own)) for own in (order, entry.tasks))
    axes.set_ylabel("weight" if names[0] == ALIKE or followed == there else f"weight, of {followed} of {there:,} tasks")
    shown = short_names(names[:COLOURED_TASKS], KEY_LENGTH)
    shown += [f"{len(others)} other{'s' * (len(others) > 1)}"] * len(pale)
    add_legend(axes, [*reversed(coloured), *pale], shown)


def _one_line(axes: Axes, at: np.ndarray, values: np.ndarray) -> Line2D:
    """The medians of many tasks (values: runs, tasks, evaluations) as one pale line with gaps, which is drawn fast."""
    middle = spread(values)[0]
    with_gaps = np.hstack([middle, np.full((len(middle), 1), np.nan)])
    look: dict[str, Any] = line_look(PALE, MARKERS[0], "validation", len(at)) | {"linewidth": 0.7}
    return axes.plot(np.tile([*at, np.nan], len(middle)), with_gaps.ravel(), **look)[0]


def _heaviest(entry: Entry) -> tuple[list[str], list[np.ndarray]]:
    """The names of the tasks, heaviest first, and their places in every run; by rank where the runs' tasks differ."""
    weights, tasks = [run.last.weights for run in entry.runs], entry.tasks
    if any(getattr(run.history, "tasks", None) is not None for run in entry.runs):  # not all tasks have columns
        weights = [run.history.weights[-1] for run in entry.runs]
        tasks = [tuple(column_names(run.history, own)) for run, own in zip(entry.runs, tasks, strict=True)]
    if all(np.ptp(run.history.weights) < 1e-6 for run in entry.runs):
        return [ALIKE], [np.zeros(1, int)] * len(weights)
    if len(set(tasks)) == 1:
        order = np.argsort(-np.median(weights, axis=0), kind="stable")
        return [tasks[0][i] for i in order], [order] * len(weights)
    count = min(map(len, weights))
    names = ["heaviest", *(f"no. {i}" for i in range(2, count + 1))]
    return names, [np.argsort(-own, kind="stable")[:count] for own in weights]


def draw_tasks(axes: Axes, entries: list[Entry]) -> list[Line2D]:
    """Every task's final loss, worst first: by name where there is room and the runs agree, otherwise by rank."""
    names = {own for entry in entries for own in entry.tasks}
    count = max(map(len, names))
    rows = len(names) == 1 and count <= NAMED_TASKS and count * len(entries) <= NAMED_DOTS
    return _rows(axes, entries) if rows else _ranks(axes, entries)


def _final(entry: Entry) -> list[tuple[str, str, list[np.ndarray]]]:
    """(label, on which rows, losses of each run); test rows where there are any, and no others held out."""
    found = [(entry.label, "validation", [run.last.losses for run in entry.runs])]
    test = [run.last.test_losses for run in entry.runs if run.last.test_losses is not None]
    if entry.has("test"):
        found.append((f"{entry.label} (test)", "test", test))
    return found


def _rows(axes: Axes, entries: list[Entry]) -> list[Line2D]:
    """A row per task, in the order of the first result; test losses hollow."""
    names = entries[0].tasks[0]
    first, _, _ = spread(np.stack([run.last.losses for run in entries[0].runs]))
    order = np.argsort(-first, kind="stable")
    handles, seen = [], []
    for entry in entries:
        place = np.arange(len(names)) + 0.6 * ((entry.number + 0.5) / len(entries) - 0.5)
        for label, rows, losses in _final(entry):
            test = rows == "test"
            middle, low, high = spread(np.stack(losses)[:, order])
            look: dict[str, Any] = {"markerfacecolor": "none", "markersize": 6.5} if test else {}
            look |= {"color": entry.colour, "marker": entry.marker, "linestyle": "none", "zorder": 3}
            handles += axes.plot(middle, place, label=label, **look)
            if len(entry.runs) > 1:
                axes.hlines(place, low, high, color=entry.colour, alpha=0.25 if test else 0.6, linewidth=1.2)
            seen += [low, high]
    shown = short_names(names, NAME_LENGTH)
    axes.set_yticks(np.arange(len(names)), [shown[i] for i in order])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("final loss")
    _scale(axes, "x", seen)
    return handles


def _ranks(axes: Axes, entries: list[Entry]) -> list[Line2D]:
    """The losses of each result in falling order; test losses dashed, in their own order."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, count = [], [], 1
    for entry in entries:
        for label, rows, losses in _final(entry):
            values = padded([-np.sort(-np.asarray(own, float)) for own in losses])
            ranks = np.arange(1, values.shape[1] + 1)
            look = line_look(entry.colour, entry.marker, rows, len(ranks))
            handles.append(_curve(axes, ranks, values, label, look))
            seen.append(values)
            count = max(count, len(ranks))
    axes.set_xlabel("task, the worst first")
    axes.set_ylabel("final loss")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
    axes.set_xlim(0.5, count + 0.5)
    _scale(axes, "y", seen)
    return handles


def _scale(axes: Axes, which: str, values: list[np.ndarray]) -> None:
    """A logarithmic axis where the losses span more than a decade, with plain numbers on it where these are short."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis, limits = getattr(axes, f"{which}axis"), log_limits(values)
    if limits is None:
        axis.set_major_locator(MaxNLocator(7, steps=(1, 2, 2.5, 5, 10)))
        return
    axes.set(**{f"{which}scale": "log"})
    decades = np.log10(limits[1] / limits[0])
    if decades < READABLE_DECADES and limits[0] > 1e-4 and limits[1] < 1e5:
        axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if decades < READABLE_DECADES / 2 else (1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
