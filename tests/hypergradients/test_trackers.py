"""What trackers follow, in closed form: no compiled run, only a noisy value along a path."""

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.hypergradients.trackers import Momentum, Storm, look_up, start_table

POINTS, NOISE = np.random.default_rng(0).normal(size=(2, 8, 3))


def square(point, noise):
    """A value whose noise is the same at every point, and the point as what else is returned."""
    return {"d": point**2 + noise}, point


def tracked(tracker, momentum, noise=NOISE):
    """The values of a tracker along the path, the first of them the oracle's."""
    memory = tracker.init(square(POINTS[0], noise[0])[0], POINTS[0])
    values = [memory.value["d"]]
    for point, sample in zip(POINTS[1:], noise[1:], strict=True):
        value, extra, memory = tracker.update(square, point, memory, sample, momentum)
        assert extra is point
        assert value is memory.value
        values.append(value["d"])
    return np.stack(values)


def average(values, momentum):
    """(1 - momentum)^k of the first, and momentum (1 - momentum)^(k - j) of every later one."""
    share = momentum * (1 - momentum) ** np.arange(len(values))[::-1]
    share[0] /= momentum
    return share @ values


@pytest.mark.parametrize("momentum", [0.2, 0.7, 1.0])
def test_momentum_is_an_exponential_average(momentum):
    wanted = [average(POINTS[:k] ** 2 + NOISE[:k], momentum) for k in range(1, len(POINTS) + 1)]
    np.testing.assert_allclose(tracked(Momentum(), momentum), wanted, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.2, 0.7, 1.0])
def test_storm_telescopes_where_the_oracle_is_exact(momentum):
    np.testing.assert_allclose(tracked(Storm(), momentum, 0 * NOISE), POINTS**2, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.2, 0.7, 1.0])
def test_the_error_of_storm_is_the_average_of_the_noise_whatever_the_path(momentum):
    """Noise that is the same at both points leaves only its exponential average, without the lag of momentum."""
    wanted = [average(NOISE[:k], momentum) for k in range(1, len(POINTS) + 1)]
    np.testing.assert_allclose(tracked(Storm(), momentum) - POINTS**2, wanted, atol=1e-13)


def test_the_mean_of_saga_over_the_blocks_is_the_full_value():
    generator = np.random.default_rng(0)
    shares = jnp.array([0.3, 0.3, 0.3, 0.1])
    old, new = generator.normal(size=(2, 4, 3))
    directions = [look_up(start_table(jnp.array(old), shares), j, jnp.array(new[j]), shares[j])[0] for j in range(4)]
    np.testing.assert_allclose(shares @ jnp.stack(directions), shares @ new, atol=1e-14)
    direction, table = look_up(start_table(jnp.array(new), shares), 2, jnp.array(new[2]), shares[2])
    np.testing.assert_allclose(direction, shares @ new, atol=1e-14)
    np.testing.assert_allclose(table.mean, shares @ new, atol=1e-14)


def test_a_table_of_saga_is_exact_after_one_sweep():
    generator = np.random.default_rng(0)
    shares = jnp.array([0.3, 0.3, 0.3, 0.1])
    old, new = jnp.array(generator.normal(size=(2, 4, 3)))
    table = start_table(old, shares)
    for j in range(4):
        _, table = look_up(table, jnp.asarray(j), new[j], shares[j])
    np.testing.assert_array_equal(table.entries, new)
    np.testing.assert_allclose(table.mean, shares @ new, atol=1e-14)
