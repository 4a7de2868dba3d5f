"""One step of the public script for sinusoids: MORBiT's, with several lower steps on one batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.oracles.lower import Replay, descend, draw_steps, first_of, steps_of
from bilevel.problem.problem import Problem
from bilevel.solvers._base.estimator import Alternating
from bilevel.solvers._base.moves import MovedLower
from bilevel.solvers._base.state import State


@part
class RepeatedRows(Alternating):
    """MORBiT, except that the lower steps of one step see the same rows."""

    lower_steps: int = 2

    def descend(self, problem: Problem, state: State, key: jax.Array, count: int = 1) -> MovedLower:
        """y_i <- y_i - beta_i grad_y g_i(x, y_i; rows), `count` times with the same rows."""
        once = draw_steps(problem, key, 1)
        samples = jax.tree.map(lambda s: jnp.repeat(s, count, axis=1), once)
        rate, rates = self.lower_rates(problem, state, first_of(once))
        replay = Replay(steps_of(state.y, state.lower, rate, samples), self.lower_rule, count)
        return MovedLower(*descend(problem, state.x, replay), rate, rates, replay)
