"""The protocol of estimators, and the implicit surrogate that most of them share."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from bilevel._core import values
from bilevel.problem.group import TaskView, UpperSample

State = Any


class Hypergradient(Protocol):
    """Estimates grad l_i(x) for one task at a time."""

    @property
    def needs_curvature(self) -> bool:
        """Whether it asks for `task.curvature`."""
        ...

    @property
    def needs_replay(self) -> bool:
        """Whether it asks for `task.replay`."""
        ...

    def check(self) -> None:
        """Raises where an argument makes no sense."""
        ...

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> State:
        """What is carried from step to step."""
        ...

    def prepare(self, task: TaskView, x: Any, y: Any, state: State, sample: UpperSample) -> State:
        """Moves what is carried; no gradient flows through this."""
        ...

    def surrogate(self, task: TaskView, x: Any, y: Any, state: State, sample: UpperSample) -> jax.Array:
        """A scalar of value f_i(x, y) whose gradient in x is the estimate; `state` is what `prepare` returned."""
        ...


class Stateless:
    """What estimators without arguments and state inherit."""

    needs_curvature = False
    needs_replay = False

    def check(self) -> None:
        """Nothing can be wrong."""

    def init(self, task: TaskView, x: Any, y: Any, sample: UpperSample) -> State:
        """Nothing is carried."""
        return ()

    def prepare(self, task: TaskView, x: Any, y: Any, state: State, sample: UpperSample) -> State:
        """Nothing moves."""
        return state


class Implicit:
    """What estimators of v ~ A^-1 f_y inherit; their state is, or has, `v`."""

    needs_curvature = False
    needs_replay = False

    def surrogate(self, task: TaskView, x: Any, y: Any, state: State, sample: UpperSample) -> jax.Array:
        """f(x, y) - <grad_y g(x, y), v>, with the value of its second term taken out again."""
        return implicit(task, x, y, state.v, sample)


def implicit(task: TaskView, x: Any, y: Any, v: Any, sample: UpperSample) -> jax.Array:
    """The surrogate of value f and gradient f_x - J v."""
    # <grad_y g, v> as a forward derivative: the reverse pass over x then runs once, through g itself.
    _, slope = jax.jvp(lambda y: task.lower(x, y, sample.lower), (y,), (v,))
    return task.upper(x, y, sample.upper) - (slope - jax.lax.stop_gradient(slope))


def upper_gradient(task: TaskView, x: Any, y: Any, sample: UpperSample) -> Any:
    """f_y, the right-hand side of A v = f_y."""
    return jax.grad(task.upper, argnums=1)(x, y, sample.upper)


def check_rate(name: str, lr: Any) -> None:
    """Raises unless a fixed scale is a positive number."""
    values.positive(name, lr, none="chosen and kept up to date")


def check_count(name: str, count: Any) -> None:
    """Raises unless a count is a whole number, 1 or more."""
    values.whole(name, count)
