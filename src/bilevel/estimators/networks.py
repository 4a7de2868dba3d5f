"""What tasks share: a function from standardised inputs to features, and where its numbers start.

Columns are padded with zeros, and so are the numbers that would multiply them: these stay zero, as their gradients are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel.estimators.rows import CHUNK
from bilevel.estimators.sizes import padded
from bilevel.problem import initial_point
from bilevel.problems.representation import MLP, model_by_row
from bilevel.problems.sincos import sincos

BLOCK = 256  # rows in a compiled call: always as many, so that a row's features do not depend on the rows beside it


@dataclasses.dataclass(frozen=True)
class Fourier:
    """Random Fourier features, [sin(W (b * p)), cos(W (b * p))] / sqrt(K), of a point p.

    Their inner products approximate the Gaussian kernel exp(-|b * (p - q)|^2 / 2). x holds the logarithms of the
    bandwidths b, so that they stay positive, and W, which is random and stays as it is.
    """

    def __call__(self, x: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
        """The features of a batch."""
        W = jax.lax.stop_gradient(x["frequencies"])
        phase = (inputs * jnp.exp(x["bandwidth"])[None]) @ W
        return jnp.concatenate(sincos(phase), axis=1) / W.shape[1] ** 0.5


@dataclasses.dataclass(frozen=True)
class Beside:
    """The inputs themselves and, beside them, the features that a function makes of them.

    A head can then be a linear model of the inputs, which is what few rows bear.
    """

    function: Callable[[Any, jax.Array], jax.Array]

    def __call__(self, x: Any, inputs: jax.Array) -> jax.Array:
        """The features of a batch."""
        return jnp.concatenate([inputs, self.function(x, inputs)], axis=1)


class Start(NamedTuple):
    """The function, its numbers to begin with, how many columns it takes, and which of its features are there.

    Those of columns that are padding are not.
    """

    function: Callable[[Any, jax.Array], jax.Array]
    x: Any
    columns: int
    used: np.ndarray  # their numbers
    made: int  # features with those that are not there
    linear: int = 0  # of them, the first ones, which are the inputs

    def beside(self, inputs: int) -> Start:
        """The same with its inputs, of which so many are no padding, as features too."""
        used = np.concatenate([np.arange(inputs), self.columns + self.used])
        return self._replace(
            function=Beside(self.function), used=used, made=self.columns + self.made, linear=self.columns
        )


def dense(columns: int, layers: tuple[int, ...], seed: int) -> Start:
    """Dense layers with ReLU after each."""
    wide = padded(columns, least=8)
    x = MLP((columns, *layers), bias=True).init(seed)
    x[0]["w"] = jnp.pad(x[0]["w"], ((0, wide - columns), (0, 0)))
    return Start(MLP((wide, *layers), bias=True), x, wide, np.arange(layers[-1]), layers[-1])


def fourier(columns: int, frequencies: int, bandwidth: float, seed: int) -> Start:
    """Random Fourier features; bandwidths are in units of 1 / sqrt(columns), that of standardised inputs."""
    wide = padded(columns, least=8)
    W = np.zeros((wide, frequencies), np.float32)
    W[:columns] = np.random.default_rng(seed).normal(size=(columns, frequencies))
    first = np.log(bandwidth / columns**0.5)
    x = {"bandwidth": jnp.full(wide, first, jnp.float32), "frequencies": jnp.asarray(W)}
    return Start(Fourier(), x, wide, np.arange(2 * frequencies), 2 * frequencies)


def model(owner: str, network: Any, columns: int, seed: int) -> Start:
    """A model of Flax NNX or Equinox, or what a function of (columns, seed) makes."""
    if callable(network) and jax.tree_util.all_leaves([network]):
        network = network(columns, seed)
    if jax.tree_util.all_leaves([network]) or not callable(network):
        raise TypeError(
            f"{owner}(network=...) is {type(network).__name__}: it needs a model of Flax NNX or Equinox, or a function "
            "of (columns, seed) that makes one."
        )
    x = initial_point.arrays(pytrees.hold_functions(network), f"{owner}(network=...)")
    row = jax.ShapeDtypeStruct((1, columns), jnp.float32)
    try:
        shape = jax.eval_shape(model_by_row, x, row).shape
    except Exception as error:  # whatever the model raises
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{owner}(network=...) fails on a row of {columns} columns: {said}") from error
    if len(shape) != 2:
        raise ValueError(f"{owner}(network=...) makes features of shape {shape[1:]} of a row: it needs one axis.")
    return Start(model_by_row, x, columns, np.arange(shape[1]), shape[1])


class Shared(NamedTuple):
    """What was learnt for all tasks: how columns are standardised, and the network."""

    function: Callable[[Any, jax.Array], jax.Array]
    x: Any  # numpy's arrays
    columns: int  # that the function takes
    used: np.ndarray  # the numbers of the features that are there
    made: int  # features with those of columns that are padding
    linear: int  # of them, the first ones, which are the inputs
    centre: np.ndarray  # of each column of X
    scale: np.ndarray

    @property
    def features(self) -> int:
        """How many are there."""
        return len(self.used)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Standardised and padded."""
        found = np.zeros((len(X), self.columns), np.float32)
        found[:, : X.shape[1]] = (X - self.centre) / self.scale
        return found

    def blocks(self, X: np.ndarray, index: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """The features of some rows, chunk by chunk, with where they belong."""
        x = jax.tree.map(jnp.asarray, self.x)
        for start in range(0, len(index), CHUNK):
            place = slice(start, min(start + CHUNK, len(index)))
            inputs = self.inputs(X[index[place]])
            pieces = [self._block(x, inputs[i : i + BLOCK]) for i in range(0, len(inputs), BLOCK)]
            yield place, np.concatenate(pieces)

    def transform(self, X: np.ndarray, index: np.ndarray, dtype: Any) -> np.ndarray:
        """The features of some rows."""
        found = np.empty((len(index), self.features), dtype)
        for place, features in self.blocks(X, index):
            found[place] = features
        return found

    def _block(self, x: Any, inputs: np.ndarray) -> np.ndarray:
        count = len(inputs)
        if count < BLOCK:
            inputs = np.concatenate([inputs, np.zeros((BLOCK - count, self.columns), np.float32)])
        return np.asarray(_features(self.function, x, inputs))[:count, self.used]


@functools.partial(jax.jit, static_argnums=0)
def _features(function: Callable[[Any, jax.Array], jax.Array], x: Any, inputs: jax.Array) -> jax.Array:
    return function(x, inputs)
