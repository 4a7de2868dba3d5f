"""SOBA: stochastic bilevel algorithm, single loop: x, y and the linear system move at once.

Step k, everything at (x^k, y^k, v^k), one batch for all terms of g and one for all of f:

    (1)  y^{k+1} = y^k - rho grad_y g
    (2)  v^{k+1} = v^k - rho (A v^k - f_y)
    (3)  x^{k+1} = proj_X (x^k - alpha (f_x - J v^k))
    (4)  lambda^{k+1} from the losses f_i(x^k, y_i^k)

The paper's v has the other sign. All moves are simultaneous, so that they can run in parallel; MORBiT with the
`Tracked` estimator takes them one after the other (y, v at the new y, x with the new v) and lags less.

Published for one task without constraint: rho ~ K^{-2/5} and alpha ~ K^{-3/5} with O(eps^-2.5) samples in the
submitted version; the published one is said to reach O(eps^-2) with both ~ K^{-1/2} (not confirmed). Constraint,
several tasks and weights (4) are our extension, without a theorem.

Reference: Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global
variance reduction algorithms", NeurIPS 2022.
"""

from __future__ import annotations

import jax

from bilevel._core.module import part
from bilevel.lower.steps import lower_gradients
from bilevel.problem.problem import Problem
from bilevel.solvers._base.linear_system import LinearSystemSolver, rows_of_g
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State


@part
class SOBA(LinearSystemSolver):
    """SOBA: y, v and x move at once.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (rho), likewise; None gives every task its own.
        v_lr: the rate of v; None = that of y, as published.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for, `optax.sgd`.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
    """

    moves_at_once = True
    card = Card(
        loops="single",
        keeps="v (n d_y)",
        rate="O(eps^-2.5); O(eps^-2) by a later analysis (arXiv 2306.12067)",
        paper="Dagréou, Ablin, Vaiter, Moreau, NeurIPS 2022",
        extension="constraint, several tasks, weights",
    )

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Everything at the old point."""
        samples = problem.draw_upper(key)
        rows = rows_of_g(samples)
        state, beta = self.lower_rates(problem, state, rows)
        seen, residual = self.oracle(problem).with_residuals(self.point(state), samples)
        state = self.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta)  # (1)
        v = self.move_v(state.v, residual, beta)  # (2)
        return self.move_x_and_weights(problem, state, beta, seen._replace(v=v))  # (3), (4)
