"""What a step costs, in calls of the losses and their derivatives."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._cost.counting import Tally, counted_problem
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import Solver

KINDS = ("f", "grad f", "g", "grad g", "A v", "J v")


class Cost(NamedTuple):
    """Calls per step and task, on average over a run.

    A call is one evaluation on one batch, however many rows it has. A value that comes with a gradient, and a gradient
    on the way to a product, are free. A gradient in x, in y or in both at one point on one batch is one call, however
    many passes the solver makes for it.
    """

    upper_values: float  # f
    upper_gradients: float  # f_x, f_y
    lower_values: float  # g
    lower_gradients: float  # g_x, g_y
    hessian_products: float  # A v,  A = d2g/dy2; of f too, where a method takes them
    jacobian_products: float  # J v or J' u,  J = d2g/dxdy
    rows: float  # of data, over all these calls

    @property
    def total(self) -> float:
        """All calls, of whatever kind."""
        return sum(self) - self.rows

    @property
    def calls(self) -> list[str]:
        """What there is of each kind, in words: ["2 grad f", "1 grad g"]."""
        return [f"{count:.4g} {name}" for name, count in zip(KINDS, self, strict=False) if count]

    def __str__(self) -> str:
        calls = ", ".join(self.calls) or "no calls"
        return f"{calls}: {self.total:.4g} calls on {self.rows:.4g} rows, per step and task"


class DivergedError(ValueError):
    """A run whose calls were counted diverged."""

    def __init__(self, solver: Solver, step: int, steps: int):
        self.step, self.steps = step, steps
        super().__init__(
            f"cost(solver={type(solver).__name__}(...)) diverged at step {step} of {steps}, and only a run that stays "
            "finite can be counted: give smaller rates (upper_lr, lower_lr, that of v or of the estimator), or fewer "
            "steps."
        )


def cost(problem: Problem, solver: Solver, x: object, y: object = None, steps: int = 20) -> Cost:
    """Counts the calls of f, g and their derivatives that a step makes, by running steps.

    Args:
        problem: what to run on.
        solver: for instance `bl.MORBiT()`; with automatic rates a step also follows the curvature of g.
        x: where the shared variable starts.
        y: where the tasks' variables start, as for `solve`.
        steps: how many steps to run; for methods that refresh at intervals, or whose loops grow, a whole number of
            periods, or the length of a typical run.

    What happens before the first step and between chunks of steps (first values, measured rates, evaluations) is not
    counted. Tasks that are stacked run their loops together: one that ends a loop early, as conjugate gradients may,
    counts until the last has ended. Counting is slow and holds a copy of x per task: use a small problem, on which most
    methods make the same calls.

    Raises:
        DivergedError: a ValueError, where the run diverges. Calls are told apart by the points they are made at, and
            points that are not finite all look alike.

    >>> import bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> solver = bl.MORBiT(upper_lr=0.1, lower_lr=0.3, hypergradient=bl.hypergradients.Neumann(terms=5, lr=0.3))
    >>> print(bl.cost(known.problem, solver, known.x))
    1 grad f, 1 grad g, 4 A v, 1 J v: 7 calls on 7 rows, per step and task
    """
    check(problem, solver)
    values.whole("steps", steps, of="cost")
    key = jax.random.key(0)
    state = solver.init(problem, x, y, key=key, steps=steps)
    tally = Tally()
    # Unoptimised machine code: compiling takes longer than running; which calls are made does not depend on it.
    step = jax.jit(solver.step, compiler_options={"xla_backend_optimization_level": 0})
    counting = counted_problem(problem, tally)
    for k in range(steps):
        tally.next_step()
        state, info = step(counting, state, jax.random.fold_in(key, k))
        # Counts are complete when the numbers are.
        jax.block_until_ready((state, info))
        if not (tally.finite and are_finite((state.x, state.y, info.losses))):
            raise DivergedError(solver, k + 1, steps)
    return Cost(*(tally.counts[name] / (steps * problem.size) for name in Cost._fields))


def check(problem: object, solver: object) -> None:
    """Refuses what is neither a problem nor a solver, and the two in the wrong order."""
    if hasattr(problem, "step") and isinstance(solver, Problem):
        raise TypeError(
            f"cost({type(problem).__name__}(...), {type(solver).__name__}(...)): the problem comes first, as in "
            "bl.solve: cost(problem, solver, x)."
        )
    if not isinstance(problem, Problem):
        raise TypeError(f"cost(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if not hasattr(solver, "step") or isinstance(solver, type):
        raise TypeError(f"cost(solver=...) got {solver!r}: it needs a solver object, such as bl.MORBiT().")
    if problem.distribution is not None:
        raise ValueError(
            "cost(problem=...) has tasks of a bl.TaskDistribution, and counts calls a task of a list: give a "
            "bl.Problem of tasks.sample(64, seed=0), and a solver without sampling."
        )


def are_finite(values: object) -> bool:
    """Whether all numbers are."""
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(values))
