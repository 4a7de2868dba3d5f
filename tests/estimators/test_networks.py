"""Features: what padding and neighbours may not change, and what Fourier features approximate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bilevel.estimators import networks
from bilevel.estimators.networks import BLOCK, padded
from bilevel.studies.problems import MLP


def shared(start, columns):
    return start._replace(centre=np.zeros(columns), scale=np.ones(columns))


def test_features_are_those_of_the_network_on_standardised_columns(shared):
    X = np.random.default_rng(0).normal(size=(7, 3))
    own = MLP((3, 5), bias=True)
    expected = own(own.init(0), jnp.asarray((X - [0, 1, 2]) / [1, 2, 0.5], jnp.float32))
    found = shared.transform(X, np.arange(7), np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_features_of_a_row_do_not_depend_on_the_rows_beside_it(shared):
    X = np.random.default_rng(0).normal(size=(2 * BLOCK + 3, 3))
    every = np.arange(len(X))
    whole = shared.transform(X, every, np.float32)
    order = np.random.default_rng(1).permutation(len(X))
    assert np.array_equal(shared.transform(X, order, np.float32), whole[order])
    assert np.array_equal(shared.transform(X, every[5:6], np.float32), whole[5:6])


def test_fourier_features_approximate_the_gaussian_kernel():
    """Of K frequencies the error of an inner product is about 1 / sqrt(K)."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    found = shared(networks.fourier(3, 20_000, 2.0, seed=0), 3).transform(X, np.arange(20), np.float64)
    bandwidth = 2.0 / 3**0.5
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found @ found.T, np.exp(-(bandwidth**2) * squares / 2), atol=4 / 20_000**0.5)


def test_frequencies_are_not_learnt():
    start = networks.fourier(2, 4, 1.0, seed=0)
    slope = jax.grad(lambda x: jnp.sum(start.function(x, jnp.ones((3, 8), jnp.float32)) ** 3))(start.x)
    assert np.all(np.asarray(slope["frequencies"]) == 0)
    assert np.any(np.asarray(slope["bandwidth"][:2]) != 0)
    assert np.all(np.asarray(slope["bandwidth"][2:]) == 0)  # of columns that are padding


@pytest.mark.parametrize(
    "network",
    [
        eqx.nn.MLP(3, 6, 4, 1, key=jax.random.key(0), dtype=jnp.float32),
        nnx.Linear(3, 6, rngs=nnx.Rngs(0), param_dtype=jnp.float32),
        lambda columns, seed: eqx.nn.Linear(columns, 6, key=jax.random.key(seed), dtype=jnp.float32),
    ],
    ids=["Equinox", "Flax", "a function"],
)
def test_models_take_rows(network):
    own = shared(networks.model("Model", network, 3, seed=1), 3)
    X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model = network(3, 1) if not jax.tree.leaves(eqx.filter(network, eqx.is_array)) else network
    np.testing.assert_allclose(own.transform(X, np.arange(4), np.float64), jax.vmap(model)(X), rtol=1e-5, atol=1e-6)


def test_models_that_cannot_be_used_are_told():
    with pytest.raises(TypeError, match=r"Model\(network=...\) is str: it needs a model of Flax NNX or Equinox"):
        networks.model("Model", "dense", 3, 0)
    with pytest.raises(ValueError, match=r"Model\(network=...\) fails on a row of 2 columns"):
        networks.model("Model", eqx.nn.Linear(3, 6, key=jax.random.key(0)), 2, 0)
    with pytest.raises(ValueError, match=r"features of shape \(\) of a row: it needs one axis"):
        networks.model("Model", eqx.nn.Linear(3, "scalar", key=jax.random.key(0)), 3, 0)


def test_padded_sizes_are_enough_and_not_much_more():
    sizes = {n: padded(n) for n in [*range(1, 5000), 10_001, 123_457, 999_999, 1_048_577]}
    assert all(n <= size for n, size in sizes.items())
    assert all(size < 2 * n for n, size in sizes.items())
    assert all(size <= 1.25 * n for n, size in sizes.items() if n > 4096)
    assert all(padded(size) == size for size in sizes.values())


def test_padded_sizes_are_few():
    assert len({padded(n) for n in range(1, 4097)}) == 13
    assert len({padded(n) for n in range(2**19 + 1, 2**20 + 1)}) == 4
