"""`Solver`, the base of all solvers: what the driver, `cost`, `compare` and the diagnostics use."""

from __future__ import annotations

import abc
import functools
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp

from bilevel._core import module, values
from bilevel._core.schedules import Rate, ScaledSchedule
from bilevel._core.types import Count, T, Tree
from bilevel.problem import findings, initial_point
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.solvers._base.checks import check_distribution
from bilevel.solvers._base.state import Info, State

FIRST_MEASUREMENT = 10  # power iterations before the first step
MANY = 10_000  # tasks
PARTS = ("weighting", "hypergradient")  # options that are objects with rates of their own

ProblemT = TypeVar("ProblemT", bound=BaseProblem)  # the kind of problem that a solver solves


class Card(NamedTuple):
    """A solver in a few words, for the list of solvers.

    Rates are numbers of samples until the squared gradient norm is below eps, as published for one task.
    """

    loops: str  # "single" or "double"
    keeps: str  # besides x, y and the weights
    rate: str
    paper: str
    extension: str  # what goes beyond the paper, without a theorem
    problem: str = "bilevel"
    constraint: str = "projection"


class Solver(abc.ABC, Generic[ProblemT]):
    """A method that moves x, y and the weights step by step.

    To write one, make a part (`bl.part`) that inherits this and has `start` and `step`, both pure: `solve`, `seeds=`,
    `compare`, `cost`, saving and loading then work with it. Everything else has a default. A solver
    names its rates `upper_lr` and `lower_lr`, so that a run that diverges can name the rate to reduce, and reduce it.
    With other names it also writes `with_scaled_rates`. `bl.testing.check_solver` runs the checks that ours pass.
    """

    problem_type: ClassVar[type[BaseProblem]] = Problem  # the kind of problem that it solves
    chooses_rates: ClassVar[bool] = False  # whether a rate of None is chosen for the user
    moves_x_first: ClassVar[bool] = False  # whether y^{k+1} is made for x^{k+1}, not for x^k
    looks_at_all_rows: ClassVar[bool] = False  # whether every step sees all rows, so that nothing is drawn
    may_end: ClassVar[bool] = False  # whether a run may end before its last step, by `has_ended`
    card: ClassVar[Card] = Card("single", "nothing", "not known", "none", "all of it")

    @abc.abstractmethod
    def start(self, problem: ProblemT, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state, without checks; pure. `steps` is the planned length of the run."""

    @abc.abstractmethod
    def step(self, problem: ProblemT, state: State, key: jax.Array) -> tuple[State, Info]:
        """One step; `key` is new in every step."""

    def stepper(self) -> Solver:
        """The object whose `step` a run calls: the solver, or a wrapper that shows it some tasks. Called once a run."""
        return self

    @property
    def has_chosen_rates(self) -> bool:
        """Whether some of its rates are chosen, rather than given."""
        return False

    def has_ended(self, state: State) -> jax.Array | bool:
        """Whether the run has nothing more to gain, and so ends before its last step."""
        return False

    def has_converged(self, state: State) -> bool:
        """Whether a run that ended by itself has converged."""
        return True

    def explain(self, problem: ProblemT, state: State) -> str:
        """A sentence on what it chose for the problem, and how it ended; "" if there is nothing to say."""
        return ""

    def check(self, problem: ProblemT) -> None:
        """Raises if an option makes no sense for a problem; the error names the option, its value and what it needs."""

    def check_size(self, problem: ProblemT, x: Tree, y: PerTask[Tree]) -> None:
        """Raises, or warns, if the memory that the solver needs is not there; for solvers that keep much."""

    def measures(self, state: State) -> bool:
        """Whether `refresh` has anything to measure."""
        return False

    def refresh(self, problem: ProblemT, state: State, key: jax.Array, iterations: Count = 1) -> State:
        """Between steps, at intervals: measures again what rates need; the more iterations, the more exactly."""
        return state

    def with_scaled_rates(self, factor: float) -> Self | None:
        """The same solver with all its rates times a factor; None if it has no known rates.

        Known are fields named `lr` or something that ends in `_lr`, of the solver, its weighting and its estimator.
        """
        return scaled(self, factor)

    def init(self, problem: ProblemT, x: Tree, y: Tree = None, *, key: jax.Array, steps: int) -> State:
        """Validates everything, measures what automatic rates need, and returns the first state.

        Args:
            problem: what to solve.
            x: where the shared variable starts.
            y: where the tasks' variables start, as for `solve`.
            key: of everything random.
            steps: the length of the run, which automatic rates decay over.
        """
        return self.begin(problem, *self.checked(problem, x, y, key=key, steps=steps), key=key, steps=steps)

    def checked(self, problem: ProblemT, x: Tree, y: Tree, *, key: jax.Array, steps: int) -> tuple[Tree, PerTask[Tree]]:
        """Validates everything, and returns the starting x and y."""
        self.check_kind(problem)
        x = initial_point.arrays(x, "x")
        y = problem.starting_y(y, jax.random.fold_in(key, 0))
        self.check(problem)
        values.whole("steps", steps)
        findings.raise_first(findings.at_start(problem, x, y))
        findings.raise_first(findings.in_batches(problem, x, y, harmless=False))
        self.check_size(problem, x, y)
        return x, y

    def begin(self, problem: ProblemT, x: Tree, y: PerTask[Tree], *, key: jax.Array, steps: int) -> State:
        """The first state of valid arguments, with the measurements that automatic rates need."""
        start, stepper = _start_many if problem.size > MANY else _start, self.stepper()
        state = start(stepper, problem, x, y, key, jnp.asarray(steps, jnp.int32))
        if not stepper.measures(state):
            return state
        return measure(stepper, problem, state, jax.random.fold_in(key, 2), FIRST_MEASUREMENT)

    def outline(self, problem: ProblemT, x: Tree, y: Tree = None, *, key: jax.Array, steps: int) -> State:
        """The shapes and dtypes of what `init` returns, which a saved state must fit."""
        x = initial_point.arrays(x, "x")
        y = problem.starting_y(y, jax.random.fold_in(key, 0))
        return jax.eval_shape(_start, self.stepper(), problem, x, y, key, jnp.asarray(steps, jnp.int32))

    def check_kind(self, problem: object) -> None:
        """Raises unless the problem is of the kind that this solver solves."""
        if not isinstance(problem, self.problem_type):
            raise TypeError(
                f"{type(self).__name__} solves a bl.{self.problem_type.__name__} and was given a "
                f"{'bl.' * isinstance(problem, BaseProblem)}{type(problem).__name__}."
            )
        check_distribution(self, problem)

    def replace(self, **options: object) -> Self:
        """The same solver with other options."""
        return module.replace(self, **options)


# These programs run once or a few times, so that compiling takes most of their time: their code is not optimised.
# Matrix products call libraries and stay fast. For very many tasks, optimised code is worth its compile time.
_quickly_compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _first(solver: Solver, problem: BaseProblem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
    return solver.start(problem, x, y, key, steps)


_start, _start_many = _quickly_compiled(_first), jax.jit(_first)


@_quickly_compiled
def measure(solver: Solver, problem: BaseProblem, state: State, key: jax.Array, iterations: Count) -> State:
    """`solver.refresh`, compiled; the number of iterations is data, so that first and later measurements are one."""
    return solver.refresh(problem, state, key, iterations)


def scaled_rate(rate: Rate, factor: float) -> Rate:
    """A number or a schedule times a factor; None stays None."""
    if rate is None:
        return None
    return ScaledSchedule(rate, factor) if callable(rate) else rate * factor


def scaled(part: T, factor: float) -> T | None:
    """A solver, or a part of one, with all rates times a factor; None where none was given.

    A rate is a field named `lr`, or one whose name ends in `_lr`; a weighting and an estimator have theirs.

    >>> import bilevel as bl
    >>> smaller = scaled(bl.MORBiT(upper_lr=0.2, weighting=bl.weightings.SimplexAscent(0.1)), 0.5)
    >>> smaller.upper_lr, smaller.lower_lr, smaller.weighting.lr
    (0.1, None, 0.05)
    """
    own: dict[str, object] = {}
    for name in module.field_names(part):
        value = getattr(part, name)
        if name == "lr" or name.endswith("_lr"):
            own[name] = scaled_rate(value, factor)
        elif name in PARTS:
            own[name] = scaled(value, factor)
    given = {name: value for name, value in own.items() if value is not None}
    return module.replace(part, **given) if given else None
