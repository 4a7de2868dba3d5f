"""The suites' generator is one: uniform, and independent from key to key and from draw to draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.testing.common import precision, quick_key

DRAWS = 4000


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    "keys",
    [
        lambda count: jax.random.split(quick_key(0), count),
        lambda count: jax.vmap(lambda k: jax.random.fold_in(quick_key(0), k))(jnp.arange(count)),
        lambda count: jax.vmap(quick_key)(jnp.arange(count)),
    ],
    ids=["split", "folded", "seeded"],
)
def test_draws_are_uniform_and_uncorrelated(keys, dtype):
    with precision(dtype):
        drawn = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (3,), dtype))(keys(DRAWS)), float)
    assert len(np.unique(drawn)) > 0.99 * drawn.size
    # Four standard deviations of a mean of uniform numbers, and of a correlation.
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=4 * np.sqrt(1 / 12 / DRAWS))
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(3), atol=4 / np.sqrt(DRAWS))
    np.testing.assert_allclose(np.corrcoef(drawn[1:, 0], drawn[:-1, 0]), np.eye(2), atol=4 / np.sqrt(DRAWS))


def test_a_key_gives_the_same_under_vmap_and_its_data_can_be_wrapped():
    keys = jax.random.split(quick_key(3), 4)
    together = jax.vmap(lambda key: jax.random.randint(key, (5,), 0, 100))(keys)
    alone = [jax.random.randint(key, (5,), 0, 100) for key in keys]
    np.testing.assert_array_equal(together, jnp.stack(alone))
    assert jax.random.wrap_key_data(jax.random.key_data(keys)).dtype == jax.random.key(0).dtype
