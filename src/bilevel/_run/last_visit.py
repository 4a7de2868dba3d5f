"""At the end of a run whose steps see some of the tasks, every task is visited once more, with x as it is.

A task was last visited some n / m steps ago, at another x: its y fits that one, and where a task has been visited a few
times in all, x has since gone so far that losses say more about when the task was visited than about x. So the iterates
that a run returns, the last, the best and the average, have y fitted to their own x on all training rows. The random
one is (x^t, y^{t+1}), of which theory speaks, and stays as it was.

It costs `STEPS` gradients of every task for each of the three, a block of tasks at a time, once. The run itself, its
history and what is kept of it to be resumed are not touched.
"""

from __future__ import annotations

from typing import Any

import jax

from bilevel._run.averaging import Variables
from bilevel.oracles.fitting import fitted
from bilevel.problem.base import BaseProblem
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.solvers._base import sampled
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import Solver

STEPS = 10  # of conjugate gradients


def is_needed(solver: Solver, problem: BaseProblem) -> bool:
    """Whether y may be of another x than the one that a run ends with."""
    if not isinstance(solver, BilevelSolver) or not isinstance(problem, Problem) or not solver.sampling.draws:
        return False
    return sum(sampled.counts(solver, problem)) < problem.size


def visited(problem: Any, point: Variables) -> Variables:
    """The same x and weights, and every y fitted to this x."""
    return point._replace(y=_fitted(problem, point.x, point.y))


@jax.jit
def _fitted(problem: Problem, x: Any, y: PerTask[Any]) -> PerTask[Any]:
    def one(task: TaskView, y: Any) -> Any:
        return fitted(task, x, y, STEPS)

    own = zip(problem.groups, y, strict=True)
    return PerTask(tuple(group.each(one, y_group, block=group.block(group.train)) for group, y_group in own))
