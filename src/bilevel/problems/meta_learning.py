"""Task-robust meta-learning: a starting point x from which every task, the worst too, learns in a step or a few.

    F_i(x) = loss of task i on its validation rows at x - lr grad loss(x; its training rows)

References: Finn, Abbeel, Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017;
Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bilevel.problem.minmax import Adapted, MinMaxProblem
from bilevel.problem.task import Task
from bilevel.problems.hyperparameters import Ready


def maml(
    loss: Callable,
    tasks: Sequence[Task],
    x: Any,
    lr: float,
    steps: int = 1,
    batch: int | None = None,
    constraint: Any = None,
) -> Ready:
    """Meta-learning with any loss, for `bl.TRMAML` and its kin.

    Args:
        loss: loss(x, batch) of one task.
        tasks: training rows to adapt on, validation rows to look at.
        x: where the shared starting point starts, for instance the parameters of a network.
        lr: of the tasks' own steps.
        steps: how many of them.
        batch: rows per step and task, of each kind; None = all.
        constraint: the set of x, from `bl.constraints`; None = unconstrained.
    """
    return Ready(MinMaxProblem(loss, tasks, constraint, batch, Adapted(lr, steps)), x)
