"""Tandem: one gradient moves x and the linear systems together, at rates in units of what they move. Ours.

With  s_i(x, y, v) = f_i(x, y) - <grad_y g_i(x, y), v>,  whose gradient in x is the hypergradient f_x - J v and whose
gradient in y is the residual of the linear system A v = f_y, step k is

    (1)  y_i^{k+1} = y_i^k - beta_i P_i grad_y g_i(x^k, y_i^k)                                       every task i
    (2)  d = sum_i lambda_i grad_x s_i  and  r_i = grad_y s_i,  one pass, at (x^k, y_i^{k+1}, v_i^k)
    (3)  x^{k+1} = proj_X (x^k - alpha U Adam(d)),                 U the size of x, leaf by leaf
    (4)  v_i^{k+1} = (1 - m) v_i^k + beta_i P_i r_i,               m = |x^{k+1} - x^k| / |x^{k+1}|, at most 1/2
    (5)  lambda^{k+1} from the losses f_i(x^k, y_i^{k+1})

P_i is the inverse of a running mean of the batches' Hessians (`bl.lower.RunningHessian`) where y has at most 24 numbers
and rows are finite, and 1 elsewhere. Why: y and v follow x only as fast as their slowest direction. With P = 1
and penalties as logarithms, one penalty that grows makes all other directions slow; y lags, the direction is wrong, and
x goes where the penalty grows further. On rows without end P = 1 did no worse on four draws of sinusoids.

Why (4) forgets: v averages over many steps, and in that time x has moved elsewhere; so it forgets as fast as x moves,
and not at all where x rests. The order is that of MORBiT, y before x; the variables are SOBA's; a step makes one
gradient of f, one of g and one pass of second derivatives of g, and with P as many passes more as y has numbers.

It is a composition: the variables of SOBA (`LinearSystemSolver`), MORBiT's order of moves, `SimplexAscent`, the moves
of `bl.lower`, and `bl.rates.Relative`, whose file has the rates that are not given: falling to zero, so that the last
point needs no averaging. With `rates=bl.rates.Relative()` any other solver has them too. There is no theorem.

Reference: none of its own. Parts: Gu, Lu, Ram, Weng (MORBiT), ICLR 2023; Dagréou, Ablin, Vaiter, Moreau (SOBA),
NeurIPS 2022; Kingma and Ba (Adam), ICLR 2015; Shazeer and Stern (Adafactor), ICML 2018, for relative steps.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.lower.moves import Gradient, Move, RunningHessian, suited
from bilevel.lower.steps import lower_gradients
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.rates import Relative
from bilevel.rates.protocol import Needs, Rates
from bilevel.rates.relative import share_moved
from bilevel.solvers._base.linear_system import LinearSystemSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


class Kept(NamedTuple):
    """What is carried besides."""

    known: PerTask[Tree]  # of the lower problems, by the move
    moved: jax.Array  # m of the last step


@part
class Tandem(LinearSystemSolver):
    """Tandem, which `bl.recommended` takes for long runs with batches. Options as for `SOBA`; no rate need be given.

    A rate that is given is constant and plain: `upper_lr` is Adam's, `lower_lr` that of y and v.

    Args:
        lower: how y and v move, `bl.lower.Gradient()` (P = 1) or `bl.lower.RunningHessian()`; None = the latter where y
            has at most 24 numbers, rows are finite, every step sees all tasks, and `bl.rates.Relative` chooses rates.
    """

    weighting: Weighting = SimplexAscent()
    rates: Rates = Relative()
    lower: Move | None = None

    lower_kind = Move
    card = Card(
        loops="single",
        keeps="v (n d_y), Adam's moments (2 d_x), for small y A^ (n d_y^2)",
        rate="no theorem",
        paper="ours",
        extension="all of it",
    )

    @property
    def needs(self) -> Needs:
        """Curvature for a rate of gradient steps."""
        needs = super().needs
        return needs._replace(curvature=needs.curvature and (self.lower is None or self.lower.needs_curvature))

    def check(self, problem: Problem) -> None:
        """As every solver, and a rate that fits the move."""
        super().check(problem)
        if self.lower != RunningHessian():
            return
        if self.sampling.draws or self.sampling.fresh:
            raise ValueError(
                f"Tandem(lower={self.lower}, sampling={self.sampling}): Hessians of tasks not seen are of long ago. "
                "Give lower=None or lower=bl.lower.Gradient()."
            )
        if self.lower_lr is None and self.rates.chooses and not self.rates.newton_steps:
            raise ValueError(
                f"Tandem(lower={self.lower}, rates={self.rates}): these rates are for steps along the gradient. Give "
                "lower_lr, a share of Newton's step in (0, 1], or rates=bl.rates.Relative()."
            )

    def first_order(self) -> Self:
        """Where a step sees some of the tasks, or new ones."""
        return self.replace(lower=Gradient()) if self.lower is None else self

    def start(self, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state, which says by its memory how y moves."""
        if self.lower is not None:
            return super().start(problem, x, y, key, steps)
        chosen = self.rates.newton_steps and self.lower_lr is None and self.v_lr is None
        finite = all(group.train.finite for group in problem.groups)
        move = suited(y) if chosen and finite else Gradient()
        return self.replace(lower=move).start(problem, x, y, key, steps)

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Kept:
        """Nothing is known."""
        assert self.lower is not None
        return Kept(for_tasks(self.lower.init, state.y), jnp.zeros((), state.weights.dtype))

    def move_of(self, state: State) -> Move:
        """How y moves: as given, or as the state says that it was chosen."""
        return self.lower or (RunningHessian() if jax.tree.leaves(state.memory.known) else Gradient())

    def explain(self, problem: Problem, state: State) -> str:
        """The move that was chosen."""
        return "" if self.lower is not None else f"y and v move by {self.move_of(state)}."

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, then x, v and the weights from one gradient."""
        lower_key, upper_key = jax.random.split(key)
        kept: Kept = state.memory
        move = self.move_of(state)
        rows = problem.draw_lower(lower_key)
        look = lambda task, y, sample, known: move.learn(task, state.x, y, sample, known, kept.moved)  # noqa: E731
        known = problem.each(look, state.y, rows, kept.known)
        after, beta = self.lower_rates(problem, state, rows)
        u = for_tasks(move.apply, known, lower_gradients(problem, state.x, state.y, rows))
        after = self.move_lower(after, u, beta)  # (1)
        oracle = self.oracle(problem)
        seen, residual = oracle.with_residuals(self.point(after), problem.draw_upper(upper_key))  # (2)
        after, info = self.move_x_and_weights(problem, after, beta, seen)  # (3), (5)
        moved = share_moved(state.x, after.x).astype(kept.moved.dtype)
        v = self.move_v(state.v, for_tasks(move.apply, known, residual), beta, 1 - moved)  # (4)
        return after._replace(v=v, memory=Kept(known, moved)), info
