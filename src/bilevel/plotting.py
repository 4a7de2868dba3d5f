"""Pictures of results: losses over the steps, task weights, and every task's final loss.

Nothing here touches pyplot: a figure is made, drawn and saved without a display and without global state. Matplotlib is
imported when a picture is drawn.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color universal design", 2008: told apart by all readers. Yellow is last, being faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY, PALE = "#767676", "#C4C4C4"
MARKERS = ("o", "s", "^", "D")  # where the colours come round again

SUFFIXES = (".png", ".pdf", ".svg")
# No dates: the same results give the same file.
METADATA = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
TITLE_SIZE, TITLE_LENGTH = 11, 96
STYLE: dict[Any, Any] = {
    **{"font.family": "DejaVu Sans", "font.size": 9, "axes.labelsize": 9.5, "figure.titlesize": TITLE_SIZE},
    **{"legend.fontsize": 8.5, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "text.usetex": False},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.linewidth": 0.8},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#E8E8E8", "grid.linewidth": 0.7},
    **{"xtick.color": "#404040", "ytick.color": "#404040", "lines.linewidth": 1.6, "lines.markersize": 4.5},
    **{"figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white"},
    **{"savefig.bbox": "standard", "svg.hashsalt": "bilevel"},
    **{"pdf.fonttype": 42, "svg.fonttype": "none"},  # letters stay letters
}
DPI = 200

BAND = (0.1, 0.9)  # the quantiles over runs between which the band lies
COLOURED_TASKS = 8
NAMED_TASKS, NAMED_DOTS = 30, 90  # up to so many tasks, and dots of one kind, every task has a row with its name
KEY_LENGTH, NAME_LENGTH, LABEL_LENGTH = 19, 26, 48  # letters of a task in a legend, of one in a row, of a label
READABLE_DECADES = 3  # up to so many, an axis says 0.1, 0.2, 0.5 and not only powers of ten
MARKED_POINTS = 20  # a line of so few points shows them


@runtime_checkable
class Run(Protocol):
    """What is needed of a `Result`."""

    solver: Any
    last: Any
    history: Any


class Entry(NamedTuple):
    """One thing to be drawn: runs that belong together, under one label."""

    label: str
    runs: list[Any]
    number: int

    @property
    def colour(self) -> str:
        """Its colour."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def marker(self) -> str:
        """Its marker."""
        return MARKERS[self.number // len(COLOURS) % len(MARKERS)]

    @property
    def has_test(self) -> bool:
        """Whether all runs have test losses."""
        return all(run.last.test_losses is not None and run.history.test is not None for run in self.runs)

    @property
    def tasks(self) -> list[tuple[str, ...]]:
        """The names of the tasks of each run."""
        return [tuple(map(str, run.last.y.names)) for run in self.runs]


def plot(
    results: Any,
    path: str | os.PathLike | None = None,
    labels: str | Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws one result, or compares several.

    One result: worst and mean validation loss over the steps (worst test loss dashed), the tasks' weights (the heaviest
    in colour), and every task's final loss. Several: the worst loss, the mean loss and the tasks' final losses of all.
    Of runs with several seeds the median is drawn, and a band from the 10 % to the 90 % quantile; a run that ended
    early counts with its last value. Where runs have other tasks, or there are very many, tasks go by rank instead of
    name. An axis is logarithmic where its losses are positive and span more than a factor of ten.

    Args:
        results: a `Result`, a `Results`, or a list of them, or a dict of them by label.
        path: where to save the figure, as .png, .pdf or .svg; None = nowhere.
        labels: names for the results, in their order; None = the keys of a dict, else the solvers' names.
        title: above everything; None = nothing there, or of a single result its label.

    Returns:
        A matplotlib figure, apart from pyplot: `figure.axes` to change it, `figure.savefig(...)` to save it.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, steps=20, progress=False)
    >>> [axes.get_label() for axes in bl.plot(result).axes]
    ['losses', 'weights', 'tasks']
    """
    entries = _entries(results, labels)
    if path is not None:
        check_path(path)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = _draw(entries, title)
        if path is not None:
            suffix = Path(path).suffix.lower()
            figure.savefig(path, format=suffix[1:], metadata=METADATA[suffix])
    return figure


# ------------------------------------------------------------------ what came


def check_path(path: str | os.PathLike, argument: str = "plot(path={!r})") -> None:
    """Says what keeps a figure from being saved there, before any work is done."""
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
        raise PermissionError(f"{where}: it may not be written.")


def _entries(results: Any, labels: Any) -> list[Entry]:
    """The runs to be drawn, with their labels."""
    if isinstance(results, Mapping):
        places, items = [f"results[{key!r}]" for key in results], list(results.values())
    elif isinstance(results, (list, tuple)):
        places, items = [f"results[{i}]" for i in range(len(results))], list(results)
    else:
        places, items = ["results"], [results]
    if not items:
        raise ValueError(f"plot(results={results!r}): it needs at least one result.")
    runs = [_runs(item, place) for item, place in zip(items, places, strict=True)]
    if labels is None:
        labels = list(results) if isinstance(results, Mapping) else _own_labels(runs)
    labels = [labels] if isinstance(labels, str) else list(labels)
    if len(labels) != len(runs):
        raise ValueError(f"plot(labels={labels!r}): it needs {len(runs)}, one for each result.")
    return [Entry(str(label), own, i) for i, (label, own) in enumerate(zip(labels, runs, strict=True))]


def _runs(item: Any, place: str) -> list[Any]:
    """The runs of a `Result`, a `Results` or a list."""
    if isinstance(item, Run):
        return [item]
    if isinstance(item, str) or not isinstance(item, Sequence) or not all(isinstance(run, Run) for run in item):
        kind = type(item).__name__
        raise TypeError(f"plot({place}) got {kind}: it needs a Result or Results, or a list or dict of them.")
    if not len(item):
        raise ValueError(f"plot({place}={item!r}): it needs at least one run.")
    return list(item)


def _own_labels(runs: Sequence[Sequence[Any]]) -> list[str]:
    """The solvers' names; where they are alike, with their weightings; where these are too, with numbers."""
    solvers = [own[0].solver for own in runs]
    names = [s.partition("(")[0] if isinstance(s, str) else type(s).__name__ for s in solvers]
    if len(set(names)) == len(names):
        return names
    longer = [f"{name}, {type(getattr(s, 'weighting', None)).__name__}" for name, s in zip(names, solvers, strict=True)]
    if len(set(longer)) == len(longer):
        return longer
    return [f"{name} ({i})" for i, name in enumerate(names, 1)]


