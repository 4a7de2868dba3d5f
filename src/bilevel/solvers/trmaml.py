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

Tasks that form one group: only those drawn are computed. Tasks in several groups: all are computed and those not drawn
count for nothing, because how many of each group are drawn differs from step to step and compiled shapes cannot.

Reference: Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.problem import checks
from bilevel.problem.minmax import MinMaxProblem
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.single_level import SingleLevelSolver, State, weighted_slope
from bilevel.solvers._base.solver import Info


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
        if self.tasks_per_step is not None:
            checks.check_part("TRMAML(tasks_per_step)", self.tasks_per_step, problem.size)

    def step(self, problem: MinMaxProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Draws tasks, then both moves from the old point."""
        task_key, row_key = jax.random.split(key)
        chosen = None
        if self.tasks_per_step is not None:
            chosen = jax.random.permutation(task_key, problem.size)[: self.tasks_per_step]  # (1)
        direction, losses = estimate(problem, state.x, state.weights, chosen, row_key)
        state, info = self.finish(problem, state, direction, losses)  # (2), (3)
        return state, info._replace(losses=losses * (1 if chosen is None else len(chosen) / problem.size))


def estimate(
    problem: MinMaxProblem, x: Any, weights: jax.Array, chosen: jax.Array | None, key: jax.Array
) -> tuple[Any, jax.Array]:
    """g_x and g_p from the tasks so numbered; None = all of them."""
    if chosen is None:
        return weighted_slope(problem, x, weights, problem.draw(key))
    scale = problem.size / chosen.shape[0]
    if len(problem.groups) > 1:
        share = jnp.zeros_like(weights).at[chosen].set(scale)
        direction, losses = weighted_slope(problem, x, share * weights, problem.draw(key))
        return direction, share * losses
    # One group holds all tasks in their order, so that a task's number is its place.
    few = problem.chosen(chosen)
    direction, losses = weighted_slope(few, x, scale * weights[chosen], few.draw(key))
    return direction, jnp.zeros_like(weights).at[chosen].set(scale * losses)
