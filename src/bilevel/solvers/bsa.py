"""BSA: bilevel stochastic approximation, a double loop whose inner loop grows.

Step k, with t_k lower steps:

    (1)  y^0 = y of the last step;  y^{t+1} = y^t - beta grad_y g(x^k, y^t; fresh rows),   t < t_k
    (2)  x^{k+1} = proj_X (x^k - alpha_k D),   D by `RandomNeumann` at (x^k, y^{t_k})

t_k grows as sqrt(k) in the nonconvex case. The order is the paper's: y before the direction (public code takes the
first direction at the initial y). Confirmed for this file: the updates and the orders. Not confirmed: whether the paper
starts each inner loop afresh (we start from the last y), the constants of t_k, and beta_t = 2 / (mu (t + 2)) within an
inner loop (we keep beta constant within it, and take a schedule over k).

Published for one task with a constraint on x: O(eps^-2) samples of f and O(eps^-3) of g. Several tasks and weights are
our extension, without a theorem.

Reference: Ghadimi, Wang, "Approximation methods for bilevel programming", arXiv 1802.02246, 2018.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import part
from bilevel.hypergradients import RandomNeumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Upper
from bilevel.lower.steps import lower_gradients
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import EstimatorSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


def growing(step: jax.Array) -> jax.Array:
    """ceil(sqrt(k + 1))."""
    return jnp.ceil(jnp.sqrt(step + 1.0)).astype(jnp.int32)


@part
class BSA(EstimatorSolver):
    """BSA: ever more lower steps, then x.

    Options as for `MORBiT`, and:

    Args:
        lower_steps: lower steps per step: a number, or a function of the step (the default is ceil(sqrt(k + 1))).
    """

    hypergradient: Hypergradient = RandomNeumann()
    weighting: Weighting = Average()
    lower_steps: int | Callable[[jax.Array], jax.Array] = growing

    card = Card(
        loops="double",
        keeps="nothing",
        rate="O(eps^-2) samples of f, O(eps^-3) of g",
        paper="Ghadimi, Wang, 2018",
        extension="several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and a number of lower steps."""
        super().check(problem)
        if not callable(self.lower_steps):
            values.whole("lower_steps", self.lower_steps, of="BSA")

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """t_k lower steps, then x and the weights."""
        lower_key, upper_key = jax.random.split(key)
        state, beta = self.lower_rates(problem, state, problem.draw_lower(lower_key))

        def lower_step(t: jax.Array, state: State) -> State:
            rows = problem.draw_lower(jax.random.fold_in(lower_key, t))
            return self.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta)

        count = self.lower_steps(state.step) if callable(self.lower_steps) else self.lower_steps
        state = jax.lax.fori_loop(0, count, lower_step, state)  # (1)
        seen = Upper(problem, self.estimator).direction(self.point(state), problem.draw_upper(upper_key))
        return self.move_x_and_weights(problem, state, beta, seen)  # (2)
