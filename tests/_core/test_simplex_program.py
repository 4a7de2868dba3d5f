"""Quadratic programs over weights, against SciPy and against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from bilevel._core.simplex_program import Bounds, maximise, project, respond

CASES = {  # scores, numbers in x, the lowest and the highest weight
    "simplex": (6, 4, 0.0, 1.0),
    "more slopes than numbers in x": (40, 3, 0.0, 1.0),
    "floor": (6, 10, 0.05, 1.0),
    "cap": (10, 3, 0.0, 0.3),
    "one point": (5, 3, 0.2, 0.2),
    "one score": (1, 3, 0.0, 1.0),
}


def case(name, seed=0):
    m, d, low, high = CASES[name]
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(m, d)) * 10 ** rng.normal(size=d)
    return slopes @ slopes.T, rng.normal(size=m), Bounds(jnp.full(m, low), jnp.full(m, high))


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_solved_as_scipy_solves_it(name):
    K, scores, bounds = case(name)
    found = np.asarray(jax.jit(maximise)(jnp.asarray(K), jnp.asarray(scores), bounds))
    value = lambda p: p @ K @ p / 2 - scores @ p  # noqa: E731
    summed = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)}
    box = list(zip(np.asarray(bounds.low), np.asarray(bounds.high), strict=True))
    start = np.full(len(scores), 1 / len(scores))
    other = minimize(
        value, start, jac=lambda p: K @ p - scores, bounds=box, constraints=[summed], method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )  # fmt: skip
    assert value(found) <= other.fun + 1e-6 * max(1.0, np.abs(K).max())
    assert abs(found.sum() - 1) < 1e-9
    assert np.all(found >= np.asarray(bounds.low) - 1e-9)
    assert np.all(found <= np.asarray(bounds.high) + 1e-9)


def test_of_a_total_that_is_not_one():
    K, scores, bounds = case("cap")
    found = maximise(jnp.asarray(K), jnp.asarray(scores), bounds, 0.5)
    np.testing.assert_allclose(jnp.sum(found), 0.5, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_without_a_pull_the_response_is_the_linear_program(name):
    _, scores, bounds = case(name)
    box = list(zip(np.asarray(bounds.low), np.asarray(bounds.high), strict=True))
    other = linprog(-scores, A_eq=np.ones((1, len(scores))), b_eq=[1.0], bounds=box)
    found = respond(jnp.asarray(scores), bounds, 0.0)
    np.testing.assert_allclose(found.value, -other.fun, rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(found.weights), 1, rtol=1e-9)


def test_with_a_pull_the_response_is_the_best_point_of_the_set():
    _, scores, bounds = case("cap")
    found = respond(jnp.asarray(scores), bounds, 0.7)
    K = 2 * 0.7 * np.eye(len(scores))
    other = maximise(jnp.asarray(K), jnp.asarray(scores + 2 * 0.7 / len(scores)), bounds)
    np.testing.assert_allclose(found.weights, other, atol=1e-6)


def test_a_projection_is_the_nearest_point():
    _, scores, bounds = case("cap")
    found = project(jnp.asarray(scores), bounds)
    other = maximise(jnp.eye(len(scores)), jnp.asarray(scores), bounds)
    np.testing.assert_allclose(found, other, atol=1e-6)
