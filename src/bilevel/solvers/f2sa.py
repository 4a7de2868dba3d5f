"""F2SA: fully first-order stochastic approximation: no second derivatives.

Step k, with s_k the strength of the penalty, T lower steps:

    (1)  T times  z <- z - beta grad_y g(x^k, z)                              z follows argmin g
    (2)  T times  p <- p - rho (f_y + s_k g_y)(x^k, p)                        p follows argmin f + s_k g
    (3)  x^{k+1} = proj_X (x^k - alpha (f_x(x^k, p) + s_k (g_x(x^k, p) - g_x(x^k, z))))
    (4)  lambda^{k+1} from the penalised losses f_i(x^k, p_i) + s_k (g_i(x^k, p_i) - g_i(x^k, z_i))

z is the y of the result. (2) and (3) are the `Penalty` estimator, in the order of moves that MORBiT has. Every step of
(1) and (2), and (3), draws rows of its own, as published. Both g of (3) see the same rows, or s_k would multiply their
noise.

Published for one task without constraint, s_k ~ k^{1/7}, rho ~ k^{-5/7}, beta ~ k^{-4/7}: O(eps^-3.5) samples when both
levels are noisy. `growing` is that strength. Constraint, several tasks and weights (4) are our extension, without a
theorem; with a fixed strength the solution is that of the penalised problem, O(1 / strength) away.

Reference: Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
"""

from __future__ import annotations

import jax
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel.hypergradients import Penalty
from bilevel.hypergradients.upper import Upper
from bilevel.lower.rules import Rule
from bilevel.problem.problem import Problem
from bilevel.rates import Measured
from bilevel.rates.protocol import Rates
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers.sampling import All, Sampling
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


def growing(step: jax.Array) -> jax.Array:
    """10 (1 + k)^{1/7}."""
    return 10 * (1.0 + step) ** (1 / 7)


@part
class F2SA(BilevelSolver):
    """F2SA: lower steps on g and on f + s g, then x along first derivatives.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of z (beta), likewise; None gives every task its own.
        penalty_lr: the rate of p (rho), a number; None = 1 / the curvature of f + s g.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for, `optax.sgd`.
        lower_rule: likewise for z, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
        strength: s_k, a number or a function of the step.
        lower_steps: T, steps of z and of p per step.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    penalty_lr: float | None = leaf(default=None)  # rho
    weighting: Weighting = Average()
    upper_rule: Rule | None = None
    lower_rule: Rule = optax.sgd
    rates: Rates = Measured()
    sampling: Sampling = All()
    strength: Rate = leaf(default=growing)  # s_k
    lower_steps: int = 10  # T

    replays = True
    card = Card(
        loops="double",
        keeps="p (n d_y)",
        rate="O(eps^-3.5)",
        paper="Kwon, Kwon, Wright, Nowak, ICML 2023",
        extension="constraint, several tasks, weights, automatic rates",
    )

    @property
    def estimator(self) -> Penalty:
        """The penalised loss."""
        return Penalty(self.strength, self.penalty_lr, self.lower_steps)

    def check(self, problem: Problem) -> None:
        """As every solver, and what the estimator is made of, by the names it has here."""
        values.whole("lower_steps", self.lower_steps, of="F2SA")
        values.positive("penalty_lr", self.penalty_lr, of="F2SA", none="1 / the curvature of f + s g")
        if not callable(self.strength):
            values.positive("strength", self.strength, of="F2SA")
        super().check(problem)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """z, then p, then x and the weights."""
        lower_key, upper_key = jax.random.split(key)
        state, beta, _ = self.descend(problem, state, lower_key, self.lower_steps)  # (1)
        seen = Upper(problem, self.estimator).direction(self.point(state), problem.draw_upper(upper_key))  # (2)
        return self.move_x_and_weights(problem, state, beta, seen)  # (3), (4)