def _text(words: Any, length: int) -> str:
    """One line of plain text: cut in the middle where it is long, dollars and leading underscores shown as they are."""
    words = " ".join(str(words).split())
    if len(words) > length:
        words = words[: length // 2].rstrip() + "…" + words[len(words) - (length - length // 2 - 1) :].lstrip()
    return (" " if words.startswith("_") else "") + words.replace("$", r"\$")


def _short(names: Sequence[str], length: int) -> list[str]:
    """Names to be told apart: where they are long, what all of them begin and end with goes first."""
    if len(names) > 1 and max(map(len, names)) > length:
        head = max(0, _shared(names) - 4)  # a few letters of it stay
        tail = _shared([name[head:][::-1] for name in names])
        names = ["…" * (head > 0) + name[head : len(name) - tail] + "…" * (tail > 0) for name in names]
    return [_text(name, length) for name in names]


def _shared(names: Sequence[str]) -> int:
    """How many letters all of them begin with."""
    return len(list(itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))))


# ------------------------------------------------------------------ numbers


def _over_steps(runs: Sequence[Any], values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values): a row for every run, at all steps where one was evaluated; a run that ended keeps its last."""
    steps = np.unique(np.concatenate([run.history.step for run in runs]))
    rows = [np.interp(steps, run.history.step, np.asarray(own, float)) for run, own in zip(runs, values, strict=True)]
    return steps, np.stack(rows)


def _spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Over the first axis: the median and the ends of the band, of what is finite."""
    known = np.where(np.isfinite(values), values, np.nan)
    none = np.isnan(known).all(axis=0)
    low, middle, high = np.nanquantile(np.where(none, 0.0, known), (BAND[0], 0.5, BAND[1]), axis=0)
    low, middle, high = (np.where(none, np.nan, q) for q in (low, middle, high))
    return middle, low, high


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of unequal length, stacked; NaN where there is nothing."""
    stacked = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(stacked, rows, strict=True):
        row[: len(values)] = values
    return stacked


def _log_limits(values: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The smallest and the largest loss; None unless they are positive and more than a factor of ten apart."""
    flat = np.concatenate([np.ravel(v) for v in values])
    flat = flat[np.isfinite(flat)]
    if flat.size == 0 or flat.min() <= 0 or flat.max() <= 10 * flat.min():
        return None
    return float(flat.min()), float(flat.max())


