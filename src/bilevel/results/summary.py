"""The iterates of a result as a table of text, and what the best of them was chosen by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bilevel.results.iterate import Iterate
    from bilevel.results.result import Result

HELD_OUT = ("selection", "test")


def iterates(result: Result) -> list[str]:
    """A line for each iterate: worst and mean losses, and the worst tasks by validation and by test rows."""
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


def chosen_by(result: Result) -> str:
    """A line on what the best iterate was chosen by."""
    if result.best_by == "last":
        return "The best is the last iterate: here a lower loss is not a better one."
    words = f"The best has the lowest worst {result.best_by} loss of {result.history.evaluations} evaluations"
    if result.best_by == "selection":
        return f"{words}, on rows that x never saw."
    if not result.fits_validation:
        return f"{words}."
    return f"{words}, on rows that x was fitted to: selection rows, which bl.split makes, would tell more of new rows."
