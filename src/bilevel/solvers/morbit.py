"""MORBiT: min-max multi-objective bilevel optimization, single loop.

Step k, with alpha, beta, gamma the rates of x, y and the weights (lambda):

    (1)  y_i^{k+1}     = y_i^k - beta h_i,                     h_i  ~ grad_y g_i(x^k, y_i^k)          every task i
    (2)  x^{k+1}       = proj_X (x^k - alpha h_x),             h_x  ~ sum_i lambda_i^k D_i(x^k, y_i^{k+1})
    (3)  lambda^{k+1}  = proj_simplex (lambda^k + gamma l),    l_i  ~ f_i(x^k, y_i^{k+1})

where D_i = f_x - J A^-1 f_y is estimated by the hypergradient. (2) and (3) both look at the old x, the old weights and
the new y.

Theory: O(sqrt(n) K^{-2/5}) for the proximal residual of x, the lower errors and the gap in lambda is what the paper
claims for alpha ~ K^{-3/5}, beta ~ K^{-2/5}, gamma ~ n^{-1/2} K^{-3/5} and the RandomNeumann estimator. Automatic rates
and the other estimators are our extension.

Reference: Gu, Lu, Ram, Weng, "Min-max multi-objective bilevel optimization with applications in robust machine
learning", ICLR 2023, Algorithm 1.
"""

from __future__ import annotations

import jax

from bilevel._core import values
from bilevel._core.module import part
from bilevel.hypergradients.upper import Upper
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import EstimatorSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State


@part
class MORBiT(EstimatorSolver):
    """MORBiT, the paper's Algorithm 1: min-max over the tasks, in a single loop.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        hypergradient: an estimator from `bl.hypergradients`; the paper's theory has `RandomNeumann`.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for, `optax.sgd`.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
        lower_steps: lower steps per step; the paper has 1.

    >>> import bilevel as bl
    >>> bl.MORBiT(upper_lr=0.1, lower_lr=0.4, weighting=bl.weightings.SimplexAscent(lr=0.02)).lower_steps
    1
    """

    lower_steps: int = 1

    replays = True  # x moves after lower steps, which `Unrolled` can take again
    card = Card(
        loops="single",
        keeps="nothing (v with the Tracked estimator, n d_y)",
        rate="O~(n^1.25 eps^-2.5), claimed, for min-max",
        paper="Gu, Lu, Ram, Weng, ICLR 2023",
        extension="automatic rates; estimators other than RandomNeumann; weightings other than SimplexAscent",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and a number of lower steps."""
        super().check(problem)
        values.whole("lower_steps", self.lower_steps, of=type(self).__name__)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """(1), (2), (3)."""
        lower_key, upper_key = jax.random.split(key)
        state, beta, replay = self.descend(problem, state, lower_key, self.lower_steps)  # (1)
        oracle = Upper(problem, self.hypergradient, replay)
        seen = oracle.direction(self.point(state), problem.draw_upper(upper_key))  # h_x and f_i, at y^{k+1}
        state, alpha = self.move_x(problem, state, seen)  # (2)
        state, gamma = self.move_weights(state, seen.losses)  # (3)
        return self.finish(problem, state, seen, alpha, beta, gamma)
