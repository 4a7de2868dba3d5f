"""Task-robust meta-learning: a starting point x from which every task, even the worst, learns in one step or a few.

    F_i(x) = loss of task i on its validation rows at x - lr grad loss(x; its training rows)

References: Finn, Abbeel, Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017;
Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax

from bilevel.problem.minmax import Adapted, MinMaxProblem
from bilevel.problem.task import Task
from bilevel.problems.ready import Ready

if TYPE_CHECKING:
    from bilevel.constraints.sets import Constraint

X = TypeVar("X")


def maml(
    loss: Callable[..., jax.Array],
    tasks: Sequence[Task],
    x: X,
    lr: float,
    steps: int = 1,
    batch: int | None = None,
    constraint: Constraint | None = None,
) -> Ready[MinMaxProblem, X]:
    """Meta-learning with any loss, for `bl.TRMAML` and the other solvers of `bl.MinMaxProblem`.

    Args:
        loss: loss(x, batch) of one task.
        tasks: training rows to adapt on, validation rows to measure the loss on.
        x: where the shared starting point starts, for instance the parameters of a network.
        lr: of the tasks' own steps.
        steps: how many of them.
        batch: rows per step and task, of each kind; None = all.
        constraint: the set of x, from `bl.constraints`; None = unconstrained.
    """
    return Ready(MinMaxProblem(loss, tasks, constraint, batch, Adapted(lr, steps)), x)
