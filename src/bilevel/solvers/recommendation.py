"""The solver that we recommend where none is given; docs/choosing.md says what it does well."""

from __future__ import annotations

from bilevel._core import values
from bilevel.problem.base import BaseProblem
from bilevel.problem.problem import Problem
from bilevel.solvers import MORBiT, Tandem
from bilevel.solvers._base.solver import Solver

SHORT = 1000  # steps below which Tandem, whose steps are shares of the size of x, has not converged


def recommended(problem: BaseProblem, steps: int | None = None) -> Solver:
    """`Tandem` where steps see batches, `MORBiT` where they see all the data or are few; rates automatic.

    Noise needs steps that become short, whatever the curvature; without noise a measured curvature gives longer
    steps, and weights that settle sooner.

    Args:
        problem: what to solve.
        steps: how many steps there will be; None = 1,000 or more.

    >>> import bilevel as bl
    >>> noisy = bl.problems.noisy_ball().problem
    >>> [type(recommended(noisy, steps)).__name__ for steps in (None, 100)]
    ['Tandem', 'MORBiT']
    >>> type(recommended(bl.problems.enclosing_ball().problem)).__name__
    'MORBiT'
    """
    if not isinstance(problem, BaseProblem):
        raise TypeError(f"recommended(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if steps is not None:
        values.whole("steps", steps)
    long = steps is None or steps >= SHORT
    return Tandem() if isinstance(problem, Problem) and problem.is_stochastic and long else MORBiT()
