"""Numbers over the steps, or over the share of tasks: what a chart draws, and what its table says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bilevel._core.averages import mean
from bilevel.report.subject import ROLES, Band, Subject, distinct
from bilevel.results.history import History
from bilevel.results.plots.numbers import over_steps
from bilevel.results.result import Result

POINTS = 200  # of a line
HEAVIEST = 6  # tasks whose weights are drawn one by one
LABEL = 24  # letters of a name in a legend
OTHERS = "the others"


class Series(NamedTuple):
    """One line: what it is of, whose runs, and its numbers at every place of the frame."""

    what: str
    whose: str
    band: Band


class Frame(NamedTuple):
    """Lines over one axis."""

    axis: str
    places: np.ndarray
    series: list[Series]
    at: str = "step {}"  # a place in words

    def name(self, series: Series) -> str:
        """The name of a line among the others."""
        return series.what if len({one.whose for one in self.series}) == 1 else f"{series.what}, {series.whose}"


def losses(subjects: Sequence[Subject]) -> Frame:
    """Worst and mean validation loss over the steps, and the worst on other rows."""
    quantities: list[tuple[str, Callable[[History], np.ndarray], str]] = [
        ("worst", lambda history: history.worst, "validation"),
        ("mean", lambda history: history.mean, "validation"),
    ]
    quantities += [
        (f"worst on {role} rows", lambda history, role=role: history[role].max(axis=1), role)
        for role in ("selection", "test")
    ]
    lines = [
        (what, subject, [of(run.history) for run in subject.runs])
        for subject in subjects
        for what, of, role in quantities
        if all(role in run.history for run in subject.runs)
    ]
    return _over_steps(lines)


def regrets(subjects: Sequence[Subject]) -> Frame | None:
    """The worst regret over the steps, on each kind of rows; None where baselines are not known."""
    lines = [
        (f"on {role} rows", subject, [np.nanmax(known.regrets(run.history[role]), axis=1) for run in subject.runs])
        for subject in subjects
        if (known := subject.baselines) is not None and len(subject.alike) == len(subject.runs)
        for role in ROLES
        if all(role in run.history for run in subject.runs)
    ]
    return _over_steps(lines) if lines else None


def metrics(subjects: Sequence[Subject]) -> Frame | None:
    """The mean of every metric over the tasks, over the steps; None where there are none."""
    lines = [
        (short, subject, [mean(run.history[name], axis=1) for run in subject.runs])
        for subject in subjects
        for name, short in zip(subject.metrics, distinct(subject.metrics, LABEL), strict=True)
    ]
    return _over_steps(lines) if lines else None


def weights(subject: Subject) -> Frame | None:
    """The weights of the heaviest tasks over the steps, and the range of the others; None where no weight moves."""
    runs = subject.alike
    if all(np.ptp(run.history.weights, axis=0).max() == 0 for run in runs):
        return None
    average = np.mean([np.mean(run.history.weights, axis=0) for run in runs], axis=0)
    order = np.argsort(-average, kind="stable")
    shown = order[: HEAVIEST if len(order) > HEAVIEST + 1 else None]
    names = distinct([OTHERS, *(subject.names[i] for i in shown)], LABEL)[1:]  # a task may have that name
    alike = Subject(subject.label, runs)
    lines = [(name, alike, [run.history.weights[:, i] for run in runs]) for name, i in zip(names, shown, strict=True)]
    frame = _over_steps(lines)
    others = order[len(shown) :]
    if not len(others):
        return frame
    ends = [_of_others(runs, others, of, frame.places) for of in (np.median, np.min, np.max)]
    return frame._replace(series=[*frame.series, Series(OTHERS, subject.label, Band(*ends))])


def _of_others(
    runs: Sequence[Result], others: np.ndarray, of: Callable[..., np.ndarray], places: np.ndarray
) -> np.ndarray:
    steps, rows = over_steps(runs, [of(run.history.weights[:, others], axis=1) for run in runs])
    return np.interp(places, steps, of(rows, axis=0))


def shares(subjects: Sequence[Subject]) -> Frame:
    """The loss that is not exceeded by each share of the tasks, from the best to the worst."""
    shares = np.arange(101.0)
    series = [
        Series(role, subject.label, Band.over(np.stack([_quantiles(run, role, shares) for run in subject.runs])))
        for subject in subjects
        for role in subject.roles
    ]
    return Frame("share of tasks, %", shares, series, at="{} % of the tasks")


def _quantiles(run: Result, role: str, shares: np.ndarray) -> np.ndarray:
    losses = np.sort(np.asarray(getattr(run.last, ROLES[role]), float))  # NaN, the worst of all, comes last
    return losses[np.ceil(shares / 100 * (len(losses) - 1)).astype(int)]


def _over_steps(lines: Sequence[tuple[str, Subject, list[np.ndarray]]]) -> Frame:
    """Lines over the steps of all runs, at no more than `POINTS` of them; a line ends where the last run does."""
    runs = [run for _, subject, _ in lines for run in subject.runs]
    steps = thinned(np.unique(np.concatenate([run.history.step for run in runs])), POINTS)
    series = []
    for what, subject, values in lines:
        own, rows = over_steps(subject.runs, values)
        band = Band.over(np.stack([np.interp(steps, own, row, right=np.nan) for row in rows]))
        series.append(Series(what, subject.label, band))
    return Frame("step", steps, series)


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """At most so many of them, evenly, the first and the last among them.

    >>> thinned(np.arange(10), 4)
    array([0, 3, 6, 9])
    """
    return values[np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))]
