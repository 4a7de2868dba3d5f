"""The panel of regrets: what the losses exceed the baselines of the tasks by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel._core import values
from bilevel.results.plots.entries import Entry, RunLike, plain_text
from bilevel.results.plots.legends import add_legend
from bilevel.results.plots.panels import KEY_LENGTH, Line, draw_lines
from bilevel.weightings.baselines import Baselines, values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def baselines_of(entries: Sequence[Entry], given: Any) -> Baselines | None:
    """Those that were given, or the first that a run knows, with the names of the tasks."""
    if given is None:
        known = (getattr(run, "baselines", None) for entry in entries for run in entry.runs)
        return next((own for own in known if own is not None), None)
    names = entries[0].tasks[0]
    values.one_per_task("baselines", values_of(given), len(names), of="plot")
    own = tuple(given.names) if isinstance(given, Baselines) and given.names else names
    return Baselines(np.asarray(values_of(given), float), names=own)


def of_same_tasks(entries: Sequence[Entry], known: Baselines | None) -> list[Entry]:
    """The entries that these baselines are of, by the names of their tasks."""
    return [] if known is None else [e for e in entries if all(own == tuple(known.names) for own in e.tasks)]


def draw_regrets(axes: Axes, entries: Sequence[Entry], known: Baselines, single: bool) -> None:
    """The worst regret over the steps, on selection rows dotted and on test rows dashed.

    Of a single run, the legend names the task whose regret is the worst at its end.
    """
    lines = [
        Line(_label(entry, rows, known, single), entry.runs, _worst(rows, known), entry.colour, entry.marker, rows)
        for entry in entries
        for rows in ("validation", *entry.held_out)
    ]
    handles = draw_lines(axes, lines)
    axes.set_ylabel("worst regret")
    if single:
        add_legend(axes, handles, [line.label for line in lines])


def _label(entry: Entry, rows: str, known: Baselines, single: bool) -> str:
    if len(entry.runs) > 1 or not single:
        return rows if single else f"{entry.label} ({rows})"
    task = known.worst_regret(entry.runs[0].history[rows][-1]).task
    return f"{rows}: {plain_text(task, KEY_LENGTH)}"


def _worst(rows: str, known: Baselines) -> Any:
    """From a run to its worst regret at every evaluation."""

    def of(run: RunLike) -> np.ndarray:
        return np.array([known.worst_regret(losses).value for losses in run.history[rows]])

    return of