# ------------------------------------------------------------------ drawing


def _draw(entries: list[Entry], title: str | None) -> Figure:
    """The figure: two panels over the steps, one above the other, and the tasks to their right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    single = len(entries) == 1
    alone = all(len(names) == 1 for entry in entries for names in entry.tasks)
    figure = Figure(figsize=(6.0, 3.8) if alone else (10.0, 6.0), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = _panels(figure, ["losses", "weights"] if single else ["worst", "mean"], alone)
    if single:
        _one(panels, entries[0])
        count = len(entries[0].runs)
        title = entries[0].label + (f", {count} runs" if count > 1 else "") if title is None else title
        figure.suptitle(_text(title, TITLE_LENGTH))
    else:
        _several(panels, entries)
        # The title is the legend's, for which the layout makes room; a title of the figure's would lie over it.
        key = _columns(*_comparison_key(entries), 64 if alone else 110)
        title = None if title is None else _text(title, TITLE_LENGTH)
        figure.legend(**key, title=title, title_fontsize=TITLE_SIZE, loc="outside upper center")
    return figure


def _panels(figure: Figure, names: list[str], alone: bool) -> list[Axes]:
    """Two panels over the steps and one of tasks; of a single task, whose losses are all one, the first only."""
    if alone:
        panels = [figure.add_subplot(label=names[0])]
    else:
        left, right = figure.add_gridspec(1, 2, width_ratios=(1.15, 1))
        above, below = left.subgridspec(2, 1)
        first = figure.add_subplot(above, label=names[0])
        panels = [first, figure.add_subplot(below, label=names[1], sharex=first)]
        panels.append(figure.add_subplot(right, label="tasks"))
        first.tick_params(labelbottom=False)
    panels[:2][-1].set_xlabel("step")
    return panels


def _one(panels: list[Axes], entry: Entry) -> None:
    """One result: its losses, weights and tasks."""
    losses, alone = panels[0], len(panels) == 1
    lines = [Line("validation" if alone else "worst", entry.runs, _worst, COLOURS[0])]
    if not alone:
        lines += [Line("mean", entry.runs, _mean, COLOURS[1])]
    if entry.has_test:
        lines += [Line("test" if alone else "worst (test)", entry.runs, _worst_test, COLOURS[0], test=True)]
    handles, names = _lines(losses, lines), [line.label for line in lines]
    losses.set_ylabel("loss" if alone else "validation loss")
    if len(entry.runs) > 1:
        handles, names = [*handles, _band_handle()], [*names, _band_name([entry])]
    _legend(losses, handles, names, 80 if alone else 58)
    if not alone:
        _weights(panels[1], entry)
        handles = _tasks(panels[2], [entry])
        _legend(panels[2], handles, ["validation", "test"][: len(handles)])


def _several(panels: list[Axes], entries: list[Entry]) -> None:
    """Several results: their worst losses, their mean losses, and their tasks."""
    lines = [Line(e.label, e.runs, _worst, e.colour, e.marker) for e in entries]
    tests = [Line(f"{e.label} (test)", e.runs, _worst_test, e.colour, e.marker, True) for e in entries if e.has_test]
    _lines(panels[0], lines + tests)
    panels[0].set_ylabel("loss" if len(panels) == 1 else "worst loss")
    if len(panels) > 1:
        _lines(panels[1], [line._replace(of=_mean) for line in lines])
        panels[1].set_ylabel("mean validation loss")
        _tasks(panels[2], entries)


class Line(NamedTuple):
    """One number per evaluation, to be drawn over the steps."""

    label: str
    runs: list[Any]
    of: Callable[[Any], np.ndarray]
    colour: str
    marker: str = MARKERS[0]
    test: bool = False


def _worst(run: Any) -> np.ndarray:
    return run.history.worst


def _mean(run: Any) -> np.ndarray:
    return run.history.mean


def _worst_test(run: Any) -> np.ndarray:
    return run.history.test.max(axis=1)


def _lines(axes: Axes, lines: list[Line]) -> list[Any]:
    """Losses over the steps; the handles of a legend."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, evaluated = [], [], set()
    for number, line in enumerate(lines):
        steps, values = _over_steps(line.runs, [line.of(run) for run in line.runs])
        look = _look(line.colour, line.marker, line.test, len(steps))
        if line.marker != MARKERS[0] and len(steps) > MARKED_POINTS:
            look |= {"marker": line.marker, "markevery": (0.01 * (number % 10), 0.1)}  # not all at one place
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


