"""TRMAML: task-robust meta-learning (TR-MAML), descent ascent on some of the tasks at a time.

Step k, both at (x^k, p^k), with p the weights:

    (1)  I             = C of the n tasks, uniformly, without replacement
    (2)  g_x           = (n / C) sum_{i in I} p_i^k grad F_i(x^k),       x^{k+1} = proj_X (x^k - alpha g_x)
    (3)  g_p           = (n / C) sum_{i in I} F_i(x^k) e_i,              p^{k+1} = proj_simplex (p^k + gamma g_p)

Both estimates are unbiased. F_i is the problem's objective; the paper's is `Adapted(lr)`, the loss of x moved by one
gradient step on the task's training rows, so that grad F_i holds the factor I - lr H_i. The paper draws the rows of H_i
apart from those of the step; here they are the same, so that grad F_i is the gradient of one function.

Published: O(eps^-2) steps until the average iterate's gap is below eps where the F_i are convex, O(eps^-5) until the
gradient norm is below eps otherwise. Other objectives,
weightings other than `SimplexAscent` and optax rules are our extension.

Reference: Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.per_task import InOrder
from bilevel.solvers._base.single_level import SingleLevelSolver, Slope, weighted_slope
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.task_subset import Chosen


@part
class TRMAML(SingleLevelSolver):
    """Task-robust MAML, for a `bl.MinMaxProblem` with `objective=bl.minmax.Adapted(lr)`.

    Args:
        upper_lr: the rate of x (alpha), a number or a schedule.
        weighting: how the tasks' losses move their weights, from `bl.weightings`, with an `lr` (gamma).
        upper_rule: from a rate to an optax transformation, for x.
        tasks_per_step: C; None = all tasks in every step.
    """

    tasks_per_step: int | None = None  # C

    card = Card(
        loops="single",
        keeps="nothing",
        rate="O(eps^-2) where convex (in the gap), O(eps^-2.5) otherwise",
        paper="Collins, Mokhtari, Shakkottai, NeurIPS 2020",
        extension="objectives other than Adapted, weightings other than SimplexAscent",
        problem="min-max",
    )

    def check(self, problem: MinMaxProblem) -> None:
        """As every solver, and a number of tasks."""
        super().check(problem)
        values.whole("tasks_per_step", self.tasks_per_step, most=problem.size, of="TRMAML", none="all tasks")

    def step(self, problem: MinMaxProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Draws tasks, then both moves from the old point."""
        task_key, row_key = jax.random.split(key)
        chosen = Chosen.draw(problem, task_key, self.tasks_per_step, state.weights.dtype)  # (1)
        seen = slope_of_chosen(problem, chosen, state.x, self.weights_of_x(state), row_key)
        scaled = seen._replace(losses=problem.size / chosen.count * seen.losses)
        state, info = self.finish(problem, state, scaled)  # (2), (3)
        return state, info._replace(losses=seen.losses)


def slope_of_chosen(
    problem: MinMaxProblem, chosen: Chosen[MinMaxProblem], x: Tree, weights: jax.Array, key: jax.Array
) -> Slope:
    """(n / C) sum_{i in I} p_i grad F_i(x); and F_i(x), which is 0 for tasks that are not in I."""
    own = problem.size / chosen.count * chosen.mask * chosen.take(weights)
    seen = weighted_slope(chosen.problem, x, own, chosen.problem.draw(key))
    losses = chosen.put(InOrder(jnp.zeros_like(weights)), InOrder(seen.losses)).value
    return Slope(seen.direction, losses)
