"""The solver that we recommend where none is given; docs/choosing.md has the measurements behind it."""

from __future__ import annotations

from typing import Any

from bilevel.problem import Problem
from bilevel.solvers import MORBiT, Tandem
from bilevel.solvers.protocol import Solver


def recommended(problem: Any) -> Solver:
    """`Tandem` where steps see batches, `MORBiT` where they see all the data; rates automatic.

    Noise asks for steps that end short, whatever the curvature says; without noise a measured curvature gives longer
    steps, and weights that settle sooner.

    >>> import bilevel as bl
    >>> type(recommended(bl.problems.enclosing_ball().problem)).__name__
    'MORBiT'
    >>> type(recommended(bl.problems.noisy_ball().problem)).__name__
    'Tandem'
    """
    return Tandem() if isinstance(problem, Problem) and problem.draws else MORBiT()
