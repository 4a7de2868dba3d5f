"""The network that all tasks share: a function from standardised inputs to features, and its initial parameters.

Input columns are padded with zeros to one of a few sizes, so that a compiled program serves many tables. The parameters
of padding start at zero, and stay there because their gradients are zero.
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
from bilevel.problem import initial_point
from bilevel.studies.problems.models import sincos
from bilevel.studies.problems.networks import MLP, model_by_row

BLOCK = 256  # rows in a compiled call: a fixed number, so that a row's features do not depend on the rows beside it
EXACT = 4096  # sizes are padded to powers of two up to here; beyond, where memory counts, to three leading bits


@dataclasses.dataclass(frozen=True)
class Fourier:
    """Random Fourier features, [sin(W (b * p)), cos(W (b * p))] / sqrt(K), of a point p.

    Their inner products approximate the Gaussian kernel exp(-|b * (p - q)|^2 / 2). x holds the random matrix W, which
    is not learnt, and the logarithms of the bandwidths b, which keep them positive.
    """

    def __call__(self, x: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
        """The features of a batch."""
        W = jax.lax.stop_gradient(x["frequencies"])
        phase = (inputs * jnp.exp(x["bandwidth"])[None]) @ W
        return jnp.concatenate(sincos(phase), axis=1) / W.shape[1] ** 0.5


@dataclasses.dataclass(frozen=True)
class Beside:
    """The inputs themselves, followed by the features that a function computes from them.

    A head can then be a linear model of the inputs, which is as much as few rows can support.
    """

    function: Callable[[Any, jax.Array], jax.Array]

    def __call__(self, x: Any, inputs: jax.Array) -> jax.Array:
        """The features of a batch."""
        return jnp.concatenate([inputs, self.function(x, inputs)], axis=1)


class Shared(NamedTuple):
    """What all tasks share: the standardisation of columns, and a network with its parameters.

    Features that come from padding are computed, but not used.
    """

    function: Callable[[Any, jax.Array], jax.Array]
    x: Any  # NumPy arrays once it is fitted
    columns: int  # of its input, with padding
    used: np.ndarray  # the numbers of the features that are used
    made: int  # how many features it computes
    linear: int = 0  # how many of them, the first ones, are the inputs
    centre: np.ndarray | float = 0.0  # of each column of X
    scale: np.ndarray | float = 1.0

    def beside(self, inputs: int) -> Shared:
        """The same network with its inputs as additional features; `inputs` of its columns are not padding."""
        used = np.concatenate([np.arange(inputs), self.columns + self.used])
        made = self.columns + self.made
        return self._replace(function=Beside(self.function), used=used, made=made, linear=self.columns)

    @property
    def features(self) -> int:
        """How many features are used."""
        return len(self.used)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Rows of X, standardised and padded."""
        found = np.zeros((len(X), self.columns), np.float32)
        found[:, : X.shape[1]] = (X - self.centre) / self.scale
        return found

    def blocks(self, X: np.ndarray, index: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """The features of the rows `index` of X, chunk by chunk, each with its place in `index`."""
        x = jax.tree.map(jnp.asarray, self.x)
        for start in range(0, len(index), CHUNK):
            place = slice(start, min(start + CHUNK, len(index)))
            inputs = self.inputs(X[index[place]])
            count = len(inputs)
            inputs = np.pad(inputs, ((0, -count % BLOCK), (0, 0)))
            blocks = [_features(self.function, x, inputs[i : i + BLOCK]) for i in range(0, count, BLOCK)]
            yield place, np.concatenate(blocks)[:count, self.used]

    def transform(self, X: np.ndarray, index: np.ndarray, dtype: Any) -> np.ndarray:
        """The features of the rows `index` of X."""
        found = np.empty((len(index), self.features), dtype)
        for place, features in self.blocks(X, index):
            found[place] = features
        return found


def dense(columns: int, layers: tuple[int, ...], seed: int) -> Shared:
    """Dense layers with ReLU after each."""
    wide = padded(columns, least=8)
    x = MLP((columns, *layers), bias=True).init(seed)
    x[0]["w"] = jnp.pad(x[0]["w"], ((0, wide - columns), (0, 0)))
    return Shared(MLP((wide, *layers), bias=True), x, wide, np.arange(layers[-1]), layers[-1])


def fourier(columns: int, frequencies: int, bandwidth: float, seed: int) -> Shared:
    """Random Fourier features; bandwidths are in units of 1 / sqrt(columns), which suits standardised inputs."""
    wide = padded(columns, least=8)
    W = np.zeros((wide, frequencies), np.float32)
    W[:columns] = np.random.default_rng(seed).normal(size=(columns, frequencies))
    first = np.log(bandwidth / columns**0.5)
    x = {"bandwidth": jnp.full(wide, first, jnp.float32), "frequencies": jnp.asarray(W)}
    return Shared(Fourier(), x, wide, np.arange(2 * frequencies), 2 * frequencies)


def model(owner: str, network: Any, columns: int, seed: int) -> Shared:
    """A model of Flax NNX or Equinox, or the one that a function of (columns, seed) returns."""
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
    return Shared(model_by_row, x, columns, np.arange(shape[1]), shape[1])


@functools.partial(jax.jit, static_argnums=0)
def _features(function: Callable[[Any, jax.Array], jax.Array], x: Any, inputs: jax.Array) -> jax.Array:
    return function(x, inputs)


def padded(count: int, least: int = 1) -> int:
    """The size that `count` is padded to: at most twice as large, and beyond 4096 at most a quarter larger.

    >>> [padded(n) for n in (1, 3, 100, 4097, 6000, 1_000_000)], padded(3, least=8)
    ([1, 4, 128, 5120, 6144, 1048576], 8)
    """
    count = max(count, least)
    power = 1 << (count - 1).bit_length()
    if power <= EXACT:
        return power
    step = power // 8
    return -(-count // step) * step
