"""The text of `Result.summary`: a table of the iterates, the choice of the best, the verdict, the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bilevel._core.averages import mean
from bilevel.results.history import fraction_of, in_words, of_distribution

if TYPE_CHECKING:
    from bilevel.results.result import Result

HELD_OUT = ("selection", "test")

AND_SO = {  # said after a verdict
    "settled": " (the loss has stopped changing; bl.certify measures how near a solution that is)",
    "noisy": " (the loss goes up and down)",
    "still moving": " (the loss had not settled when the run ended: more steps, or smaller rates, would tell)",
    "not known": " (of too few evaluations, or of losses that do not say which iterate is better)",
}


def text(result: Result) -> str:
    """The whole summary."""
    solver = result.solver
    name = solver.partition("(")[0].split(".")[-1] if isinstance(solver, str) else type(solver).__name__
    title = name if result.objective is None else f"{name} ({result.objective})"
    compiling = f", of which {result.compile_seconds:.1f} s compiling" if result.compile_seconds >= 0.05 else ""
    times = f"{result.seconds:.1f} s{compiling}"
    lines = [
        f"{title}: {result.status} after {result.steps} steps, {times}. {result.message}".rstrip(),
        # The message is about the divergence that ended the run.
        *(event.line for event in result.divergences if event.factor is not None),
        *iterates(result),
    ]
    fraction, known = fraction_of(solver), result.baselines
    kept = {"last": result.last, "best": result.best}
    if fraction is not None:
        tails = ", ".join(f"{which} {iterate.tail(fraction):.5g}" for which, iterate in kept.items())
        lines.append(f"{in_words(fraction, 'validation')}: {tails}")
    if known is not None:
        for which, iterate in kept.items():
            worst = [f"{role} {own.value:.5g} ({own.task})" for role, own in iterate.worst_regrets(known).items()]
            lines.append(f"worst regret, {which}: {'; '.join(worst)}")
    lines += [chosen_by(result), f"verdict: {result.verdict}{AND_SO.get(result.verdict, '')}"]
    if of_distribution(solver) is None:  # tasks from a distribution have no weights of their own
        largest = np.argsort(-result.weights, kind="stable")[:5]
        weights = ", ".join(f"{result.y.names[int(i)]} {result.weights[i]:.3f}" for i in largest)
        lines.append(f"largest weights: {weights}")
    for name, own in result.last.metrics.items():
        low, high = int(np.argmin(own)), int(np.argmax(own))
        ends = f"from {own[low]:.5g} ({result.y.names[low]}) to {own[high]:.5g} ({result.y.names[high]})"
        lines.append(f"{name}: mean {mean(own):.5g}, {ends}")
    lines.extend(f"- {finding}" for finding in result.findings)
    return "\n".join(lines)


def iterates(result: Result) -> list[str]:
    """The table of iterates: worst and mean losses, and the worst tasks on validation and on test rows."""
    shown = {name: getattr(result, name) for name in ("last", "best", "random", "average")}
    roles = [f"{role}_" for role in HELD_OUT if getattr(result.last, f"{role}_losses") is not None]
    columns = {f"{role}{what}": max(12, len(role) + 7) for role in ("", *roles) for what in ("worst", "mean")}
    tasks = ["worst_task", *["test_worst_task"] * ("test_" in roles)]
    width = max(len("worst task"), *(len(str(iterate.worst_task)) for iterate in shown.values()))
    head = "".join(f"{name.replace('_', ' '):>{size}}" for name, size in columns.items())
    titles = [f"{'worst task':<{width}}", "worst test task"][: len(tasks)]
    lines = [f"{'iterate':<10}{head}  {'  '.join(titles)}".rstrip()]
    for name, iterate in shown.items():
        cells = "".join(f"{getattr(iterate, column):>{size}.5g}" for column, size in columns.items())
        names = "  ".join(f"{getattr(iterate, task)!s:<{width}}" for task in tasks)
        lines.append(f"{name:<10}{cells}  {names}".rstrip())
    return lines


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