def _look(colour: str, marker: str, test: bool, points: int) -> dict[str, Any]:
    """Test data are dashed and hollow; few points are marked."""
    look = {"color": colour, "linestyle": "--" if test else "-", "markerfacecolor": "white" if test else colour}
    return look | {"marker": marker if points <= MARKED_POINTS else None}


def _curve(axes: Axes, at: np.ndarray, values: np.ndarray, label: str, look: dict[str, Any], band: bool = True) -> Any:
    """The median over the runs, the first axis of the values, and the band around it; the handle of a legend."""
    middle, low, high = _spread(values)
    [handle] = axes.plot(at, middle, label=label, **look)
    if band and len(values) > 1:
        faint = 0.08 if look.get("linestyle") == "--" else 0.18
        axes.fill_between(at, low, high, color=look["color"], alpha=faint, linewidth=0)
    return handle


def _weights(axes: Axes, entry: Entry) -> None:
    """The weights over the steps: the heaviest in colour, by name; by rank where the runs have other tasks."""
    handles, names, order = [], *_heaviest(entry)
    top = 0.0
    for rank in reversed(range(len(names))):  # the heaviest are drawn last, above the others
        own = [run.history.weights[:, places[rank]] for run, places in zip(entry.runs, order, strict=True)]
        steps, values = _over_steps(entry.runs, own)
        coloured = rank < COLOURED_TASKS
        look = _look(COLOURS[rank] if coloured else PALE, MARKERS[0], False, len(steps))
        look |= {} if coloured else {"linewidth": 0.7}
        handles.append(_curve(axes, steps, values, names[rank], look, band=coloured))
        top = max(top, np.nanmax(values))
    axes.set_ylim(0, 1.08 * top)
    axes.set_ylabel("weight")
    others = len(names) - COLOURED_TASKS
    shown = _short(names[:COLOURED_TASKS], KEY_LENGTH) + [f"{others} other{'s' * (others > 1)}"] * (others > 0)
    _legend(axes, handles[::-1][: len(shown)], shown)


def _heaviest(entry: Entry) -> tuple[list[str], list[np.ndarray]]:
    """The names of the tasks, heaviest first, and their places in every run; ranks where the runs have other tasks."""
    weights = [run.last.weights for run in entry.runs]
    if all(np.ptp(run.history.weights) < 1e-6 for run in entry.runs):
        return ["all tasks alike"], [np.zeros(1, int)] * len(weights)
    if len(set(entry.tasks)) == 1:
        order = np.argsort(-np.median(weights, axis=0), kind="stable")
        return [entry.tasks[0][i] for i in order], [order] * len(weights)
    count = min(map(len, weights))
    names = ["heaviest", *(f"no. {i}" for i in range(2, count + 1))]
    return names, [np.argsort(-own, kind="stable")[:count] for own in weights]


def _tasks(axes: Axes, entries: list[Entry]) -> list[Any]:
    """Every task's final loss, worst first: by name where there is room and the runs agree, otherwise by rank."""
    names = {own for entry in entries for own in entry.tasks}
    count = max(map(len, names))
    rows = len(names) == 1 and count <= NAMED_TASKS and count * len(entries) <= NAMED_DOTS
    return _rows(axes, entries) if rows else _ranks(axes, entries)


def _final(entry: Entry) -> list[tuple[str, bool, list[np.ndarray]]]:
    """(label, whether on test data, losses of each run)."""
    found = [(entry.label, False, [run.last.losses for run in entry.runs])]
    if entry.has_test:
        found.append((f"{entry.label} (test)", True, [run.last.test_losses for run in entry.runs]))
    return found


