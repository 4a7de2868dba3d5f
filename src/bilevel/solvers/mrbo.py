"""MRBO: momentum-based recursive bilevel optimizer, single loop, STORM at both levels.

Step k, everything at (x^k, y^k), with alpha, beta the rates of x and y, and eta the momentum:

    (1)  u_i^k   = STORM_eta of grad_y g_i(x, y_i)                     every task i
    (2)  d^k     = STORM_eta of sum_i lambda_i D_i(x, y_i)
    (3)  x^{k+1} = proj_X (x^k - alpha d^k),   y_i^{k+1} = y_i^k - beta u_i^k     (simultaneous)
    (4)  lambda^{k+1} from the losses f_i, tracked by STORM too

STORM evaluates at the old and the new point on the same sample; the old point includes the old weights and the
estimator's state of that time, so that with exact oracles u and d are exact for every eta.

Published for one task without constraint, with the Neumann estimator, alpha, beta ~ k^{-1/3} and eta ~ k^{-2/3}:
O~(eps^-1.5) samples. Constraint, several tasks and weights (4) are our extension, without a theorem.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel.oracles import Evaluation, Walk
from bilevel.parts import Rate, leaf, part, rate_at
from bilevel.problem import Problem
from bilevel.solvers.base import BilevelSolver, Info, Lowered, State
from bilevel.trackers import Storm
from bilevel.trackers.base import Tracked, Tracker


def published_momentum(step: jax.Array) -> jax.Array:
    """(1 + k)^(-2/3): the first step is the plain stochastic one."""
    return (1.0 + step) ** (-2 / 3)


class UpperPoint(NamedTuple):
    """All that the upper oracle depends on besides the sample."""

    x: Any
    y: tuple
    weights: jax.Array
    hypergradient: tuple
    curvature: Any


class Trackers(NamedTuple):
    """The two recursions."""

    lower: Tracked
    upper: Tracked


@part
class MRBO(BilevelSolver):
    """MRBO: both levels move at once along variance-reduced directions.

    Options as for `MORBiT`, and:

    Args:
        momentum: the weight of the fresh value in STORM, a number in (0, 1] or a schedule.
        tracker: of the upper direction and losses; `Storm(per_task=True)` keeps one direction per task.
    """

    momentum: Rate = leaf(default=published_momentum)  # eta
    tracker: Tracker = Storm()

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """Both recursions start from a plain stochastic value at the first point."""
        lower, upper = self._points(state, state.automatic)
        lower_key, upper_key = jax.random.split(key)
        gradients, _ = self._lower_oracle(problem)(lower, problem.draw_lower(lower_key))
        value, _ = self._upper_oracle(problem)(upper, problem.draw_upper(upper_key))
        return state._replace(trackers=Trackers(Storm().init(gradients, lower), self.tracker.init(value, upper)))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Both directions at (x^k, y^k), then both moves."""
        lower_key, upper_key = jax.random.split(key)
        momentum = rate_at(self.momentum, state.step)
        samples = self.draw_lower(problem, lower_key)
        automatic = self.follow_curvature(problem, state, samples)
        lower, upper = self._points(state, automatic)
        first = tuple(jax.tree.map(lambda s: s[:, 0], s) for s in samples)
        u, _, lower_state = Storm().update(
            self._lower_oracle(problem), lower, state.trackers.lower, first, momentum
        )  # (1)
        value, hypergradient, upper_state = self.tracker.update(
            self._upper_oracle(problem), upper, state.trackers.upper, problem.draw_upper(upper_key), momentum
        )  # (2)
        direction, losses = value
        if self.tracker.per_task:
            direction = jax.tree.map(lambda d: jnp.tensordot(state.weights.astype(d.dtype), d, 1), direction)
        rate = self.lower_rates(problem, state, automatic)
        moved = [jax.vmap(self._lower_move)(*group) for group in zip(state.y, state.lower, rate, u, strict=True)]
        y, optimiser = (tuple(part) for part in zip(*moved, strict=True))
        lowered = Lowered(y, optimiser, tuple(map(Walk, state.y, state.lower, rate, samples)), automatic)
        seen = Evaluation(direction, losses, hypergradient)
        state, info = self.finish(problem, state, lowered, seen)  # (3), (4)
        return state._replace(trackers=Trackers(lower_state, upper_state)), info

    def check(self, problem: Problem) -> None:
        """As every solver, and one lower step, none of which can be replayed."""
        super().check(problem)
        if self.lower_steps != 1:
            raise ValueError(f"MRBO(lower_steps={self.lower_steps}): its recursion takes one lower step, give 1.")
        if self.hypergradient.needs_replay:
            raise ValueError("MRBO(hypergradient=Unrolled()): MRBO takes no lower steps before it moves x.")
        if not callable(self.momentum) and (not isinstance(self.momentum, (int, float)) or not 0 < self.momentum <= 1):
            raise ValueError(f"MRBO(momentum={self.momentum!r}): it needs a number above 0, up to 1, or a schedule.")

    def _points(self, state: State, automatic: Any) -> tuple[tuple, UpperPoint]:
        upper = UpperPoint(state.x, state.y, state.weights, state.hypergradient, automatic.lower)
        return (state.x, state.y), upper

    def _lower_move(self, y: Any, optimiser: Any, rate: jax.Array, u: Any) -> tuple:
        updates, optimiser = self.lower_rule(rate).update(u, optimiser, y)
        return optax.apply_updates(y, updates), optimiser

    def _lower_oracle(self, problem: Problem) -> Any:
        def oracle(point: tuple, samples: tuple) -> tuple:
            x, ys = point
            rows = zip(problem.groups, ys, samples, strict=True)
            slope = lambda task, y, s: jax.grad(task.lower, argnums=1)(x, y, s)  # noqa: E731
            return tuple(group.each(slope, y, s) for group, y, s in rows), ()

        return oracle

    def _upper_oracle(self, problem: Problem) -> Any:
        def oracle(point: UpperPoint, samples: tuple) -> tuple:
            upper = self.upper_level(point.curvature)
            if self.tracker.per_task:
                seen = upper.directions(problem, point.x, point.y, point.hypergradient, samples, point.weights.dtype)
            else:
                seen = upper.direction(problem, point.x, point.y, point.weights, point.hypergradient, samples)
            return (seen.direction, seen.losses), seen.state

        return oracle
