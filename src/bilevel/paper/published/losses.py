"""The losses of the public scripts: every head has a bias, and cross-entropy is taken of probabilities.

The heads of different tasks do not start alike: the scripts mean to copy one first head into all of them, and the
assignment has no effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.problem.task import Task
from bilevel.problems.representation import MLP, Loss, softmax_cross_entropy_twice, uniform
from bilevel.problems.sincos import sincos

Batch = tuple[jax.Array, jax.Array]


class Head(NamedTuple):
    """y: a linear map with a bias."""

    w: jax.Array  # (features, outputs)
    b: jax.Array  # (outputs,)

    def __call__(self, features: jax.Array) -> jax.Array:
        """One row of outputs for each row of features."""
        return features @ self.w + self.b[None]


def with_heads(tasks: list[Task], features: int, outputs: int, seed: int) -> list[Task]:
    """The tasks, each with a first head of its own, uniform in +- 1 / sqrt(features) as PyTorch's layers are."""
    generator = np.random.default_rng(seed)

    def first() -> Head:
        draw = lambda shape: uniform(generator, shape, features, jnp.result_type(float))  # noqa: E731
        return Head(draw((features, outputs)), draw(outputs))

    return [dataclasses.replace(task, y=first()) for task in tasks]


def squared_weights(head: Head) -> jax.Array:
    """|w|^2, without the bias: FashionMNIST's penalty."""
    return jnp.sum(head.w**2)


def lengths(head: Head) -> jax.Array:
    """|w| + |b|, not squared: the sinusoids' penalty, whose gradient at 0 is 0 as PyTorch has it."""
    return _length(head.w) + _length(head.b)


def _length(a: jax.Array) -> jax.Array:
    squares = jnp.sum(a**2)
    # Two selections: the derivative of a square root at 0 is infinite also where it is not selected.
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


@dataclasses.dataclass(frozen=True)
class NetworkHeads:
    """f and g of FashionMNIST and of the sinusoids."""

    network: MLP
    loss: Loss
    ridge: float
    penalty: Callable[[Head], jax.Array]

    def upper(self, x: Any, y: Head, batch: Batch) -> jax.Array:
        """The mean loss."""
        inputs, targets = batch
        return self.loss(y(self.network(x, inputs)), targets)

    def lower(self, x: Any, y: Head, batch: Batch) -> jax.Array:
        """The same with the penalty of the head."""
        return self.upper(x, y, batch) + self.ridge * self.penalty(y)


class Hyperparameters(NamedTuple):
    """x of Letter."""

    penalty: jax.Array  # C, one for each feature
    bandwidth: jax.Array  # G, one for each input


class FourierHeads:
    """f and g of Letter: features [cos z, sin z], z = (G * point) R, and the penalty sum_j C_j |w_j|^2.

    In logarithmic space x is (log C, log G), and unconstrained.
    """

    def __init__(self, R: jax.Array, logarithms: bool):
        self.R, self.logarithms = R, logarithms

    def upper(self, x: Hyperparameters, y: Head, batch: Batch) -> jax.Array:
        """The mean loss."""
        points, labels = batch
        sine, cosine = sincos((points * self._read(x).bandwidth[None]) @ self.R)
        return softmax_cross_entropy_twice(y(jnp.concatenate([cosine, sine], axis=1)), labels)

    def lower(self, x: Hyperparameters, y: Head, batch: Batch) -> jax.Array:
        """The same with the weighted penalty."""
        return self.upper(x, y, batch) + self._read(x).penalty @ jnp.sum(y.w**2, axis=1)

    def _read(self, x: Hyperparameters) -> Hyperparameters:
        return Hyperparameters(*map(jnp.exp, x)) if self.logarithms else x
