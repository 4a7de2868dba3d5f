"""The panels of a figure: losses, weights and regrets over the steps, and the tasks' final losses.

Below them are the legends, and the numbers that are drawn: medians, bands, and the limits of an axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel._core.values import one_per_task
from bilevel.results.history import column_names
from bilevel.results.plots.entries import (
    COLOURS,
    GREY,
    MARKED_POINTS,
    MARKERS,
    PALE,
    Entry,
    Look,
    line_look,
    plain_text,
)
from bilevel.weightings.baselines import Baselines, values_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

COLOURED_TASKS = 8
ALIKE = "all tasks alike"
NAMED_TASKS, NAMED_DOTS = 30, 90  # up to this many tasks, and dots of one kind, every task has a row with its name
KEY_LENGTH, NAME_LENGTH, LABEL_LENGTH = 19, 26, 48  # letters of a task in a legend, of a task in a row, of a run
READABLE_DECADES = 3  # up to this many, an axis shows 0.1, 0.2, 0.5 and not only powers of ten
BAND = (0.1, 0.9)  # the quantiles over runs between which the band lies


class Line(NamedTuple):
    """One number per evaluation, to be drawn over the steps."""

    label: str
    runs: Sequence[Any]  # results, or the records of a study
    of: Callable[[Any], np.ndarray]
    colour: str
    marker: str = MARKERS[0]
    rows: str = "validation"


def draw_lines(axes: Axes, lines: list[Line]) -> list[Line2D]:
    """Draws losses over the steps; returns the handles for a legend."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, evaluated = [], [], set()
    for number, line in enumerate(lines):
        steps, values = over_steps(line.runs, [line.of(run) for run in line.runs])
        look = line_look(line.colour, line.marker, line.rows, len(steps))
        if line.marker != MARKERS[0] and len(steps) > MARKED_POINTS:  # at other points than other lines
            look |= {"marker": line.marker, "markevery": (0.01 * (number % 10), 0.1)}
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


def _curve(axes: Axes, at: np.ndarray, values: np.ndarray, label: str, look: Look) -> Line2D:
    """Draws the median over the runs (first axis) and the band around it."""
    middle, low, high = spread(values)
    [handle] = axes.plot(at, middle, label=label, **look)
    if len(values) > 1:
        faint = 0.18 if look.get("linestyle") == "-" else 0.08
        axes.fill_between(at, low, high, color=look["color"], alpha=faint, linewidth=0)
    return handle


def draw_weights(axes: Axes, entry: Entry) -> None:
    """Draws the weights over the steps, the heaviest in colour; tasks go by rank where the runs' tasks differ."""
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
    """Draws the medians of many tasks (values: runs, tasks, evaluations) as one pale line with gaps, which is fast."""
    middle = spread(values)[0]
    with_gaps = np.hstack([middle, np.full((len(middle), 1), np.nan)])
    look: Look = line_look(PALE, MARKERS[0], "validation", len(at)) | {"linewidth": 0.7}
    return axes.plot(np.tile([*at, np.nan], len(middle)), with_gaps.ravel(), **look)[0]


def _heaviest(entry: Entry) -> tuple[list[str], list[np.ndarray]]:
    """The tasks' names, heaviest first, and their places in every run; ranks where the runs' tasks differ."""
    weights, tasks = [run.last.weights for run in entry.runs], entry.tasks
    if any(run.history.tasks is not None for run in entry.runs):  # only some tasks have columns
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


def draw_tasks(axes: Axes, entries: Sequence[Entry]) -> list[Line2D]:
    """Draws every task's final loss, worst first; by name where there is room and runs share tasks, else by rank."""
    names = {own for entry in entries for own in entry.tasks}
    count = max(map(len, names))
    rows = len(names) == 1 and count <= NAMED_TASKS and count * len(entries) <= NAMED_DOTS
    return _rows(axes, entries) if rows else _ranks(axes, entries)


