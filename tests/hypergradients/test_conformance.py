"""Every exported estimator goes through the suite that users have; a new one joins by being exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel import hypergradients
from bilevel.hypergradients import Hypergradient, Neumann, Penalty, RandomNeumann, Tracked
from bilevel.hypergradients.upper import Point, Upper
from bilevel.problem.per_task import PerTask
from bilevel.testing import check_hypergradient

# Options that matter, and tolerances; all others are made without arguments.
EXAMPLES = {
    "Neumann": [(Neumann(12), None), (Neumann(40, lr=0.5), 1e-9)],
    "Penalty": [(Penalty(), None), (Penalty(100.0, lr=4e-3, steps=2), None)],
    "RandomNeumann": [(RandomNeumann(), 0.25)],  # four standard deviations of its mean
    "Tracked": [(Tracked(), None), (Tracked(lr=0.4, steps=2), None)],
}
EXPORTED = [name for name in hypergradients.__all__ if getattr(hypergradients, name) is not Hypergradient]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_exported_estimator_conforms(name):
    for estimator, tolerance in EXAMPLES.get(name) or [(getattr(hypergradients, name)(), None)]:
        check_hypergradient(estimator, tolerance)


# ---------------------------------------------------------------- Penalty, in closed form


def upper(x, y, batch):
    return jnp.sum((y - jnp.array([1.0, -1.0])) ** 2) / 2


def lower(x, y, batch):
    gap = y - jnp.array([[1.0, 2.0], [0.0, 1.0]]) @ x
    return gap @ jnp.array([[2.0, 0.5], [0.5, 1.0]]) @ gap / 2


def test_the_bias_of_the_penalty_falls_as_one_over_its_strength():
    """Settled, its gradient is f_x - J (A + f_yy / strength)^-1 f_y."""
    A, B = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 2.0], [0.0, 1.0]])
    problem, x = bl.Problem(upper, lower, [bl.Task((), ())]), jnp.array([0.7, -0.4])
    y, samples = B @ x, problem.draw_upper(jax.random.key(0))

    @jax.jit
    def settled(penalty):
        oracle, point = Upper(problem, penalty), Point(x, PerTask((y[None],)), jnp.ones(1), PerTask(((),)))
        move = lambda _, v: oracle.prepare(point._replace(v=v), samples)  # noqa: E731
        v = jax.lax.fori_loop(0, 200, move, oracle.init(point, samples))
        seen = oracle.at_fixed_v(point._replace(v=v), samples)
        return seen.direction, seen.losses[0]

    f_y = np.asarray(y) - np.array([1.0, -1.0])
    true, bias = B.T @ f_y, []
    for strength in (10.0, 100.0, 1000.0):
        direction, value = settled(Penalty(strength, lr=0.4 / strength, steps=2))
        inverse = np.linalg.inv(A + np.eye(2) / strength)
        np.testing.assert_allclose(direction, B.T @ A @ inverse @ f_y, rtol=1e-9)
        np.testing.assert_allclose(value, f_y @ f_y / 2 - f_y @ inverse @ f_y / (2 * strength), rtol=1e-9)
        bias.append(strength * np.linalg.norm(direction - true))
    assert bias[0] > 0.1
    np.testing.assert_allclose(bias[1], bias[2], rtol=0.02)
