"""One step of the public script for sinusoids: MORBiT's, with several lower steps on one batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.oracles.lower import Replay, descend, draw_steps, first_of, steps_of
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.solvers._base.state import State
from bilevel.solvers.morbit import MORBiT


@part
class RepeatedRows(MORBiT):
    """MORBiT, except that the lower steps of one step see the same rows."""

    lower_steps: int = 2

    def descend(
        self, problem: Problem, state: State, key: jax.Array, count: int = 1
    ) -> tuple[State, PerTask[jax.Array], Replay]:
        """y_i <- y_i - beta_i grad_y g_i(x, y_i; rows), `count` times with the same rows."""
        once = draw_steps(problem, key, 1)
        samples = jax.tree.map(lambda s: jnp.repeat(s, count, axis=1), once)
        state, beta = self.lower_rates(problem, state, first_of(once))
        replay = Replay(steps_of(state.y, state.lower, beta, samples), self.lower_rule, count)
        y, optimiser = descend(problem, state.x, replay)
        return state._replace(y=y, lower=optimiser), beta, replay
