"""The solver that we recommend where none is given; docs/choosing.md says what it does well."""

from __future__ import annotations

from bilevel._core import values
from bilevel.problem.base import BaseProblem
from bilevel.problem.problem import Problem
from bilevel.sampling import Fresh, Mixture
from bilevel.solvers import MORBiT, Tandem
from bilevel.solvers._base.solver import Solver
from bilevel.weightings import CVaR

MANY, DRAWN = 1024, 64  # tasks
NEW_TASKS = 64  # in a step, where tasks come from a distribution
TAIL = 0.1  # the fraction of it that x is learnt for
SHORT = 1000  # steps below which Tandem, whose steps are shares of the size of x, has not converged


def recommended(problem: BaseProblem, steps: int | None = None) -> Solver:
    """`Tandem` where steps see batches, `MORBiT` where they see all the data or are few; rates automatic.

    Of a `bl.TaskDistribution`, 64 new tasks in every step, for the mean over the worst tenth of the distribution: of
    infinitely many tasks the worst may be any.

    Noise needs steps that become short, whatever the curvature; without noise a measured curvature gives longer
    steps, and weights that settle sooner. Where rows are not in memory and tasks are more than 1,024, a step sees 64.

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
    if not isinstance(problem, Problem):
        return MORBiT()
    solver = Tandem() if problem.is_stochastic and long else MORBiT()
    if problem.distribution is not None:
        return solver.replace(sampling=Fresh(NEW_TASKS), weighting=CVaR(TAIL))
    # Every step would read all rows, or all of them would have to fit into memory.
    return solver if problem.held or problem.size <= MANY else solver.replace(sampling=Mixture(DRAWN))
