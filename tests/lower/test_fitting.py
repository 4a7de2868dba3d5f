"""Lower problems solved from where y is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.lower.fitting import fitted

N, D, ROWS = 7, 5, 9


def regressions():
    draws = np.random.default_rng(0)
    data = draws.normal(size=(N, ROWS, D)), draws.normal(size=(N, ROWS))

    def loss(x, y, batch):
        return jnp.mean((batch[0] @ (x * y) - batch[1]) ** 2) + 0.01 * jnp.sum(y**2)

    return bl.Problem(loss, loss, bl.Task.stack(train=data, validation=data)), data


def fit(problem, x, y, steps):
    each = jax.jit(lambda x, y: problem.each(lambda task, y: fitted(task, x, y, steps), bl.PerTask((y,))))
    return np.asarray(each(x, y).groups[0])


def test_a_quadratic_is_solved_in_as_many_steps_as_y_has_numbers():
    problem, (inputs, targets) = regressions()
    x = jnp.asarray(np.random.default_rng(1).uniform(0.5, 2, size=D))
    scaled = inputs * np.asarray(x)
    A = np.einsum("nri,nrj->nij", scaled, scaled) / ROWS + 0.01 * np.eye(D)
    wanted = np.linalg.solve(A, np.einsum("nri,nr->ni", scaled, targets)[..., None] / ROWS)[..., 0]
    start = jnp.asarray(np.random.default_rng(2).normal(size=(N, D)))
    np.testing.assert_allclose(fit(problem, x, start, D), wanted, rtol=0, atol=1e-8)
    assert np.abs(fit(problem, x, start, D - 1) - wanted).max() > 1e-3


@pytest.mark.parametrize("size", [0.1, 3.0, 30.0])
def test_the_lower_loss_never_rises_where_it_is_not_convex(size):
    rows = np.random.default_rng(0).normal(size=(N, ROWS, D))

    def lower(x, y, batch):
        return jnp.mean(jnp.cos(batch @ y) + 0.1 * (batch @ y) ** 4) + 1e-3 * jnp.sum(y**2)

    problem = bl.Problem(lower, lower, bl.Task.stack(train=rows, validation=rows))
    y = jnp.asarray(size * np.random.default_rng(1).normal(size=(N, D)))
    x = jnp.zeros(1)
    losses = lambda y: np.asarray(problem.losses(x, bl.PerTask((jnp.asarray(y),)), "validation"))  # noqa: E731
    values = [losses(fit(problem, x, y, steps)) for steps in range(0, 9, 2)]
    assert all(np.all(after <= before) for before, after in itertools.pairwise(values))
    assert np.all(values[-1] < values[0])


def test_what_is_not_finite_stays_and_what_fits_stays():
    problem, _ = regressions()
    x = jnp.ones(D)
    settled = fit(problem, x, jnp.zeros((N, D)), 3 * D)
    broken = settled.copy()
    broken[2] = np.nan
    after = fit(problem, x, jnp.asarray(broken), 4)
    assert np.all(np.isnan(after[2]))
    rest = np.delete(np.arange(N), 2)
    np.testing.assert_allclose(after[rest], settled[rest], rtol=1e-7)
