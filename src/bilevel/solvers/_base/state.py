"""`State`, which all solvers share, and `Info`, which a step reports.

A state is in two halves. What belongs to tasks has one row per task: `PerTask` and `InOrder` values (y, its optimisers,
v, tables, curvatures) wherever they are, and the weights and what their weighting carries. All else is shared: x, its
optimiser, directions, scalars. `Halves` takes a state apart and puts it together again, so that "only these tasks",
"these tasks on that device" or "write it down" are each one function, for any solver.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.types import Scalar, Tree, X, Y
from bilevel.problem.per_task import PerTask, is_of_tasks
from bilevel.problem.problem import BaseProblem


class State(NamedTuple, Generic[X, Y]):
    """The state of a solver. Fields that it does not use stay empty."""

    step: jax.Array  # k
    x: X
    y: PerTask[Y]
    weights: jax.Array  # lambda, one per task, in the order of the tasks
    weighting: Tree = ()  # what the weighting carries: one row per task, in their order
    upper: Tree = ()  # the optimiser of x
    lower: Tree = ()  # the optimisers of y: a `PerTask`
    v: Tree = ()  # what the estimator carries: a `PerTask`
    rates: Tree = ()  # what rates that are not given are made of
    memory: Tree = ()  # what a method carries besides: trackers, tables; what belongs to tasks is a `PerTask`
    sampling: Tree = ()  # what is known of tasks that a step does not see, where it sees some only


class Info(NamedTuple):
    """Report of one step."""

    losses: jax.Array  # f_i on the step's sample, of the tasks that it saw, group by group where these are some only
    direction_norm: jax.Array
    upper_rate: jax.Array
    lower_rate: jax.Array  # one per task
    weights_rate: jax.Array
    seen: jax.Array | None = None  # the numbers of the tasks that it saw, in the order of the losses; None = all

    def numbers(self, problem: BaseProblem) -> np.ndarray:
        """The numbers of the tasks that the step saw, in the order of its losses; not for use under `jit`."""
        return np.arange(problem.size) if self.seen is None else np.asarray(self.seen)

    @classmethod
    def of(cls, losses: jax.Array, direction_norm: Scalar = jnp.nan, **rates: Scalar) -> Info:
        """From the losses, and what else is known; NaN stands for what is not, such as rates a solver does not have.

        >>> Info.of(jnp.ones(2), upper_rate=0.1).lower_rate.tolist()
        [nan, nan]
        """
        fill = lambda value: jnp.asarray(value, losses.dtype)  # noqa: E731
        upper, weights = (fill(rates.pop(name, jnp.nan)) for name in ("upper_rate", "weights_rate"))
        lower = jnp.broadcast_to(fill(rates.pop("lower_rate", jnp.nan)), losses.shape)
        if rates:
            raise TypeError(f"Info.of got {min(rates)}=...: it knows upper_rate, lower_rate and weights_rate.")
        return cls(losses, fill(direction_norm), upper, lower, weights)


class Halves(NamedTuple):
    """A state taken apart: two states, each with None where the other has something."""

    shared: State
    tasks: State

    @classmethod
    def of(cls, state: State) -> Halves:
        """Takes a state apart."""
        ordered = {"weights": state.weights, "weighting": state.weighting}
        own = lambda leaf: leaf if is_of_tasks(leaf) else None  # noqa: E731
        rest = lambda leaf: None if is_of_tasks(leaf) else leaf  # noqa: E731
        without = state._replace(weights=None, weighting=None)
        tasks = jax.tree.map(own, without, is_leaf=is_of_tasks)
        return cls(jax.tree.map(rest, without, is_leaf=is_of_tasks), tasks._replace(**ordered))

    def join(self) -> State:
        """The state again."""
        pick = lambda a, b: b if a is None else a  # noqa: E731
        return jax.tree.map(pick, self.shared, self.tasks, is_leaf=lambda a: a is None or is_of_tasks(a))
