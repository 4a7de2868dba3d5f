"""GDA: gradient descent ascent, x and the weights at once.

Step k, both at (x^k, lambda^k):

    (1)  x^{k+1}      = proj_X (x^k - alpha sum_i lambda_i^k grad F_i(x^k))
    (2)  lambda^{k+1} = proj_simplex (lambda^k + gamma F(x^k))

With batches this is SGDA. Published for a general maximisation over a convex bounded set; its case of an objective that
is concave but not strongly so, as ours is in the weights, has gamma = 1/L and a much smaller alpha ~ eps^4: O(eps^-6)
gradients until the gradient of the Moreau envelope of the max is below eps, and O(eps^-8) samples. A constraint on x
and weightings other than `SimplexAscent` are our extension. Equal rates circle the saddle point.

Reference: Lin, Jin, Jordan, "On gradient descent ascent for nonconvex-concave minimax problems", ICML 2020.
"""

from __future__ import annotations

import jax

from bilevel._core.module import part
from bilevel.problem.minmax import MinMaxProblem
from bilevel.solvers._base.single_level import SingleLevelSolver, weighted_slope
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State


@part
class GDA(SingleLevelSolver):
    """Gradient descent ascent, for a `bl.MinMaxProblem`.

    Args:
        upper_lr: the rate of x (alpha), a number or a schedule.
        weighting: how the tasks' losses move their weights, from `bl.weightings`, with an `lr` (gamma).
        upper_rule: from a rate to an optax transformation, for x.

    >>> import bilevel as bl
    >>> known = bl.problems.reduced_ball()
    >>> solver = bl.GDA(0.1, bl.weightings.SimplexAscent(0.05))
    >>> result = bl.solve(known.problem, solver, known.x, steps=500, progress=False)
    >>> result.x.round(2).tolist()
    [2.0, 1.0]
    """

    card = Card(
        loops="single",
        keeps="nothing",
        rate="O(eps^-4), O(eps^-3) without noise, for the Moreau envelope",
        paper="Lin, Jin, Jordan, ICML 2020",
        extension="constraint, weightings other than SimplexAscent",
        problem="min-max",
    )

    def step(self, problem: MinMaxProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Both moves from the old point."""
        seen = weighted_slope(problem, state.x, self.weights_of_x(state), problem.draw(key))
        return self.finish(problem, state, seen)  # (1), (2)
