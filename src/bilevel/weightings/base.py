"""The base classes: `Weighting`, and `Wrapper`, `Compared` and `Shifted` for weightings around another one."""

from __future__ import annotations

import abc
from typing import ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel._core.types import Tree

StateT = TypeVar("StateT")


class Weighting(abc.ABC, Generic[StateT]):
    """How much each task counts: weights on the simplex {weights >= 0, sum = 1}, moved by the tasks' losses.

    To write one, make a part (`bl.part`) that inherits from this class and has `init` and `update`:

    >>> import bilevel as bl
    >>> @bl.part
    ... class Softmax(bl.weightings.Weighting):
    ...     '''weights proportional to exp(sharpness * losses), forgetting the past.'''
    ...     sharpness: float = bl.leaf(default=1.0)
    ...     lr = 1.0  # not used: given, so that no solver measures one
    ...     def init(self, n, dtype):
    ...         return jnp.full(n, 1 / n, dtype), ()
    ...     def update(self, weights, losses, state, rate):
    ...         return jax.nn.softmax(self.sharpness * losses).astype(weights.dtype), state
    >>> bl.testing.check_weighting(Softmax())

    `Descent` does not move weights: it maximises over a set of them. It takes a weighting that has `bounds`.

    What it must do, and what `bl.testing.check_weighting` checks:

    - `weights` is of shape (n,) and of the dtype that `init` was given, on the simplex after every update;
    - every leaf of the state has one row per task, as the weights have, so that a solver may take some of the tasks
      or place tasks on several devices; a weighting without memory has the state ();
    - `update` is pure, returns a state of the shapes and dtypes it was given, and works under `jax.jit` and `jax.vmap`;
    - tasks that start with equal weights are treated alike: permuting them permutes the weights;
    - numbers are data (`leaf`), so that other values do not compile again.

    Attributes:
        lr: gamma, the rate of the weights; None = chosen by the solver.
        pull: the strength e of a term -e ||weights - 1/n||^2 in the objective.
        moves: whether the losses move the weights, so that a rate is needed.
        compares: the name of what the tasks are compared by.
        weighs_draws: whether it can weigh tasks that are seen once (`bl.sampling.Fresh`), by `start_draws` and
            `weigh_draw`.
    """

    lr: Rate = None
    pull: float = 0.0
    moves: bool = True
    compares: str = "loss"
    weighs_draws: bool = False

    def check(self, n: int) -> None:
        """Raises a ValueError if an argument makes no sense for n tasks."""

    @abc.abstractmethod
    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, StateT]:
        """The first weights of n tasks, and the first state."""

    @abc.abstractmethod
    def update(self, weights: jax.Array, losses: jax.Array, state: StateT, rate: ArrayLike) -> tuple[jax.Array, StateT]:
        """The next weights and state, from the tasks' losses; `rate` is the value of `lr` at this step."""

    def in_direction(self, weights: jax.Array, state: StateT) -> jax.Array:
        """The factor of each loss in what x descends: linear in the weights, and by default the weights."""
        return weights

    def sizes(self, losses: jax.Array, state: StateT) -> jax.Array:
        """The size of what moves each weight, which automatic rates depend on: by default, that of the loss."""
        return jnp.abs(losses)

    # The objective itself, for solvers that maximise it over the weights instead of moving them by a rate:
    # max over p in `bounds` of <p, scores(losses)> - pull |p - 1/m|^2, and the tasks then have the weights `spread(p)`.

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """The scores that are weighed, linear in the losses up to a constant: by default, the losses."""
        return losses

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """The set of the weights of the scores of n tasks: by default, the simplex."""
        return Bounds(jnp.zeros(n, dtype), jnp.ones(n, dtype))

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """The weights of n tasks, from the weights of the scores."""
        return weights

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """The scores by which tasks are compared: by default, the losses. The objective is their maximum."""
        return losses

    def start_draws(self, dtype: DTypeLike) -> Tree:
        """The state from draw to draw when every step sees new tasks; it has no rows per task."""
        return ()

    def weigh_draw(self, losses: jax.Array, state: Tree) -> tuple[jax.Array, Tree]:
        """The weights of the tasks of one draw, with sum 1 on average, and the next state."""
        raise NotImplementedError(f"{type(self).__name__} follows tasks from step to step.")

    def known_baselines(self, n: int) -> np.ndarray | None:
        """The loss that each of n tasks could reach, if the weighting was given it; otherwise None."""
        return None


def uniform(n: int, dtype: DTypeLike) -> jax.Array:
    """1/n for each task."""
    return jnp.full(n, 1 / n, dtype)


