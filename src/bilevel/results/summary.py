"""The text of `Result.summary`: a table of the iterates, the choice of the best, the verdict, the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bilevel._core.averages import mean
from bilevel.results.history import fraction_of, in_words, of_distribution

if TYPE_CHECKING:
    from bilevel.results.history import Iterate
    from bilevel.results.result import Result

HELD_OUT = ("selection", "test")
KEPT = ("last", "best")  # the iterates whose regrets are shown


def text(result: Result) -> str:
    """The whole summary."""
    solver = result.solver
    name = solver.partition("(")[0].split(".")[-1] if isinstance(solver, str) else type(solver).__name__
    title = name if result.objective is None else f"{name} ({result.objective})"
    lines = [
        f"{title}: {result.status} after {result.steps} steps, {_times(result)}. {result.message}".rstrip(),
        # The message is about the divergence that ended the run.
        *(event.line for event in result.divergences if event.factor is not None),
        *iterates(result),
        *tails(result),
        *regrets(result),
        chosen_by(result),
        verdict(result),
    ]
    if of_distribution(solver) is None:  # tasks from a distribution have no weights of their own
        largest = np.argsort(-result.weights, kind="stable")[:5]
        weights = ", ".join(f"{result.y.names[int(i)]} {result.weights[i]:.3f}" for i in largest)
        lines.append(f"largest weights: {weights}")
    lines.extend(_measured(result, name, own) for name, own in result.last.metrics.items())
    lines.extend(f"- {finding}" for finding in result.findings)
    return "\n".join(lines)


def _times(result: Result) -> str:
    compiling = f", of which {result.compile_seconds:.1f} s compiling" if result.compile_seconds >= 0.05 else ""
    return f"{result.seconds:.1f} s{compiling}"


def _measured(result: Result, name: str, own: np.ndarray) -> str:
    low, high = int(np.argmin(own)), int(np.argmax(own))
    ends = f"from {own[low]:.5g} ({result.y.names[low]}) to {own[high]:.5g} ({result.y.names[high]})"
    return f"{name}: mean {mean(own):.5g}, {ends}"


def iterates(result: Result) -> list[str]:
    """The table of iterates: worst and mean losses, and the worst tasks on validation and on test rows."""
    shown = {name: getattr(result, name) for name in ("last", "best", "random", "average")}
    roles = [role for role in HELD_OUT if getattr(result.last, f"{role}_losses") is not None]
    head = "".join(f"{title:>12}" for title in ("worst", "mean"))
    head += "".join(f"{role + ' ' + what:>{_width(role)}}" for role in roles for what in ("worst", "mean"))
    names = {name: _worst_tasks(iterate) for name, iterate in shown.items()}
    width = max(len("worst task"), *(len(own[0]) for own in names.values()))
    titles = [f"{'worst task':<{width}}", "worst test task"][: len(names["last"])]
    lines = [f"{'iterate':<10}{head}  {'  '.join(titles)}".rstrip()]
    for name, iterate in shown.items():
        cells = f"{iterate.worst:>12.5g}{iterate.mean:>12.5g}"
        for role in roles:
            for what in ("worst", "mean"):
                cells += f"{getattr(iterate, f'{role}_{what}'):>{_width(role)}.5g}"
        first, *others = names[name]
        lines.append(f"{name:<10}{cells}  {'  '.join([f'{first:<{width}}', *others])}".rstrip())
    return lines


def _width(role: str) -> int:
    return max(12, len(role) + 8)


def _worst_tasks(iterate: Iterate) -> list[str]:
    tested = [] if iterate.test_worst_task is None else [iterate.test_worst_task]
    return [str(name) for name in (iterate.worst_task, *tested)]


def tails(result: Result) -> list[str]:
    """A line on the mean over the worst fraction of the tasks, where that is the objective."""
    fraction = fraction_of(result.solver)
    if fraction is None:
        return []
    told = ", ".join(f"{name} {getattr(result, name).tail(fraction):.5g}" for name in KEPT)
    return [f"{in_words(fraction, 'validation')}: {told}"]


def regrets(result: Result) -> list[str]:
    """A line for the last and one for the best iterate: the worst regret and its task on each kind of rows."""
    known = result.baselines
    if known is None:
        return []
    lines = []
    for name in KEPT:
        worst = getattr(result, name).worst_regrets(known)
        told = "; ".join(f"{role} {own.value:.5g} ({own.task})" for role, own in worst.items())
        lines.append(f"worst regret, {name}: {told}")
    return lines


def verdict(result: Result) -> str:
    """A line that says whether the loss had stopped changing."""
    return f"verdict: {result.verdict}" + _AND_SO.get(result.verdict, "")


_AND_SO = {
    "settled": " (the loss has stopped changing; bl.certify measures how near a solution that is)",
    "noisy": " (the loss goes up and down)",
    "still moving": " (the loss had not settled when the run ended: more steps, or smaller rates, would tell)",
    "not known": " (of too few evaluations, or of losses that do not say which iterate is better)",
}


def chosen_by(result: Result) -> str:
    """A line that says how the best iterate was chosen."""
    if result.best_by == "last":
        return "The best is the last iterate: here a lower loss is not a better one."
    fraction = of_distribution(result.solver)
    lowest = f"worst {result.best_by} loss" if fraction is None else in_words(fraction, result.best_by)
    words = f"The best has the lowest {lowest} of {result.history.evaluations} evaluations"
    if result.history.tasks is not None and fraction is None:
        words += ", each of some of the tasks (the table is of all)"
    if fraction is not None:
        return f"{words}, on tasks that x never saw."
    if result.best_by == "selection":
        return f"{words}, on rows that x never saw."
    if not result.fits_validation:
        return f"{words}."
    return f"{words}, on rows that x was fitted to: selection rows, which bl.split makes, would tell more of new rows."
