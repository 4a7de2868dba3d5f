"""The base of weightings, and what they share."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds

StateT = TypeVar("StateT")


class Weighting(abc.ABC, Generic[StateT]):
    """How much each task counts: weights on the simplex {weights >= 0, sum = 1}, moved by the tasks' losses.

    To write one, make a part (`bl.part`) that inherits from this class and has `init` and `update`:

    >>> from bilevel._core.module import leaf, part
    >>> @part
    ... class Softmax(Weighting[tuple[()]]):
    ...     '''weights proportional to exp(sharpness * losses), forgetting the past.'''
    ...     sharpness: float = leaf(default=1.0)
    ...     lr = 1.0  # not used: given, so that no solver measures one
    ...     def init(self, n, dtype):
    ...         return uniform(n, dtype), ()
    ...     def update(self, weights, losses, state, rate):
    ...         return jax.nn.softmax(self.sharpness * losses).astype(weights.dtype), state
    >>> from bilevel.testing import check_weighting
    >>> check_weighting(Softmax())

    What it must do, and what `bl.testing.check_weighting` checks:

    - `weights` is of shape (n,) and of the dtype that `init` was given, on the simplex after every update;
    - every leaf of the state has one row per task, as the weights have, so that a solver may take some of the tasks
      or place tasks on several devices; a weighting that carries nothing has the state ();
    - `update` is pure, returns a state of the shapes and dtypes it was given, and works under `jax.jit` and `jax.vmap`;
    - tasks that start with equal weights are treated alike: permuting them permutes the weights;
    - what is a number is data (`leaf`), so that other values of it do not compile again.

    Attributes:
        lr: gamma, the rate of the weights; None = chosen by the solver.
        pull: the strength e of a term -e ||weights - 1/n||^2 in the objective.
        moves: whether the losses move the weights, so that a rate is needed.
        compares: what the tasks are compared by, in a word.
        weighs_draws: whether it can weigh tasks that are seen once (`bl.sampling.Fresh`), by `start_draws` and
            `weigh_draw`.
    """

    lr: Rate = None
    pull: float = 0.0
    moves: bool = True
    compares: str = "loss"
    weighs_draws: bool = False

    def check(self, n: int) -> None:
        """Raises a ValueError where an argument makes no sense for n tasks."""

    @abc.abstractmethod
    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, StateT]:
        """The first weights of n tasks, and the first state."""

    @abc.abstractmethod
    def update(self, weights: jax.Array, losses: jax.Array, state: StateT, rate: ArrayLike) -> tuple[jax.Array, StateT]:
        """The next weights and state, from the tasks' losses; `rate` is the value of `lr` at this step."""

    def in_direction(self, weights: jax.Array, state: StateT) -> jax.Array:
        """How much each task's loss counts in what x descends: linear in the weights, and for most these themselves."""
        return weights

    def sizes(self, losses: jax.Array, state: StateT) -> jax.Array:
        """The size of what moves each weight, from which a rate that is not given is chosen: for most, of the loss."""
        return jnp.abs(losses)

    # The objective itself, for solvers that maximise it over the weights instead of moving them by a rate:
    # max over p in `bounds` of <p, scores(losses)> - pull |p - 1/m|^2, and the tasks then have the weights `spread(p)`.

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """What is weighed, linear in the losses but for a constant: for most, these themselves."""
        return losses

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """The set that the weights of the scores of n tasks are in: for most, the simplex."""
        return Bounds(jnp.zeros(n, dtype), jnp.ones(n, dtype))

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """The weights of n tasks, of those of the scores."""
        return weights

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """What the tasks are compared by, at these losses: for most, these themselves. The objective is its maximum."""
        return losses

    def start_draws(self, dtype: DTypeLike) -> Any:
        """What is carried from draw to draw where every step sees new tasks: nothing with one row a task."""
        return ()

    def weigh_draw(self, losses: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """The weights of the tasks of one draw, of sum 1 on average, and what is carried on."""
        raise NotImplementedError(f"{type(self).__name__} follows tasks from step to step.")

    def known_baselines(self, n: int) -> np.ndarray | None:
        """The loss that each of n tasks could reach, where the weighting was given it; None where it was not."""
        return None


def uniform(n: int, dtype: DTypeLike) -> jax.Array:
    """1/n for each task."""
    return jnp.full(n, 1 / n, dtype)
