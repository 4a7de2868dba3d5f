"""What a limited-memory matrix knows after some moves."""

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.linear import Curvature

A = np.diag([1.0, 10.0, 100.0]) + 0.5


def learned(matrix, moves):
    known = Curvature.unknown(3, 6, jnp.array(1.0))
    for move in moves:
        expected = jnp.linalg.solve(jax.vmap(known.apply)(jnp.eye(3)), jnp.asarray(move))
        known = known.learn(jnp.asarray(move), jnp.asarray(matrix @ move), expected)
    return known


def test_it_maps_the_last_change_to_the_last_move():
    moves = np.random.default_rng(0).normal(size=(4, 3))
    known = learned(A, moves[:-1]).learn(jnp.asarray(moves[-1]), jnp.asarray(A @ moves[-1]), jnp.zeros(3))
    np.testing.assert_allclose(known.apply(jnp.asarray(A @ moves[-1])), moves[-1], rtol=1e-10)


def test_it_is_positive_after_moves_along_which_the_function_bends_down():
    moves = np.random.default_rng(0).normal(size=(5, 3))
    known = learned(-A, moves)
    H = jax.vmap(known.apply)(jnp.eye(3))
    np.testing.assert_allclose(H, H.T, atol=1e-10)
    assert np.linalg.eigvalsh(H)[0] > 0


def test_a_move_of_nothing_tells_nothing():
    known = learned(A, [np.ones(3)])
    again = known.learn(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3))
    np.testing.assert_allclose(again.apply(jnp.ones(3)), known.apply(jnp.ones(3)), rtol=1e-12)


def test_a_pair_that_does_not_rescale_leaves_other_directions_as_they_were():
    one = jnp.eye(3)[0]
    known = Curvature.unknown(3, 6, jnp.array(2.0)).learn(one, 1e6 * one, one / 2, rescale=False)
    np.testing.assert_allclose(known.apply(jnp.eye(3)[1]), 2 * jnp.eye(3)[1])
    np.testing.assert_allclose(known.apply(jnp.eye(3)[0]), 1e-6 * jnp.eye(3)[0])