def _rows(axes: Axes, entries: list[Entry]) -> list[Any]:
    """A row per task, in the order of the first result; test losses hollow."""
    names = entries[0].tasks[0]
    first, _, _ = _spread(np.stack([run.last.losses for run in entries[0].runs]))
    order = np.argsort(-first, kind="stable")
    handles, seen = [], []
    for entry in entries:
        place = np.arange(len(names)) + 0.6 * ((entry.number + 0.5) / len(entries) - 0.5)
        for label, test, losses in _final(entry):
            middle, low, high = _spread(np.stack(losses)[:, order])
            look: dict[str, Any] = {"markerfacecolor": "none", "markersize": 6.5} if test else {}
            look |= {"color": entry.colour, "marker": entry.marker, "linestyle": "none", "zorder": 3}
            handles += axes.plot(middle, place, label=label, **look)
            if len(entry.runs) > 1:
                axes.hlines(place, low, high, color=entry.colour, alpha=0.25 if test else 0.6, linewidth=1.2)
            seen += [low, high]
    shown = _short(names, NAME_LENGTH)
    axes.set_yticks(np.arange(len(names)), [shown[i] for i in order])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("final loss")
    _scale(axes, "x", seen)
    return handles


def _ranks(axes: Axes, entries: list[Entry]) -> list[Any]:
    """The losses of each result in falling order; test losses dashed, in their own order."""
    from matplotlib.ticker import MaxNLocator

    handles, seen, count = [], [], 1
    for entry in entries:
        for label, test, losses in _final(entry):
            values = _padded([-np.sort(-np.asarray(own, float)) for own in losses])
            ranks = np.arange(1, values.shape[1] + 1)
            look = _look(entry.colour, entry.marker, test, len(ranks))
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
    """A logarithmic axis where the losses ask for one, with several plain numbers on it where these are short."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis, limits = getattr(axes, f"{which}axis"), _log_limits(values)
    if limits is None:
        axis.set_major_locator(MaxNLocator(7, steps=(1, 2, 2.5, 5, 10)))
        return
    axes.set(**{f"{which}scale": "log"})
    decades = np.log10(limits[1] / limits[0])
    if decades < READABLE_DECADES and limits[0] > 1e-4 and limits[1] < 1e5:
        axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if decades < READABLE_DECADES / 2 else (1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


# ------------------------------------------------------------------ legends


def _comparison_key(entries: list[Entry]) -> tuple[list[Any], list[str]]:
    """The handles and names of a legend for all panels."""
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for entry in entries:
        marker = entry.marker if entry.marker != MARKERS[0] else None
        handles.append(Line2D([], [], color=entry.colour, marker=marker, linewidth=2.2))
    names = [_text(entry.label, LABEL_LENGTH) for entry in entries]
    if any(entry.has_test for entry in entries):
        handles += [Line2D([], [], **_look(GREY, MARKERS[0], test, 1)) for test in (False, True)]
        names += ["validation", "test"]
    if any(len(entry.runs) > 1 for entry in entries):
        handles, names = [*handles, _band_handle()], [*names, _band_name(entries)]
    return handles, names


def _band_handle() -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=GREY, alpha=0.3, linewidth=0)


def _band_name(entries: list[Entry]) -> str:
    counts = {len(entry.runs) for entry in entries}
    return f"{BAND[0]:.0%} to {BAND[1]:.0%} of {f'{counts.pop()} ' if len(counts) == 1 else ''}runs"


def _legend(axes: Axes, handles: list[Any], names: list[str], room: int = 58) -> None:
    """A legend above its panel, where it covers nothing."""
    axes.legend(**_columns(handles, names, room), loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def _columns(handles: list[Any], names: list[str], room: int) -> dict[str, Any]:
    """One row, or as many columns as there is room for, counted in letters."""
    lengths = [len(name) + 9 for name in names]  # with the handle
    columns = len(names) if sum(lengths) <= room else max(1, room // max(lengths))
    shape = {"ncols": columns, "frameon": False, "columnspacing": 1.4, "handlelength": 2.2}
    return {"handles": handles, "labels": names, **shape}