class Wrapper(Weighting[StateT]):
    """A weighting around another one, its field `weighting`, which has the rate and moves the weights.

    A move costs what a move of the weighting inside costs, and a pass or two over n numbers.
    """

    weighting: Weighting

    def __post_init__(self) -> None:
        if isinstance(self.weighting, type) or not hasattr(self.weighting, "update"):
            name = type(self).__name__
            raise TypeError(f"{name}(weighting={self.weighting!r}): it needs a weighting object, such as Average().")

    # Read-only like every field of a part; pyright would allow assignments to them.
    @property
    def lr(self) -> Rate:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the weighting inside."""
        return self.weighting.lr

    @property
    def pull(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the weighting inside."""
        return self.weighting.pull

    @property
    def moves(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the weighting inside."""
        return self.weighting.moves

    @property
    def compares(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the weighting inside."""
        return self.weighting.compares

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """As the weighting inside."""
        return self.weighting.scores(losses, state)

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """As the weighting inside."""
        return self.weighting.bounds(n, dtype)

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """As the weighting inside."""
        return self.weighting.spread(weights, n)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """As the weighting inside."""
        return self.weighting.compared(losses)

    def known_baselines(self, n: int) -> np.ndarray | None:
        """As the weighting inside."""
        return self.weighting.known_baselines(n)


class Wrapped(NamedTuple, Generic[StateT]):
    """The state of the weighting inside, and what the outer one keeps about every task."""

    inside: StateT
    kept: Tree


class Compared(Wrapper[Wrapped[StateT]]):
    """A weighting that compares tasks by `seen`, an affine function s(f) = M f + c of their losses f.

    The objective is the largest s_i, and the weighting inside sees s in place of f. x descends sum_i weights_i s_i, in
    which the losses count M' weights. M' is the transpose of the derivative of `seen` and is taken from `seen` itself,
    so that the two cannot disagree.

    What is given per task is kept in the state, so that a solver that takes some tasks finds their rows.
    """

    WORD: ClassVar[str] = "compared loss"  # the name of s_i

    @property
    def compares(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name, such as "regret"; with another wrapper inside, "regret of ratios"."""
        inside = self.weighting.compares
        return self.WORD if inside == "loss" else f"{inside} of {self.WORD}s"

    @abc.abstractmethod
    def keep(self, n: int, dtype: DTypeLike) -> Tree:
        """The first state about every task, one row each."""

    @abc.abstractmethod
    def seen(self, losses: jax.Array, kept: Tree) -> jax.Array:
        """s(f), by which the tasks are compared."""

    def renew(self, losses: jax.Array, kept: Tree) -> Tree:
        """The state after these losses; by default, unchanged."""
        return kept

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, Wrapped[StateT]]:
        """The weights and state of the weighting inside, and what is kept."""
        weights, inside = self.weighting.init(n, dtype)
        return weights, Wrapped(inside, self.keep(n, dtype))

    def update(
        self, weights: jax.Array, losses: jax.Array, state: Wrapped[StateT], rate: ArrayLike
    ) -> tuple[jax.Array, Wrapped[StateT]]:
        """Moves the weighting inside by s."""
        kept = self.renew(losses, state.kept)
        weights, inside = self.weighting.update(weights, self.seen(losses, kept), state.inside, rate)
        return weights, Wrapped(inside, kept)

    def scores(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """The scores of the weighting inside at s."""
        return self.weighting.scores(self.seen(losses, state.kept), state.inside)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """The scores of the weighting inside, at s."""
        kept = self.renew(losses, self.keep(len(losses), jnp.result_type(float)))  # type: ignore[arg-type]
        seen = self.seen(losses, jax.tree.map(np.asarray, kept))  # type: ignore[arg-type]
        return self.weighting.compared(np.asarray(seen))

    def in_direction(self, weights: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """M' weights."""
        inside = self.weighting.in_direction(weights, state.inside)
        _, transposed = jax.vjp(lambda losses: self.seen(losses, state.kept), jnp.zeros_like(inside))
        return transposed(inside)[0]

    def sizes(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """The sizes of s."""
        return self.weighting.sizes(self.seen(losses, state.kept), state.inside)


class Shifted(Compared[StateT]):
    """A weighting that compares tasks by their losses plus a constant for each task."""

    SMALLEST = 0.5  # the least size, as a share of the loss

    def sizes(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """|f_i + c_i|, clipped to between half of |f_i| and |f_i|.

        A shift does not change slopes, and slopes limit the rate: |grad f_i|^2 <= 2 L (f_i - min f_i). For non-negative
        losses f_i bounds the right side, and f_i + c_i is close to it if -c_i is about min f_i. Where f_i + c_i crosses
        zero, the rate must not grow without bound.
        """
        plain = jnp.abs(losses)
        size = jnp.clip(jnp.abs(self.seen(losses, state.kept)), self.SMALLEST * plain, plain)
        return self.weighting.sizes(size, state.inside)
