import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.studies.problems.models import sincos


@pytest.mark.parametrize("size", [1.0, 100.0, 1e5])
def test_it_agrees_with_the_functions(size):
    x = np.random.default_rng(0).uniform(-size, size, 100_000).astype(np.float32)
    sine, cosine = jax.jit(sincos)(jnp.asarray(x))
    exact = x.astype(np.float64)
    assert np.abs(np.asarray(sine) - np.sin(exact)).max() < 1e-7
    assert np.abs(np.asarray(cosine) - np.cos(exact)).max() < 1e-7


def test_every_derivative_is_there():
    x = jnp.linspace(-9, 9, 50, dtype=jnp.float32)
    for own, known in ((lambda x: sincos(x)[0], jnp.sin), (lambda x: sincos(x)[1], jnp.cos)):
        for _ in range(3):
            own, known = jax.grad(own), jax.grad(known)
            np.testing.assert_allclose(jax.vmap(own)(x), jax.vmap(known)(x), atol=3e-7)