def _final(entry: Entry) -> list[tuple[str, str, list[np.ndarray]]]:
    """(label, kind of rows, losses of each run) for validation rows, and for test rows where there are any."""
    found = [(entry.label, "validation", [run.last.losses for run in entry.runs])]
    if entry.has("test"):
        found.append((f"{entry.label} (test)", "test", [np.asarray(run.last.test_losses) for run in entry.runs]))
    return found


def _rows(axes: Axes, entries: Sequence[Entry]) -> list[Line2D]:
    """Draws a row per task, in the order of the first result; test losses are hollow."""
    names = entries[0].tasks[0]
    first, _, _ = spread(np.stack([run.last.losses for run in entries[0].runs]))
    order = np.argsort(-first, kind="stable")
    handles, seen = [], []
    for entry in entries:
        place = np.arange(len(names)) + 0.6 * ((entry.number + 0.5) / len(entries) - 0.5)
        for label, rows, losses in _final(entry):
            test = rows == "test"
            middle, low, high = spread(np.stack(losses)[:, order])
            look: Look = {"markerfacecolor": "none", "markersize": 6.5} if test else {}
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


def _ranks(axes: Axes, entries: Sequence[Entry]) -> list[Line2D]:
    """Draws the losses of each result in falling order; test losses are dashed and in their own order."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, count = [], [], 1
    for entry in entries:
        for label, rows, losses in _final(entry):
            sorted_losses = [-np.sort(-np.asarray(own, float)) for own in losses]
            values = np.transpose(list(itertools.zip_longest(*sorted_losses, fillvalue=np.nan)))
            ranks = np.arange(1, values.shape[1] + 1)
            look = line_look(entry.colour, entry.marker, rows, len(ranks))
            handles.append(_curve(axes, ranks, values, label, look))
            seen.append(values)
            count = max(count, len(ranks))
    axes.set(xlabel="task, the worst first", ylabel="final loss")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
    axes.set_xlim(0.5, count + 0.5)
    _scale(axes, "y", seen)
    return handles


def _scale(axes: Axes, which: str, values: list[np.ndarray]) -> None:
    """Makes an axis logarithmic where the losses span more than a decade; short numbers are shown plainly."""
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


# ------------------------------------------------------------------ regrets


def baselines_of(entries: Sequence[Entry], given: object) -> Baselines | None:
    """The given baselines, or the first that a run knows, with the names of the tasks."""
    if given is None:
        known = (run.baselines for entry in entries for run in entry.runs)
        return next((own for own in known if own is not None), None)
    names = entries[0].tasks[0]
    one_per_task("baselines", values_of(given), len(names), of="plot")
    own = tuple(given.names) if isinstance(given, Baselines) and given.names else names
    return Baselines(np.asarray(values_of(given), float), names=own)


def of_same_tasks(entries: Sequence[Entry], known: Baselines | None) -> Sequence[Any]:
    """The entries whose tasks have the names that these baselines have."""
    return [] if known is None else [e for e in entries if all(own == tuple(known.names) for own in e.tasks)]


def draw_regrets(axes: Axes, entries: Sequence[Entry], known: Baselines, single: bool) -> None:
    """Draws the worst regret over the steps, dotted on selection rows and dashed on test rows.

    The legend of a single run names the task with the worst regret at the end.
    """
    lines = []
    for entry in entries:
        for rows in ("validation", *entry.held_out):
            label = rows if single else f"{entry.label} ({rows})"
            if single and len(entry.runs) == 1:
                task = known.worst_regret(entry.runs[0].history[rows][-1]).task
                label = f"{rows}: {plain_text(task, KEY_LENGTH)}"
            of = lambda run, rows=rows: np.array([known.worst_regret(own).value for own in run.history[rows]])  # noqa: E731
            lines.append(Line(label, entry.runs, of, entry.colour, entry.marker, rows))
    handles = draw_lines(axes, lines)
    axes.set_ylabel("worst regret")
    if single:
        add_legend(axes, handles, [line.label for line in lines])


# ------------------------------------------------------------------ legends


def comparison_key(entries: Sequence[Entry]) -> tuple[list[Artist], list[str]]:
    """The handles and names of a legend for all panels."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for entry in entries:
        marker = entry.marker if entry.marker != MARKERS[0] else None
        handles.append(Line2D([], [], color=entry.colour, marker=marker, linewidth=2.2))
    names = [plain_text(entry.label, LABEL_LENGTH) for entry in entries]
    held_out = [rows for rows in ("selection", "test") if any(entry.has(rows) for entry in entries)]
    if held_out:
        handles += [Line2D([], [], **line_look(GREY, MARKERS[0], rows, 1)) for rows in ("validation", *held_out)]
        names += ["validation", *held_out]
    if any(len(entry.runs) > 1 for entry in entries):
        handles, names = [*handles, band_handle()], [*names, band_name(entries)]
    return handles, names


