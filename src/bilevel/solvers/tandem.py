"""Tandem: one gradient moves x and the linear systems together, at rates in units of what they move. Ours.

With  s_i(x, y, v) = f_i(x, y) - <grad_y g_i(x, y), v>,  whose gradient in x is the hypergradient f_x - J v and whose
gradient in y is the residual of the linear system A v = f_y, step k is

    (1)  y_i^{k+1} = y_i^k - beta_i grad_y g_i(x^k, y_i^k)                                           every task i
    (2)  d = sum_i lambda_i grad_x s_i  and  r_i = grad_y s_i,  one pass, at (x^k, y_i^{k+1}, v_i^k)
    (3)  x^{k+1} = proj_X (x^k - alpha U Adam(d)),                 U the size of x, leaf by leaf
    (4)  v_i^{k+1} = (1 - m) v_i^k + beta_i r_i,                   m = |x^{k+1} - x^k| / |x^{k+1}|, at most 1/2
    (5)  lambda^{k+1} from the losses f_i(x^k, y_i^{k+1})

Why (4) forgets: v averages over as many steps as the lower problem is ill-conditioned, and in that time x has moved
elsewhere; so it forgets as fast as x moves, and not at all where x rests. The order is that of MORBiT, y before x; the
variables are SOBA's; a step makes one gradient of f, one of g and one pass of second derivatives of g.

It is a composition: the variables of SOBA (`LinearSystemSolver`), MORBiT's order of moves, `SimplexAscent`, and
`bl.rates.Relative`, whose file has the rates that are not given: falling to zero, so that the last point needs no
averaging. With `rates=bl.rates.Relative()` any other solver has them too. There is no theorem.

Reference: none of its own. Parts: Gu, Lu, Ram, Weng (MORBiT), ICLR 2023; Dagréou, Ablin, Vaiter, Moreau (SOBA),
NeurIPS 2022; Kingma and Ba (Adam), ICLR 2015; Shazeer and Stern (Adafactor), ICML 2018, for relative steps.
"""

from __future__ import annotations

import jax

from bilevel._core.module import part
from bilevel.problem.problem import Problem
from bilevel.rates import Relative
from bilevel.rates.base import Rates
from bilevel.rates.relative import share_moved
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.linear_system import LinearSystemSolver
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


@part
class Tandem(LinearSystemSolver):
    """Tandem, which `bl.recommended` takes for long runs with batches. Options as for `SOBA`; no rate need be given.

    A rate that is given is constant and plain: `upper_lr` is Adam's, `lower_lr` that of y and v.
    """

    weighting: Weighting = SimplexAscent()
    rates: Rates = Relative()

    card = Card(
        loops="single",
        keeps="v (n d_y), Adam's moments (2 d_x)",
        rate="no theorem",
        paper="ours",
        extension="all of it",
    )

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, then x, v and the weights from one gradient."""
        lower_key, upper_key = jax.random.split(key)
        moved = self.descend(problem, state, lower_key)  # (1)
        point = self.point(state, moved.y, moved.rates)
        seen, residual = self.oracle(problem).with_residuals(point, problem.draw_upper(upper_key))  # (2)
        after, info = self.finish(problem, state, moved, seen)  # (3), (5)
        keep = 1 - share_moved(state.x, after.x)
        return after._replace(v=self.move_v(state.v, residual, moved.rate, keep)), info  # (4)
