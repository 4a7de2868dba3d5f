"""Lower problems solved to tolerance, and the ends of their spectra."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.points import solve_lower
from bilevel.diagnostics.regularity import DENSE, extremes, is_strongly_convex, lower_spectra
from bilevel.problem.per_task import PerTask


def nothing(x, y, batch):
    return jnp.sum(y)


KINDS = {
    # minimum at x; the curvature grows from 1 to hundreds on the way there
    "quartic": lambda x, y: (y - x) ** 4 + (y - x) ** 2 / 2,
    # minimum at 0; Newton's full step overshoots
    "logistic": lambda x, y: jnp.log(jnp.cosh(y)) + 1e-4 * y**2,
    # minimum at x; condition 1e6
    "valley": lambda x, y: jnp.geomspace(1e-6, 1, y.size, dtype=y.dtype) * (y - x) ** 2 / 2,
    # minima at 1 and -1; bends down at the start
    "hilly": lambda x, y: (y**2 - 1) ** 2,
    # no minimum
    "endless": lambda x, y: jnp.exp(-y),
    "downhill": lambda x, y: -(y**2),
}


def lower(x, y, batch):
    """One of these, chosen by the data so that all compile once."""
    return jnp.sum(jnp.where(batch[0][:, None] > 0, jnp.stack([kind(x, y) for kind in KINDS.values()]), 0))


@functools.cache
def solve_kinds(dtype):
    """Every kind solved; returns name -> (y, error, converged)."""
    stack = bl.Task.stack(train=jnp.eye(6, dtype=dtype)[:, None], validation=jnp.zeros((6, 1)))
    begin = jnp.array([10.0, 8.0, 0.0, 0.3, 1.0, 1.0], dtype)
    y = jnp.broadcast_to(begin[:, None], (6, 6))
    solved = solve_lower(bl.Problem(nothing, lower, [stack]), X.astype(dtype), PerTask((y,)))
    (found,) = solved.y
    assert found.dtype == dtype
    return dict(zip(KINDS, zip(found, solved.errors, solved.converged, strict=True), strict=True))


X = jnp.linspace(-2, 3, 6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["quartic", "logistic", "valley", "hilly"])
def test_newton_arrives(kind, dtype):
    y, error, converged = solve_kinds(dtype)[kind]
    allowed = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(y, {"logistic": 0 * X, "hilly": 1 + 0 * X}.get(kind, X), rtol=0, atol=allowed)
    assert error < allowed
    assert converged


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["endless", "downhill"])
def test_where_there_is_no_minimum_nothing_is_claimed(kind, dtype):
    assert not solve_kinds(dtype)[kind][2]


def bowl(x, y, batch):
    A = jnp.sum(batch, axis=0)
    return y["a"] @ A[:2, :2] @ y["a"] / 2 + y["a"] @ A[:2, 2:] @ y["b"] + y["b"] @ A[2:, 2:] @ y["b"] / 2


def test_the_spectrum_of_a_small_task_is_exact():
    draws = np.random.default_rng(0).normal(size=(3, 1, 5, 5))
    hessians = draws + draws.transpose(0, 1, 3, 2)
    stack = bl.Task.stack(train=jnp.array(hessians), validation=jnp.zeros((3, 1)))
    problem = bl.Problem(nothing, bowl, [stack])
    smallest, largest = lower_spectra(problem, X, PerTask(({"a": jnp.zeros((3, 2)), "b": jnp.zeros((3, 3))},)))
    values = np.linalg.eigvalsh(hessians[:, 0])
    np.testing.assert_allclose(smallest, values[:, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(largest, values[:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.geomspace(1e-2, 1, 300), 1e-3),
        (np.concatenate([[-1e-2], np.linspace(0, 1, 299)]), 1e-3),
        (np.linspace(-5, -1, 300), 1e-1),
        (np.ones(300), 1e-12),
        (np.zeros(300), 1e-12),
    ],
    ids=["positive", "one below", "negative", "all equal", "zero"],
)
def test_the_spectrum_of_a_large_task_is_close_and_from_inside(values, error):
    assert len(values) > DENSE
    smallest, largest = ends(jnp.array(np.random.default_rng(0).permutation(values)))
    np.testing.assert_allclose([smallest, largest], [values.min(), values.max()], rtol=0, atol=error)
    assert values.min() - 1e-12 <= smallest <= largest <= values.max() + 1e-12


@jax.jit
def ends(diagonal):
    return extremes(lambda v: diagonal * v, diagonal)


def test_convex_beyond_rounding():
    small = np.array([1e-20, 1e-5, -1.0, 0.0])
    assert is_strongly_convex(small, np.ones(4)).tolist() == [False, True, False, False]
    assert is_strongly_convex(small.astype(np.float32), np.ones(4, np.float32)).tolist() == [False, False, False, False]
