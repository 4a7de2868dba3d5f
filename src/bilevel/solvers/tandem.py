"""Tandem: one gradient moves x and the linear systems together, at rates in units of what they move. Ours.

With  s_i(x, y, v) = f_i(x, y) - <grad_y g_i(x, y), v>,  whose gradient in x is the hypergradient f_x - J v and whose
gradient in y is what the linear system A v = f_y still lacks, step k is

    (1)  y_i^{k+1} = y_i^k - beta_i grad_y g_i(x^k, y_i^k)                                           every task i
    (2)  d = sum_i lambda_i grad_x s_i  and  r_i = grad_y s_i,  one pass, at (x^k, y_i^{k+1}, v_i^k)
    (3)  x^{k+1} = proj_X (x^k - alpha U Adam(d)),                 U the size of x, leaf by leaf
    (4)  v_i^{k+1} = (1 - m) v_i^k + beta_i r_i,                   m = |x^{k+1} - x^k| / |x^{k+1}|, at most 1/2
    (5)  lambda^{k+1} from the losses f_i(x^k, y_i^{k+1})

Why (4) forgets: v averages over as many steps as the lower problem is ill-conditioned, and in that time x has moved
elsewhere; so it forgets as fast as x moves, and not at all where x rests. The order is that of MORBiT, y before x; the
variables are SOBA's; a step makes one gradient of f, one of g and one pass of second derivatives of g.

Rates that are not given, with K steps, t = k / K and L_i the curvature of g_i as it is followed:

    beta_i   min(1, 2 (1 - t)) / L_i
    alpha    min(0.03, 1.5 / sqrt(K)) (1 - t),  with U the root mean square of a leaf (at least a quarter of the largest
             so far; for a leaf that starts at zero, that of all x, or 1)
    gamma    0.02 (1 - t) / worst loss

so that nothing is measured but L_i, and the last point needs no averaging. The constants were chosen on the problems of
docs/choosing.md, on draws that are not reported there. There is no theorem. Limits: a step of x is a share of its size,
so that a short run cannot go far, and on small smooth problems MORBiT, which measures the curvature of the upper
objective, takes fewer steps.

Reference: none of its own. Parts: Gu, Lu, Ram, Weng (MORBiT), ICLR 2023; Dagréou, Ablin, Vaiter, Moreau (SOBA),
NeurIPS 2022; Kingma and Ba (Adam), ICLR 2015; Shazeer and Stern (Adafactor), ICML 2018, for relative steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import part
from bilevel.oracles.upper import Evaluation
from bilevel.problem.problem import Problem
from bilevel.rates import curvature, sizes
from bilevel.rates.measured import Automatic, follow_worst
from bilevel.rates.measured import start as start_rates
from bilevel.rules import base as rules
from bilevel.rules.base import Rule
from bilevel.solvers._base.bilevel import Info, State
from bilevel.solvers._base.card import Card
from bilevel.solvers.soba import SOBA
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


@part
class Tandem(SOBA):
    """Tandem, which `bl.solve` takes where no solver is given. Options as for `MORBiT`; rates need not be given.

    A rate that is given is constant and plain: `upper_lr` is Adam's, `lower_lr` that of y and v.
    """

    weighting: Weighting = SimplexAscent()
    upper_rule: Rule = optax.adam

    card = Card(
        loops="single",
        keeps="v (n d_y), Adam's moments (2 d_x)",
        rate="no theorem",
        paper="ours",
        extension="all of it",
    )

    def start_rates(
        self, problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, steps: Any
    ) -> Automatic:
        """Curvatures to follow and the size of losses; nothing else is measured."""
        which = (self.follows_curvature, False, self.weighs_automatically)
        return start_rates(problem, x, y, weights, key, steps, which)._replace(condition=None)

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """The first sizes of x."""
        return state._replace(trackers=sizes.first(state.x))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, then x, v and the weights from one gradient."""
        lower_key, upper_key = jax.random.split(key)
        lowered = self.descend(problem, state, lower_key)  # (1)
        upper, samples = self.tracked(lowered.rate), problem.draw_upper(upper_key)
        seen, residuals = upper.both(problem, state.x, lowered.y, state.weights, state.hypergradient, samples)  # (2)
        after, info = self.finish(problem, state, lowered, seen)  # (3), (5)
        keep = 1 - sizes.moved(state.x, after.x)
        v = self.solve_further(state.hypergradient, residuals, lowered.rate, keep)  # (4)
        return after._replace(hypergradient=v, trackers=sizes.largest(state.trackers, after.x)), info

    # ------------------------------------------------------------------ rates that are not given

    def lower_rates(self, problem: Problem, state: State, automatic: Automatic) -> tuple[jax.Array, ...]:
        """beta_i."""
        rate = super().lower_rates(problem, state, automatic)
        if self.lower_lr is not None:
            return rate
        return tuple(r * jnp.minimum(1, 2 * left(state, automatic)).astype(r.dtype) for r in rate)

    def move(
        self, problem: Problem, state: State, seen: Evaluation, automatic: Automatic
    ) -> tuple[Any, Any, Automatic, jax.Array, jax.Array]:
        """x, its optimiser, the rates' state, alpha and |d|."""
        if self.upper_lr is not None:
            return super().move(problem, state, seen, automatic)
        alpha = jnp.minimum(0.03, 1.5 * automatic.horizon**-0.5) * left(state, automatic)
        loss = jnp.vdot(state.weights, seen.losses)
        updates, optimiser = rules.update(self.upper_rule(alpha), seen.direction, state.upper, state.x, loss)
        units = sizes.now(state.trackers, state.x, curvature.FALL)
        updates = jax.tree.map(lambda u, unit: (unit * u).astype(u.dtype), updates, units)
        x = problem.constraint.project(optax.apply_updates(state.x, updates))
        norm = optax.tree.norm(seen.direction).astype(state.weights.dtype)
        return x, optimiser, automatic, alpha.astype(norm.dtype), norm

    def weights_rate(self, state: State, losses: jax.Array, automatic: Automatic) -> tuple[jax.Array, Automatic]:
        """gamma."""
        if not self.weighs_automatically:
            return super().weights_rate(state, losses, automatic)
        automatic = follow_worst(automatic, losses)
        worst = jnp.where(automatic.worst > 0, automatic.worst, 1)  # type: ignore[operator]
        return 0.02 * left(state, automatic) / worst, automatic


def left(state: State, automatic: Automatic) -> jax.Array:
    """1 - k / K, the part of the run that is left; of a run that goes on beyond K, one step."""
    return jnp.maximum(automatic.horizon - state.step, 1) / automatic.horizon