def band_handle() -> Artist:
    """The patch that represents the band over runs in a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=GREY, alpha=0.3, linewidth=0)


def band_name(entries: Sequence[Entry]) -> str:
    """The name of the band over runs in a legend."""
    counts = {len(entry.runs) for entry in entries}
    return f"{BAND[0]:.0%} to {BAND[1]:.0%} of {f'{counts.pop()} ' if len(counts) == 1 else ''}runs"


def add_legend(axes: Axes, handles: Sequence[Artist], names: list[str], room: int = 58) -> None:
    """A legend above its panel, where it covers nothing."""
    axes.legend(**in_columns(handles, names, room), loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def in_columns(handles: Sequence[Artist], names: list[str], room: int) -> Look:
    """Arguments of a legend with as many columns as there is room for (in letters)."""
    lengths = [len(name) + 9 for name in names]  # with the handle
    columns = len(names) if sum(lengths) <= room else max(1, room // max(lengths))
    shape = {"ncols": columns, "frameon": False, "columnspacing": 1.4, "handlelength": 2.2}
    return {"handles": handles, "labels": names, **shape}


# ------------------------------------------------------------------ names


def short_names(names: Sequence[str], length: int) -> list[str]:
    """Short names. From long ones a common beginning and end is removed first, so that they still differ."""
    if len(names) > 1 and max(map(len, names)) > length:
        names = without_common_ends(names, kept=4)
    return [plain_text(name, length) for name in names]


def without_common_ends(names: Sequence[str], kept: int) -> list[str]:
    """Names without their common beginning, of which the last `kept` letters stay, and without their common end."""
    head = max(0, _shared(names) - kept)
    tail = _shared([name[head:][::-1] for name in names])
    return ["…" * (head > 0) + name[head : len(name) - tail] + "…" * (tail > 0) for name in names]


def _shared(names: Sequence[str]) -> int:
    """The length of the common beginning."""
    return len(list(itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))))


# ------------------------------------------------------------------ numbers


def over_steps(runs: Sequence[Any], values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values): a row per run at all steps where any was evaluated; a run that ended keeps its last value."""
    steps = np.unique(np.concatenate([run.history.step for run in runs]))
    rows = [np.interp(steps, run.history.step, np.asarray(own, float)) for run, own in zip(runs, values, strict=True)]
    return steps, np.stack(rows)


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The median and the ends of the band over the first axis; numbers that are not finite do not count."""
    known = np.where(np.isfinite(values), values, np.nan)
    gaps = np.isnan(known).any(axis=0)
    if len(known) == 1:
        return known[0], known[0], known[0]
    quantiles = (BAND[0], 0.5, BAND[1])
    low, middle, high = np.quantile(np.where(gaps, 0.0, known), quantiles, axis=0)
    for i in zip(*np.nonzero(gaps), strict=True):  # nanquantile loops as well, and over all columns
        own = known[:, *i]
        own = own[~np.isnan(own)]
        low[i], middle[i], high[i] = np.quantile(own, quantiles) if own.size else (np.nan,) * 3
    return middle, low, high


def log_limits(values: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The smallest and the largest loss; None unless they are positive and more than a factor of ten apart."""
    flat = np.concatenate([np.ravel(v) for v in values])
    flat = flat[np.isfinite(flat)]
    if flat.size == 0 or flat.min() <= 0 or flat.max() <= 10 * flat.min():
        return None
    return float(flat.min()), float(flat.max())
