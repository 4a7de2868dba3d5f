"""The solver that we recommend where none is given; docs/choosing.md says what it does well."""

from __future__ import annotations

import jax
import numpy as np

from bilevel._core import values
from bilevel._core.types import Tree
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.solvers import Descent, MORBiT, Tandem
from bilevel.solvers._base.solver import Solver
from bilevel.solvers.sampling import Fresh, Mixture
from bilevel.weightings import CVaR

MANY, DRAWN = 1024, 64  # tasks
NEW_TASKS = 64  # in a step, where tasks come from a distribution
TAIL = 0.1  # the fraction of it that x is learnt for
SHORT = 1000  # steps below which Tandem, whose steps are shares of the size of x, has not converged
PASSES = 100  # over all rows: where batches would take as many, Descent costs about as much, a few times at most
GRADIENTS = 2**27  # numbers in a gradient of x for each task


def recommended(problem: BaseProblem, steps: int | None = None, x: Tree = None) -> Solver:
    """`Descent` where all rows can be looked at, `Tandem` where steps must see batches, `MORBiT` where these are few.

    Descent looks at all rows in every step, never lets the objective rise, and ends by itself. It is recommended where
    steps see all the data, and where batches of all steps together have as many rows as 100 passes over all of them:
    batches are there to save time, and then save little.

    Where rows are infinite (`bl.Generator`), or too many for that, noise needs steps that become short, whatever the
    curvature: `Tandem`. Of a `bl.TaskDistribution`, 64 new tasks in every step, for the mean over the worst tenth of
    the distribution: of infinitely many tasks the worst may be any. Where rows are not in memory and tasks are more
    than 1,024, a step sees 64.

    Args:
        problem: what to solve.
        steps: how many steps there will be; None = 1,000 or more.
        x: where x starts, for its size; None = not large.

    >>> import bilevel as bl
    >>> noisy = bl.problems.noisy_ball().problem.rebatched(lambda size: 1)  # of 32 rows
    >>> [type(recommended(noisy, steps)).__name__ for steps in (10, 1000, 100_000)]
    ['MORBiT', 'Tandem', 'Descent']
    >>> type(recommended(bl.problems.enclosing_ball().problem)).__name__
    'Descent'
    """
    if not isinstance(problem, BaseProblem):
        raise TypeError(f"recommended(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if steps is not None:
        values.whole("steps", steps)
    if not isinstance(problem, Problem):
        return MORBiT()
    if _sees_all_rows(problem, steps) and problem.size * _numbers(x) <= GRADIENTS:
        return Descent()
    long = steps is None or steps >= SHORT
    solver = Tandem() if problem.is_stochastic and long else MORBiT()
    if problem.distribution is not None:
        return solver.replace(sampling=Fresh(NEW_TASKS), weighting=CVaR(TAIL))
    # Every step would read all rows, or all of them would have to fit into memory.
    return solver if problem.held or problem.size <= MANY else solver.replace(sampling=Mixture(DRAWN))


def _sees_all_rows(problem: Problem, steps: int | None) -> bool:
    """Whether steps may look at all rows: they are in memory, and batches would look at no fewer."""
    sources = [source for group in problem.groups for source in (group.train, group.validation)]
    if problem.distribution is not None or not all(source.finite and source.held for source in sources):
        return False
    batches = [size for group in problem.groups for size in (group.lower_batch, group.upper_batch)]
    seen = [1.0 if size is None else size / float(np.mean(s.rows)) for size, s in zip(batches, sources, strict=True)]
    return min(seen) * (SHORT if steps is None else steps) >= PASSES or not problem.is_stochastic


def _numbers(x: Tree) -> int:
    """How many numbers x has."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(x)) or 1
