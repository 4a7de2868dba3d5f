"""The tables of a page: rows of texts and numbers, each row beginning with what it is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bilevel.diagnostics.certificate import Certificate
from bilevel.report.frames import Frame, thinned
from bilevel.report.subject import ROLES, Band, Subject, shortened

TASKS = 100  # rows of the table of tasks
ROWS = 21  # of the table behind a chart
MEDIANS = "medians (and 10 % to 90 % quantiles)"
LONGEST_TEXT = 20_000  # letters of a solver's text


class Spread(NamedTuple):
    """A median over runs, and the quantiles around it."""

    middle: float
    low: float
    high: float


Cell = str | float | Spread | None


class Table(NamedTuple):
    """A table; its caption says what the numbers are."""

    caption: str
    head: list[str]
    rows: list[list[Cell]]


class Section(NamedTuple):
    """What a caller puts before all else: losses of a model on rows that the runs did not have.

    A page with one is about this model; the runs in which it was learnt come after it.
    """

    title: str
    verdict: str
    facts: list[tuple[str, str]]
    sentences: list[str]
    table: Table
    about: str  # the runs
    labels: tuple[str, str]  # of the run, and of the one that it is shown against


def number(value: float | None, digits: int = 5) -> str:
    """A number as a page shows it.

    >>> number(0.123456789), number(12000), number(math.inf), number(None)
    ('0.12346', '12,000', 'infinite', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def tasks(subject: Subject, against: Subject | None) -> Table:
    """Every task's losses, metrics and weight, the worst task first; beside them the other runs' losses."""
    order = worst_first(subject)[:TASKS]
    columns: dict[str, Band] = {}
    for role in subject.roles:
        columns[role] = subject.losses(role)
        if against is not None and against.has(role):
            columns[f"{role}, {against.label}"] = matched(subject, against, role)
    if subject.baselines is not None:
        columns["baseline"] = Band.over(np.asarray(subject.baselines.values)[None])
        columns |= {f"regret, {role}": subject.regrets(role) for role in subject.roles}
    columns["weight"] = subject.weights
    columns |= {f"{role}, best iterate": subject.losses(role, "best") for role in subject.roles}
    columns |= subject.metrics
    rows: list[list[Cell]] = [[subject.names[i], *(_cell(band, i) for band in columns.values())] for i in order]
    return Table(_tasks_caption(subject, len(order)), ["task", *(shortened(name, 60) for name in columns)], rows)


def _tasks_caption(subject: Subject, shown: int) -> str:
    count, runs = len(subject.names), len(subject.alike)
    which = "All tasks" if shown == count else f"The {shown} worst of {number(count)} tasks"
    of = f"; {MEDIANS} of {runs} runs" if runs > 1 else ""
    return f"{which}, by their validation loss at the end of the run{of}. The best iterate has the lowest worst loss."


def worst_first(subject: Subject) -> np.ndarray:
    """The numbers of the tasks, the largest validation loss first; what is not a number is worst."""
    losses = subject.losses("validation").middle
    return np.argsort(-np.where(np.isnan(losses), np.inf, losses), kind="stable")


def matched(subject: Subject, other: Subject, role: str) -> Band:
    """The losses of another subject's tasks of the same names; NaN where it has no such task."""
    place = {str(name): i for i, name in enumerate(other.runs[0].y.names)}
    found = [place.get(str(name), -1) for name in subject.runs[0].y.names]
    losses = other.losses(role)
    return Band(*(np.append(own, np.nan)[found] for own in losses))


def behind(frame: Frame, title: str) -> Table:
    """The numbers of a chart, at some of its places."""
    chosen = thinned(np.arange(len(frame.places)), ROWS)
    rows: list[list[Cell]] = [
        [as_place(float(frame.places[k])), *(_cell(s.band, k) for s in frame.series)] for k in chosen
    ]
    part = "" if len(chosen) == len(frame.places) else f", at {len(chosen)} of the {len(frame.places)} points drawn"
    return Table(f"{title}{part}.", [frame.axis, *map(frame.name, frame.series)], rows)


def _cell(band: Band, i: int) -> float | Spread:
    """A number of a task or at a place, with its spread where it has one."""
    own = Spread(*(float(end[i]) for end in band))
    return own if band.is_spread else own.middle


def as_place(value: float) -> int | float:
    """A step, or a share, as a whole number where it is one."""
    return int(value) if float(value).is_integer() else float(value)


def iterates(subject: Subject) -> Table:
    """What `result.last`, `.best`, `.random` and `.average` reached; medians where there are several runs."""
    head, rows = ["iterate"], []
    for role in subject.roles:
        head += [f"worst, {role}", f"mean, {role}"]
    with_regrets = [] if subject.baselines is None else subject.roles
    head += [f"worst regret, {role}" for role in with_regrets]
    for name in ("last", "best", "random", "average"):
        own: list[Cell] = [name]
        for role in subject.roles:
            losses = [np.asarray(getattr(getattr(run, name), ROLES[role]), float) for run in subject.runs]
            own += [float(np.median([of(one) for one in losses])) for of in (np.max, np.mean)]
        own += [float(np.median(subject.worst_regret(role, name))) for role in with_regrets]
        rows.append([*own, _worst_tasks(subject, name)])
    several = f" Medians of {len(subject.runs)} runs." if subject.is_several else ""
    return Table(f"The iterates that a result keeps.{several}", [*head, "worst task"], rows)


def _worst_tasks(subject: Subject, iterate: str) -> str:
    names = [str(getattr(run, iterate).worst_task) for run in subject.runs]
    most = max(names, key=names.count)
    return shortened(most, 60) + (f" ({names.count(most)} of {len(names)} runs)" if len(names) > 1 else "")


def certificate(given: Certificate) -> Table:
    """The gaps of a certificate."""
    rows: list[list[Cell]] = [
        ["x", given.x_gap, f"‖x̂ − x‖², how far x is from its proximal point; rho = {given.rho:.3g}"],
        ["y", given.y_gap, f"max ‖yᵢ − yᵢ*‖², how far y is from solving its task; task {given.worst_task}"],
        ["weights", given.weights_gap, f"the worst {given.compares} less the weighted one, with every y solved for"],
        ["residual", given.residual, "‖x − proj(x − ∇F)‖, the projected gradient"],
    ]
    return Table("Gaps of the certified point; all are zero at a solution.", ["gap", "value", "what it is"], rows)


def settings(subjects: Sequence[Subject]) -> Table:
    """How the runs were made, a column for each subject."""
    facts = {
        "solver": [_text(s) for s in subjects],
        "tasks": [number(len(s.names)) for s in subjects],
        "steps": [_range([run.steps for run in s.runs]) for s in subjects],
        "evaluations": [_range([run.history.evaluations for run in s.runs]) for s in subjects],
        "seeds" if any(s.is_several for s in subjects) else "seed": [_seeds(s) for s in subjects],
        "seconds": [_range([round(float(run.seconds), 2) for run in s.runs]) for s in subjects],
        "of which compiling": [_range([round(float(run.compile_seconds), 2) for run in s.runs]) for s in subjects],
    }
    return Table("How the runs were made.", ["", *(s.label for s in subjects)], [[k, *v] for k, v in facts.items()])


def _text(subject: Subject) -> str:
    texts = dict.fromkeys(str(run.solver if isinstance(run.solver, str) else repr(run.solver)) for run in subject.runs)
    return "\n".join(texts)[:LONGEST_TEXT]


def _seeds(subject: Subject) -> str:
    seeds = [str(int(run.seed)) for run in subject.runs]
    return ", ".join(seeds[:20]) + (f" and {len(seeds) - 20} more" if len(seeds) > 20 else "")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"
