"""What the driver asks of a solver, and what a step tells it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

from bilevel.problem.problem import Grouped


class Info(NamedTuple):
    """What a step saw."""

    losses: jax.Array  # f_i on the step's sample
    direction_norm: jax.Array
    upper_rate: jax.Array
    lower_rate: jax.Array  # one per task
    weights_rate: jax.Array


class Solver(Protocol):
    """What the driver asks of a solver; a state has step, x, y and weights."""

    @property
    def problem_type(self) -> type[Grouped]:
        """The kind of problem that it solves."""
        ...

    @property
    def chooses_rates(self) -> bool:
        """Whether a rate of None is chosen for the user."""
        ...

    def init(self, problem: Any, x: Any, y: Any = None, *, key: jax.Array, steps: int) -> Any:
        """Validates everything and returns the first state."""
        ...

    def measures(self, state: Any) -> bool:
        """Whether `refresh` has anything to measure."""
        ...

    def refresh(self, problem: Any, state: Any, key: jax.Array, iterations: Any = 1) -> Any:
        """Between chunks of steps: measures again what automatic rates need."""
        ...

    def step(self, problem: Any, state: Any, key: jax.Array) -> tuple[Any, Info]:
        """One step."""
        ...
