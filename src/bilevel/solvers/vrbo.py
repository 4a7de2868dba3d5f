"""VRBO: variance-reduced bilevel optimizer, a double loop with SPIDER at both levels.

u follows grad_y g, d follows the hypergradient, both by differences on small batches. Step k:

    (1)  if k mod period = 0:  u, d <- values at (x^k, y^k) on a large batch
    (2)  x^{k+1} = proj_X (x^k - alpha d),   lambda^{k+1} from the losses, tracked in the same way
    (3)  u, d <- u, d + differences between (x^{k+1}, y^k) and (x^k, y^k) on one small batch
    (4)  m times:  y <- y - beta u;   u, d <- u, d + differences between the new and the last y

At the end of (4) u and d are exact at (x^{k+1}, y^{k+1}) up to sampling, and with exact oracles they are exact for
every k and period. Public code takes both ends of (3) at the new x, so that the move of x is never accounted for and
the estimates drift until the next refresh.

Published for one task without constraint: O~(eps^-1.5) samples (constants from memory). All else is our extension.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.trackers import Memory, Oracle, Storm
from bilevel.hypergradients.upper import Upper
from bilevel.lower.steps import lower_gradients
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.solvers._base.bilevel import EstimatorSolver
from bilevel.solvers._base.checks import LOOKS_AGAIN, check_refresh
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import KeptPoint, UpperValue, as_evaluation, kept, upper_oracle
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


class Drawn(NamedTuple):
    """The samples of both levels."""

    lower: PerTask[Sample]
    upper: PerTask[UpperSample]

    @classmethod
    def of(cls, problem: Problem, key: jax.Array) -> Drawn:
        """New ones."""
        lower_key, upper_key = jax.random.split(key)
        return cls(problem.draw_lower(lower_key), problem.draw_upper(upper_key))


class TrackedDirections(NamedTuple):
    """What is tracked."""

    y: PerTask[Tree]  # u
    upper: UpperValue  # d, and the losses


@part
class VRBO(EstimatorSolver):
    """VRBO: x first, then lower steps, along directions kept exact by differences.

    Options as for `MORBiT`, and:

    Args:
        period: steps from one large batch to the next.
        refresh_batch: the size of the large batch; None = all the data.
        lower_steps: m, lower steps per step, each with a correction.
        tracker: `Storm()`, or `Storm(per_task=True)` for one direction per task (memory n d_x).
    """

    hypergradient: Hypergradient = Neumann()
    weighting: Weighting = Average()
    period: int = 3
    refresh_batch: int | None = None
    lower_steps: int = 4
    tracker: Storm = Storm()

    moves_x_first = True
    needs_all_tasks = LOOKS_AGAIN
    card = Card(
        loops="double",
        keeps="the last point, u (n d_y), d (d_x; per task n d_x)",
        rate="O~(eps^-1.5)",
        paper="Yang, Ji, Liang, NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and the counts."""
        super().check(problem)
        values.whole("period", self.period, of="VRBO")
        values.whole("lower_steps", self.lower_steps, of="VRBO")
        check_refresh("VRBO", self.refresh_batch, problem)

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Memory:
        """The first values are on the large batch."""
        return self._refreshed(problem, kept(self.point(state)), key)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """x and the weights, then y."""
        refresh_key, lower_key = jax.random.split(key)
        state, beta = self.lower_rates(problem, state, problem.draw_lower(lower_key))
        memory = jax.lax.cond(
            state.step % self.period == 0,
            lambda: self._refreshed(problem, kept(self.point(state)), refresh_key),
            lambda: state.memory,
        )  # (1)
        seen = as_evaluation(memory.value.upper, self.weights_of_x(state), state.v)
        state, info = self.move_x_and_weights(problem, state, beta, seen)  # (2)
        return self._descend(problem, state._replace(memory=memory), beta, lower_key), info

    def _descend(self, problem: Problem, state: State, beta: PerTask[jax.Array], key: jax.Array) -> State:
        """(3) and (4): round 0 corrects for the move of x, the others step first."""
        oracle = self._directions(problem)

        def round_(t: jax.Array, state: State) -> State:
            moved = self.move_lower(state, state.memory.value.y, beta)
            keep = lambda new, old: jnp.where(t > 0, new, old)  # noqa: E731
            y, lower = jax.tree.map(keep, (moved.y, moved.lower), (state.y, state.lower))
            state = state._replace(y=y, lower=lower)
            samples = Drawn.of(problem, jax.random.fold_in(key, t))
            _, v, memory = self.tracker.update(oracle, kept(self.point(state)), state.memory, samples, 0.0)
            return state._replace(v=v, memory=memory)

        return jax.lax.fori_loop(0, 1 + self.lower_steps, round_, state)

    def _refreshed(self, problem: Problem, point: KeptPoint, key: jax.Array) -> Memory:
        large = problem.rebatched(lambda _: self.refresh_batch)
        value, _ = self._directions(large)(point, Drawn.of(large, key))
        return self.tracker.init(value, point)

    def _directions(self, problem: Problem) -> Oracle:
        """u and d at a point."""
        oracle, per_task = Upper(problem, self.estimator), self.tracker.per_task
        upper = upper_oracle(oracle.directions if per_task else oracle.direction, per_task=per_task)

        def at(point: KeptPoint, samples: Drawn) -> tuple[TrackedDirections, PerTask[Tree]]:
            value, v = upper(point, samples.upper)
            return TrackedDirections(lower_gradients(problem, point.x, point.y, samples.lower), value), v

        return at
