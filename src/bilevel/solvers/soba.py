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

from typing import Any

import jax

from bilevel._core.module import part
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.base import Hypergradient
from bilevel.oracles.upper import Upper, lower_gradients
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import BilevelSolver, Info, Lowered, State
from bilevel.solvers._base.card import Card
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class SOBA(BilevelSolver):
    """SOBA: y, v and x move at once. Options as for `MORBiT`; the estimator is `Tracked`, whose lr=None is y's rate."""

    hypergradient: Hypergradient = Tracked()
    weighting: Weighting = Average()

    card = Card(
        loops="single",
        keeps="v (n d_y)",
        rate="O(eps^-2.5)",
        paper="Dagréou, Ablin, Vaiter, Moreau, NeurIPS 2022",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and the estimator that it is about."""
        super().check(problem)
        if not isinstance(self.hypergradient, Tracked) or self.hypergradient.steps != 1:
            name = type(self).__name__
            raise ValueError(
                f"{name}(hypergradient={self.hypergradient}): {name} moves v itself and needs Tracked() or Tracked(lr)."
            )

    @property
    def follows_curvature(self) -> bool:
        """Only for y: v moves at y's rate."""
        return self.lower_lr is None

    def tracked(self, rate: tuple[jax.Array, ...]) -> Upper:
        """The estimator; v moves at y's rate, as published, unless it was given one."""
        return Upper(self.hypergradient, tuple(1 / r for r in rate))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Everything at the old point."""
        samples = problem.draw_upper(key)
        lowered, upper = self.lower_level(problem, state, samples)  # (1)
        seen, residuals = upper.both(problem, state.x, state.y, state.weights, state.hypergradient, samples)
        v = self.solve_further(state.hypergradient, residuals, lowered.rate)  # (2)
        return self.finish(problem, state, lowered, seen._replace(state=v))  # (3), (4)

    def solve_further(self, state: tuple, residuals: tuple, rate: tuple, keep: Any = 1.0) -> tuple:
        """v <- keep v + rho (f_y - A v), per group; rho is y's rate unless the estimator has its own."""
        own = self.hypergradient.lr  # type: ignore[attr-defined]

        def one(h: Any, residual: Any, rho: jax.Array) -> Any:
            rho = rho if own is None else own
            return h._replace(v=jax.tree.map(lambda v, r: (keep * v + rho * r).astype(v.dtype), h.v, residual))

        return tuple(jax.vmap(one)(*group) for group in zip(state, residuals, rate, strict=True))

    def lower_level(self, problem: Problem, state: State, samples: Any) -> tuple[Lowered, Upper]:
        """y after its step on the rows of g in these samples, and the estimator at y's rate."""
        rows = tuple(sample.lower for sample in samples)
        automatic = self.follow_curvature(problem, state, rows)
        rate = self.lower_rates(problem, state, automatic)
        u = lower_gradients(problem, state.x, state.y, rows)
        lowered = Lowered(*self.lower_move(state.y, state.lower, u, rate), rate, automatic)
        return lowered, self.tracked(rate)
