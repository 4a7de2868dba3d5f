"""The tables and sentences of a page: tasks, iterates, settings; the verdict, the comparison, the findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bilevel.diagnostics.certificate import Certificate
from bilevel.report.subject import ROLES, Band, Frame, Subject, shortened, thinned

TASKS = 100  # rows of the table of tasks
ROWS = 21  # of the table behind a chart
MEDIANS = "medians (and 10 % to 90 % quantiles)"
LONGEST_TEXT = 20_000  # letters of a solver's repr
EQUAL = 0.005  # a smaller relative difference counts as none
# A status as a verb; others are verbs.
ENDED = {"interrupted": "was interrupted", "callback failed": "ended by a callback that failed"}


class Spread(NamedTuple):
    """A median over runs, and the quantiles around it."""

    middle: float
    low: float
    high: float


Cell = str | float | Spread | None


class PageTable(NamedTuple):
    """A table; its caption says what the numbers are, and the first column what a row is about."""

    caption: str
    head: list[str]
    rows: list[list[Cell]]


class Section(NamedTuple):
    """A first section from the caller: the losses of a model on rows that its runs did not have.

    The page is then about this model, and the runs that learnt it come after the section.
    """

    title: str
    verdict: str
    facts: list[tuple[str, str]]
    sentences: list[str]
    table: PageTable
    about: str  # introduces the runs
    labels: tuple[str, str]  # of the run, and of the one it is compared with


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


def tasks(subject: Subject, against: Subject | None) -> PageTable:
    """The losses, metrics and weight of every task, the worst task first, beside the losses of the other runs."""
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
    count, runs = len(subject.names), len(subject.alike)
    which = "All tasks" if len(order) == count else f"The {len(order)} worst of {number(count)} tasks"
    by = "their validation loss at the end of the run" + (f"; {MEDIANS} of {runs} runs" if runs > 1 else "")
    caption = f"{which}, by {by}. The best iterate has the lowest worst loss."
    return PageTable(caption, ["task", *(shortened(name, 60) for name in columns)], rows)


def worst_first(subject: Subject) -> np.ndarray:
    """The numbers of the tasks, the largest validation loss first; NaN counts as the worst."""
    losses = subject.losses("validation").middle
    return np.argsort(-np.where(np.isnan(losses), np.inf, losses), kind="stable")


def matched(subject: Subject, other: Subject, role: str) -> Band:
    """The losses of the tasks with the same names in another subject; NaN for a task that it does not have."""
    place = {str(name): i for i, name in enumerate(other.runs[0].y.names)}
    found = [place.get(str(name), -1) for name in subject.runs[0].y.names]
    losses = other.losses(role)
    return Band(*(np.append(own, np.nan)[found] for own in losses))


def behind(frame: Frame, title: str) -> PageTable:
    """The table behind a chart: its numbers at some of its places."""
    chosen = thinned(np.arange(len(frame.places)), ROWS)
    rows: list[list[Cell]] = [
        [as_place(float(frame.places[k])), *(_cell(s.band, k) for s in frame.series)] for k in chosen
    ]
    part = "" if len(chosen) == len(frame.places) else f", at {len(chosen)} of the {len(frame.places)} points drawn"
    return PageTable(f"{title}{part}.", [frame.axis, *map(frame.name, frame.series)], rows)


def _cell(band: Band, i: int) -> float | Spread:
    own = Spread(*(float(end[i]) for end in band))
    return own if band.is_spread else own.middle


def as_place(value: float) -> int | float:
    """A step or a share; as an integer if it is one."""
    return int(value) if float(value).is_integer() else float(value)


def iterates(subject: Subject) -> PageTable:
    """The losses of `result.last`, `.best`, `.random` and `.average`; medians if there are several runs."""
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
        task, times = Counter(str(getattr(run, name).worst_task) for run in subject.runs).most_common(1)[0]
        counted = f" ({times} of {len(subject.runs)} runs)" if subject.is_several else ""
        rows.append([*own, shortened(task, 60) + counted])
    several = f" Medians of {len(subject.runs)} runs." if subject.is_several else ""
    return PageTable(f"The iterates that a result keeps.{several}", [*head, "worst task"], rows)


def certificate(given: Certificate) -> PageTable:
    """The gaps of a certificate."""
    rows: list[list[Cell]] = [
        ["x", given.x_gap, f"‖x̂ − x‖², how far x is from its proximal point; rho = {given.rho:.3g}"],
        ["y", given.y_gap, f"max ‖yᵢ − yᵢ*‖², how far y is from solving its task; task {given.worst_task}"],
        ["weights", given.weights_gap, f"the worst {given.compares} less the weighted one, with every y solved for"],
        ["residual", given.residual, "‖x − proj(x − ∇F)‖, the projected gradient"],
    ]
    if not np.isnan(given.gain):
        verdict = "x is stationary" if given.stationary else "x is not stationary"
        gained = f"what {given.descent} steps of Descent gain from x, as a share of the objective: {verdict}"
        rows.append(["descent", given.gain, gained])
    return PageTable("Gaps of the certified point; all are zero at a solution.", ["gap", "value", "what it is"], rows)


def settings(subjects: Sequence[Subject]) -> PageTable:
    """The settings of the runs, with a column for each subject."""
    names = ["solver", "tasks", "steps", "evaluations"]
    names += ["seeds" if any(s.is_several for s in subjects) else "seed", "seconds", "of which compiling"]
    rows: list[list[Cell]] = [list(row) for row in zip(names, *map(_settings, subjects), strict=True)]
    return PageTable("How the runs were made.", ["", *(s.label for s in subjects)], rows)


def _settings(subject: Subject) -> list[str]:
    runs = subject.runs
    solvers = dict.fromkeys(run.solver if isinstance(run.solver, str) else repr(run.solver) for run in runs)
    seeds = [str(int(run.seed)) for run in runs]
    return [
        "\n".join(solvers)[:LONGEST_TEXT],
        number(len(subject.names)),
        _range([run.steps for run in runs]),
        _range([run.history.evaluations for run in runs]),
        ", ".join(seeds[:20]) + (f" and {len(seeds) - 20} more" if len(seeds) > 20 else ""),
        _range([round(float(run.seconds), 2) for run in runs]),
        _range([round(float(run.compile_seconds), 2) for run in runs]),
    ]


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


# ------------------------------------------------------------------ sentences


def verdict(subject: Subject) -> str:
    """One sentence with the end of the run, the worst loss and the worst task."""
    runs = subject.runs
    names = Counter(shortened(str(run.worst_task), 60) for run in runs)
    worst, times = names.most_common(1)[0]
    loss, mean = subject.worst("validation"), subject.mean("validation")
    if not subject.is_several:
        run = runs[0]
        stands = "" if run.verdict in ("not known", run.status) else f" ({run.verdict})"
        ended = f"{subject.label} {ENDED.get(run.status, run.status)} after {run.steps:,} steps{stands}"
        losses = f"with a validation loss of {short(loss[0])}; the mean is {short(mean[0])}"
        return f"{ended}: the worst task is “{worst}” {losses}.{_regret(subject)}"
    counts = Counter(run.status for run in runs)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    spread = f"{short(np.median(loss))} (median; from {short(loss.min())} to {short(loss.max())})"
    return (
        f"{subject.label}, {len(runs)} runs ({statuses}): the worst validation loss is {spread}, "
        f"in {times} of {len(runs)} runs that of “{worst}”; the mean is {short(np.median(mean))}.{_regret(subject)}"
    )


def _regret(subject: Subject) -> str:
    found = subject.worst_regrets("validation")
    if not found:
        return ""
    task, times = Counter(shortened(regret.task, 60) for regret in found).most_common(1)[0]
    whose = f"in {times} of {len(found)} runs that of “{task}”" if len(found) > 1 else f"that of “{task}”"
    worst = float(np.median([regret.value for regret in found]))
    return f" The worst regret, a loss less what its task could reach, is {short(worst)}, {whose}."


def comparison(subject: Subject, against: Subject) -> list[str]:
    """Sentences that compare the worst and the mean loss with those of other runs, on each kind of rows."""
    said = []
    for role in subject.roles:
        if not against.has(role):
            continue
        both = (subject, against)
        pairs = {
            "worst loss": [one.worst(role) for one in both],
            "mean loss": [one.mean(role) for one in both],
            "worst regret": [one.worst_regret(role) for one in both],
        }
        parts = []
        for name, values in pairs.items():
            if all(map(len, values)):  # regrets may not be known
                own, other = (float(np.median(of_runs)) for of_runs in values)
                parts.append(f"the {name} is {_change(own, other)} ({short(own)} against {short(other)})")
        said.append(f"Against {against.label}, on {role} rows: {'; '.join(parts)}.")
    return said


def _change(own: float, other: float) -> str:
    """A difference in words.

    >>> _change(0.9, 1.0), _change(1.1, 1.0), _change(1.0, 1.0), _change(-1.0, 2.0)
    ('10 % lower', '10 % higher', 'the same', 'lower')
    """
    if not np.isfinite(own) or not np.isfinite(other):
        return "not comparable"
    if abs(own - other) <= EQUAL * abs(other):
        return "the same"
    word = "lower" if own < other else "higher"
    return f"{abs(own - other) / other:.0%} {word}".replace("%", " %") if min(own, other) > 0 else word


def findings(subject: Subject) -> list[str]:
    """The divergences and findings of the runs; if there are several runs, with their seeds."""
    seeds: dict[str, list[str]] = {}
    for run in subject.runs:
        messages = [run.message] if run.message and run.status not in ("converged", "finished") else []
        for sentence in (*(event.line for event in run.divergences), *messages, *map(str, run.findings)):
            seeds.setdefault(sentence, []).append(str(int(run.seed)))
    if not subject.is_several:
        return list(seeds)
    return [f"Seed{'s' * (len(own) > 1)} {', '.join(own)}: {sentence}" for sentence, own in seeds.items()]


def differing_tasks(subject: Subject) -> str | None:
    """A remark if the runs have different tasks."""
    if len(subject.alike) == len(subject.runs):
        return None
    count = len(subject.alike)
    whose = "run" if count == 1 else f"{count} runs"
    return f"The runs have different tasks: what follows by task is of the {whose} with those of the first."


def short(value: float) -> str:
    """A number in a sentence."""
    return "not a number" if np.isnan(value) else number(float(value), 4)
