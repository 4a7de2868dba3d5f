"""How reports are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bilevel.diagnostics.exact import LowerSolution
from bilevel.diagnostics.spectrum import is_strongly_convex
from bilevel.problem.problem import Problem


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells, one under the other.

    >>> columns([("x", "1"), ("weights", "20")])
    ['x        1', 'weights  20']
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def one_of(problem: Problem, tasks: Any) -> str:
    """The first of some tasks by name, and how many more there are."""
    more = len(tasks) - 1
    return f"task {problem.names[int(tasks[0])]!r}" + (f" (and of {more} more)" if more else "")


def lower_remarks(problem: Problem, solved: LowerSolution, smallest: Any, largest: Any) -> list[str]:
    """Remarks on lower problems that were not solved, or have no unique solution."""
    remarks = []
    lost = np.flatnonzero(~np.asarray(solved.converged))
    if len(lost):
        remarks.append(
            f"The lower problem of {one_of(problem, lost)} was not solved (about {float(solved.errors[lost[0]]):.2g} "
            "away from its solution): the numbers are a guess."
        )
    flat = np.flatnonzero(~is_strongly_convex(smallest, largest))
    if len(flat):
        remarks.append(
            f"g of {one_of(problem, flat)} is not strongly convex in y at its solution (smallest curvature "
            f"{float(smallest[flat[0]]):.2g}): y* is not unique, or no minimum, and the numbers mean little."
        )
    return remarks
