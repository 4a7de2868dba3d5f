"""Lower steps that a task is given before it is looked at, where it is visited rarely.

Between two visits, n / m steps, x goes far, and one lower step takes y_i only a part of the way to this x. The
direction of x is then that of a y_i that does not fit, in every task that a step sees, and x follows it: on 160,000
small regressions, 16 in a step, |x| grew from 2 to 14, and with it the losses of tasks whose y was of a smaller x. So
before the solver's own step a task takes some more,

    y_i <- y_i - beta_i grad_y g_i(x, y_i; fresh rows),    beta_i = 1 / L_i,  L_i at least |A u| of these very rows

with u the gradient, of length 1. For a quadratic g no such step makes g larger on its rows. That matters: several steps
at a rate that was measured on the rows of the first one multiply y by up to (L' / L - 1) each, where other rows have a
larger curvature L', and such runs diverged.

What it costs: 1.7 times the processor's time of a step on these regressions, with 64 of 100,000 in a step. One step
instead of three is a third of that, and x is between the two.

Why not a slower x instead, which costs nothing: with a rate of x times (m / n)^(1/2) the regressions are as good, and
10,000 sinusoids, 64 in a step, are hardly learnt in the same steps (worst tenth 8.6 instead of 0.29). Why not where
tasks are visited more often: these sinusoids end at 0.22 with it and at 0.08 without; with 16 in a step it makes no
difference there, nor on 16,000 points of an enclosing ball. It is for rates of y that are chosen, and for solvers that
do not compare a point with the last one; who gives rates also gives `lower_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bilevel.oracles.lower import draw_steps, lower_gradients
from bilevel.problem.problem import Problem
from bilevel.solvers._base.state import State

if TYPE_CHECKING:
    from bilevel.solvers._base.bilevel import BilevelSolver

STEPS = 3  # lower steps more
RARELY = 512  # steps between two visits of a task from which on it takes them
KEY = 2**31  # folded into a step's key


def steps_at_a_visit(solver: BilevelSolver, tasks: int, drawn: int) -> int:
    """How many lower steps a task takes before the solver's own, where a step sees some of the tasks."""
    rarely = tasks >= RARELY * drawn
    return STEPS if rarely and solver.needs.lower and solver.rates.chooses and not solver.compares_points else 0


def caught_up(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array, steps: int) -> State:
    """The state of the tasks of a step after these lower steps."""
    samples = draw_steps(problem, jax.random.fold_in(key, KEY), steps)

    def one(state: State, rows: Any) -> tuple[State, None]:
        state, beta = solver.lower_rates(problem, state, rows)
        return solver.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta), None

    rows_of_steps = jax.tree.map(lambda rows: jnp.swapaxes(rows, 0, 1), samples)
    return jax.lax.scan(one, state, rows_of_steps, length=steps)[0]
