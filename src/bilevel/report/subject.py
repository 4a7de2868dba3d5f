"""The subject of a page: runs under one label, their numbers by task, and their numbers over the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevel import Baselines, Result
from bilevel._core.averages import mean
from bilevel.results.plots.panels import over_steps, spread, without_common_ends

# The rows that losses are measured on, in the order of columns, and the attribute of an iterate that holds them.
ROLES = {"validation": "losses", "selection": "selection_losses", "test": "test_losses"}
LONGEST = 200  # letters of a name in a table
POINTS = 200  # of a line
HEAVIEST = 6  # tasks whose weights are drawn one by one
LABEL = 24  # letters of a name in a legend
OTHERS = "the others"


class Band(NamedTuple):
    """The median of a quantity over the runs, and its 10 % and 90 % quantiles; for one run all are equal."""

    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def over(cls, rows: np.ndarray) -> Band:
        """The band over the first axis; of several rows, only finite values count."""
        values = np.asarray(rows, float)
        return cls(*(values[[0, 0, 0]] if len(values) == 1 else spread(values)))

    @property
    def is_spread(self) -> bool:
        """Whether the runs differ anywhere."""
        return not np.array_equal(self.low, self.high, equal_nan=True)


@dataclasses.dataclass(frozen=True)
class Subject:
    """The runs of one solver."""

    label: str
    runs: Sequence[Result]
    baselines: Baselines | None = None  # of its tasks, if they are known

    @property
    def is_several(self) -> bool:
        """Whether there are several runs."""
        return len(self.runs) > 1

    @property
    def alike(self) -> Sequence[Result]:
        """The runs whose tasks have the same names as those of the first run; numbers by task use only these."""
        return [run for run in self.runs if run.y.names == self.runs[0].y.names]

    @property
    def names(self) -> list[str]:
        """The names of the tasks."""
        return [shortened(str(name), LONGEST) for name in self.runs[0].y.names]

    def has(self, role: str) -> bool:
        """Whether every run has losses on these rows."""
        return all(getattr(run.last, ROLES[role], None) is not None for run in self.runs)

    @property
    def roles(self) -> list[str]:
        """The kinds of rows that every run has losses on."""
        return [role for role in ROLES if self.has(role)]

    def losses(self, role: str, iterate: str = "last") -> Band:
        """The loss of every task."""
        return Band.over(np.stack([getattr(getattr(run, iterate), ROLES[role]) for run in self.alike]))

    @property
    def metrics(self) -> dict[str, Band]:
        """The metrics of every task, by name."""
        names = [name for name in self.runs[0].last.metrics if all(name in run.last.metrics for run in self.runs)]
        return {name: Band.over(np.stack([run.last.metrics[name] for run in self.alike])) for name in names}

    @property
    def weights(self) -> Band:
        """The weight of every task."""
        return Band.over(np.stack([run.weights for run in self.alike]))

    def regrets(self, role: str) -> Band:
        """The regret of every task: how far its loss exceeds its baseline."""
        known = self.baselines
        assert known is not None
        return Band.over(np.stack([known.regrets(getattr(run.last, ROLES[role])) for run in self.alike]))

    def worst_regrets(self, role: str, iterate: str = "last") -> list[Any]:
        """What `bl.Baselines.worst_regret` says of each run; empty if baselines are not known."""
        known = self.baselines
        if known is None:
            return []
        return [known.worst_regret(getattr(getattr(run, iterate), ROLES[role])) for run in self.alike]

    def worst_regret(self, role: str, iterate: str = "last") -> np.ndarray:
        """The largest regret of each run."""
        return np.array([worst.value for worst in self.worst_regrets(role, iterate)])

    def worst(self, role: str) -> np.ndarray:
        """The largest loss of each run."""
        return np.array([float(np.max(getattr(run.last, ROLES[role]))) for run in self.runs])

    def mean(self, role: str) -> np.ndarray:
        """The mean loss of each run."""
        return np.array([float(np.mean(getattr(run.last, ROLES[role]))) for run in self.runs])


def solver_title(result: Result) -> str:
    """The name of the solver and its objective."""
    solver: Any = result.solver
    name = solver.partition("(")[0].split(".")[-1] if isinstance(solver, str) else type(solver).__name__
    return shortened(name if result.objective is None else f"{name} ({result.objective})", LONGEST)


def shortened(text: str, length: int) -> str:
    """One line of text; if it is too long, its middle is left out.

    >>> shortened("the clinic in the north", 11)
    'the cl…orth'
    """
    text = " ".join(text.split())
    end = (length - 1) // 2 - 1
    return text if len(text) <= length else text[: length - 1 - end] + "…" + text[-end:]


def distinct(names: Iterable[str], length: int) -> list[str]:
    """Short names that differ, because a chart takes equal names for the same thing.

    Long names that differ only in their middle lose their common beginning and end instead.

    >>> distinct(["the clinic 1 in the north", "the clinic 2 in the north", "south"], 14)
    ['…clinic 1…', '…clinic 2…', 'south']
    >>> distinct(["a b", "a  b"], 14)
    ['a b', 'a b (2)']
    """
    names = [" ".join(name.split()) for name in names]
    alike: dict[str, set[str]] = {}
    for name in names:
        alike.setdefault(shortened(name, length), set()).add(name)
    found: dict[str, None] = {}
    for name in names:
        same = list(alike[shortened(name, length)])
        inner = name if len(same) == 1 else without_common_ends(same, kept=7)[same.index(name)]
        short, number = shortened(inner, length), 1
        own = short
        while own in found:
            number += 1
            own = f"{short} ({number})"
        found[own] = None
    return list(found)


# ------------------------------------------------------------------ numbers over the steps, or over the share of tasks


class ChartLine(NamedTuple):
    """A line of a chart, with its numbers at every place of the frame."""

    what: str  # such as "worst"
    whose: str  # the label of the subject
    band: Band


class Frame(NamedTuple):
    """Lines over one axis: the content of a chart, and of the table behind it."""

    axis: str
    places: np.ndarray
    series: list[ChartLine]
    at: str = "step {}"  # a place in words

    def name(self, series: ChartLine) -> str:
        """The name of a line among the others."""
        return series.what if len({one.whose for one in self.series}) == 1 else f"{series.what}, {series.whose}"


def losses_over_steps(subjects: Sequence[Subject]) -> Frame:
    """The worst and the mean validation loss, and the worst loss on other rows."""
    lines = []
    for subject in subjects:
        histories = [run.history for run in subject.runs]
        lines += [("worst", subject, [history.worst for history in histories])]
        lines += [("mean", subject, [history.mean for history in histories])]
        for role in ("selection", "test"):
            if all(role in history for history in histories):
                lines.append((f"worst on {role} rows", subject, [history[role].max(axis=1) for history in histories]))
    return _over_steps(lines)


def regrets_over_steps(subjects: Sequence[Subject]) -> Frame | None:
    """The worst regret on each kind of rows; None if baselines are not known."""
    lines = [
        (f"on {role} rows", subject, [np.nanmax(known.regrets(run.history[role]), axis=1) for run in subject.runs])
        for subject in subjects
        if (known := subject.baselines) is not None and len(subject.alike) == len(subject.runs)
        for role in ROLES
        if all(role in run.history for run in subject.runs)
    ]
    return _over_steps(lines) if lines else None


def metrics_over_steps(subjects: Sequence[Subject]) -> Frame | None:
    """The mean of every metric over the tasks; None if there are no metrics."""
    lines = [
        (short, subject, [mean(run.history[name], axis=1) for run in subject.runs])
        for subject in subjects
        for name, short in zip(subject.metrics, distinct(subject.metrics, LABEL), strict=True)
    ]
    return _over_steps(lines) if lines else None


def weights_over_steps(subject: Subject) -> Frame | None:
    """The weights of the heaviest tasks, and the range of the others; None if no weight moves."""
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
    ends = []
    for of in (np.median, np.min, np.max):
        steps, rows = over_steps(runs, [of(run.history.weights[:, others], axis=1) for run in runs])
        ends.append(np.interp(frame.places, steps, of(rows, axis=0)))
    return frame._replace(series=[*frame.series, ChartLine(OTHERS, subject.label, Band(*ends))])


def shares(subjects: Sequence[Subject]) -> Frame:
    """The quantiles of the losses over the tasks, from the best task to the worst."""
    shares, series = np.arange(101.0), []
    for subject in subjects:
        for role in subject.roles:
            # NaN counts as the worst, and comes last.
            losses = [np.sort(np.asarray(getattr(run.last, ROLES[role]), float)) for run in subject.runs]
            rows = [own[np.ceil(shares / 100 * (len(own) - 1)).astype(int)] for own in losses]
            series.append(ChartLine(role, subject.label, Band.over(np.stack(rows))))
    return Frame("share of tasks, %", shares, series, at="{} % of the tasks")


def _over_steps(lines: Sequence[tuple[str, Subject, list[np.ndarray]]]) -> Frame:
    """Lines over the steps of all runs, at `POINTS` of them at most; a line ends with its longest run."""
    runs = [run for _, subject, _ in lines for run in subject.runs]
    steps = thinned(np.unique(np.concatenate([run.history.step for run in runs])), POINTS)
    series = []
    for what, subject, values in lines:
        own, rows = over_steps(subject.runs, values)
        band = Band.over(np.stack([np.interp(steps, own, row, right=np.nan) for row in rows]))
        series.append(ChartLine(what, subject.label, band))
    return Frame("step", steps, series)


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """At most this many of the values, evenly spaced, with the first and the last.

    >>> thinned(np.arange(10), 4)
    array([0, 3, 6, 9])
    """
    return values[np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))]
