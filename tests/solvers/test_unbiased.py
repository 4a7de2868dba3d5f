"""The mean of a step over all batches is the step on all the data, exactly, where a method is unbiased.

The losses are quadratic in y and bilinear in (x, y), so that a step that draws its rows independently is linear in the
matrices of every draw: means of products are products of means. One draw seen twice would break that.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel.hypergradients import (
    ConjugateGradient,
    Direct,
    Exact,
    Neumann,
    Penalty,
    RandomNeumann,
    Tracked,
    Unrolled,
)
from bilevel.weightings import Average

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
KEYS = 128  # for every outcome: enough to tell how likely it is, as all chances are multiples of one
ALPHA, BETA, RHO = 0.3, 0.2, 0.25


def upper(x, y, row):
    return jnp.mean(row["C"] @ y @ y / 2 - row["p"] @ y + row["E"] @ x @ y + row["e"] @ x)


def lower(x, y, row):
    return jnp.mean(row["A"] @ y @ y / 2 - row["B"] @ x @ y - row["c"] @ y)


def two_rows():
    """One task: two rows of g and two of f, far apart."""
    draw = np.random.default_rng(0).normal
    g = {
        "A": jnp.array([[[1.0, 0.3], [0.3, 0.4]], [[2.0, -0.5], [-0.5, 3.0]]]),
        "B": jnp.array(draw(size=(2, 2, 2))),
        "c": jnp.array(draw(size=(2, 2))),
    }
    f = {
        "C": jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 0.5]]]),
        "E": jnp.array(draw(size=(2, 2, 2))),
        "p": jnp.array(draw(size=(2, 2))),
        "e": jnp.array(draw(size=(2, 2))),
    }
    return bl.Task(g, f, y=jnp.zeros(2))


BATCHES = bl.Problem(upper, lower, [two_rows()], lower_batch=1, upper_batch=1)
ALL = BATCHES.rebatched(lambda _: None)
X = jnp.array([0.7, -0.4])


def with_estimator(hypergradient, lower_steps=1):
    return bl.MORBiT(ALPHA, BETA, hypergradient, Average(), lower_steps=lower_steps)


class Law(NamedTuple):
    """Every x and y that a step may end at, and how likely each is."""

    x: np.ndarray
    y: np.ndarray
    chance: np.ndarray

    @property
    def mean(self):
        return self.chance @ self.x


@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def steps(solver, problem, state, keys):
    def ends(key):
        after, _ = solver.step(problem, state, key)
        return after.x, after.y.groups[0][0], ravel_pytree((after.x, after.y, after.v))[0]

    return jax.vmap(ends)(keys)


def law(solver, problem, state, draws):
    """Of a step that draws one of two rows so many times: its chances are multiples of 2^-draws."""
    x, y, ends = map(np.asarray, steps(solver, problem, state, jax.random.split(jax.random.key(1), KEYS * 2**draws)))
    _, first, seen = np.unique(np.round(ends, 9), axis=0, return_index=True, return_counts=True)
    times = np.round(seen / KEYS)
    assert times.min() >= 1
    assert times.sum() == 2**draws
    return Law(x[first], y[first], times / 2**draws)


def some_steps_in(solver):
    """A state in which everything that is carried differs from zero."""
    state = solver.init(BATCHES, X, key=jax.random.key(0), steps=10)
    return three_steps(solver, state)


@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def three_steps(solver, state):
    step = lambda k, state: solver.step(BATCHES, state, jax.random.key(10 + k))[0]  # noqa: E731
    return jax.lax.fori_loop(0, 3, step, state)


def on_all_data(solver, state):
    """The step's x; the mean over p, of two, for `RandomNeumann`."""
    return law(solver, ALL, state, 1).mean


# The numbers are draws: of rows of g for each lower step, of rows of f and g for x, and of what the estimator adds.
UNBIASED = {
    "Direct": (with_estimator(Direct()), 1 + 1),
    "Neumann": (with_estimator(Neumann(3, RHO)), 1 + 2 + 2),
    "RandomNeumann": (with_estimator(RandomNeumann(2, RHO)), 1 + 2 + 1 + 1),  # the last is p, of two
    "Tracked": (with_estimator(Tracked(RHO)), 1 + 2 + 1),
    "Tracked, two steps": (with_estimator(Tracked(RHO, steps=2)), 1 + 2 + 2),
    "Penalty": (with_estimator(Penalty(5.0, 0.04)), 1 + 2 + 2),
    "Penalty, two steps": (with_estimator(Penalty(5.0, 0.04, steps=2)), 1 + 2 + 2 * 2),
    "AmIGO": (bl.AmIGO(ALPHA, BETA, Tracked(RHO, steps=2), lower_steps=2), 2 + 2 + 2),
    "F2SA": (bl.F2SA(ALPHA, BETA, 0.04, strength=5.0, lower_steps=2), 2 + 2 + 2 * 2),
    "FSLA": (bl.FSLA(ALPHA, BETA, RHO, momentum=0.4), 1 + 2 + 2),
    "MRBO": (bl.MRBO(ALPHA, BETA, Tracked(RHO), momentum=0.4), 1 + 2 + 1),
    "SOBA": (bl.SOBA(ALPHA, BETA, RHO), 2),
    "SRBA": (bl.SRBA(ALPHA, BETA, RHO), 2),
    "Tandem": (bl.Tandem(ALPHA, BETA, RHO, Average(), upper_rule=optax.sgd), 1 + 2),
}


@pytest.mark.parametrize(("solver", "draws"), UNBIASED.values(), ids=UNBIASED)
def test_the_mean_over_all_batches_is_the_step_on_all_the_data(solver, draws):
    state = some_steps_in(solver)
    found = law(solver, BATCHES, state, draws)
    assert np.ptp(found.x, axis=0).min() > 1e-2  # batches do differ
    assert_close(found.mean, on_all_data(solver, state), atol=1e-12)


@pytest.mark.parametrize("hypergradient", [Exact(), ConjugateGradient()], ids=repr)
def test_the_system_of_a_batch_has_a_solution_of_another_mean(hypergradient):
    solver = with_estimator(hypergradient)
    state = some_steps_in(solver)
    found = law(solver, BATCHES, state, 3)
    g, f = (BATCHES.groups[0].source(level).task(0) for level in ("lower", "upper"))
    A, B, c, C, p, E, e = (np.asarray(rows[name]) for rows, names in ((g, "ABc"), (f, "CpEe")) for name in names)
    x, y = np.asarray(state.x), np.asarray(state.y.groups[0][0])
    y = y - BETA * (A.mean(axis=0) @ y - B.mean(axis=0) @ x - c.mean(axis=0))
    f_x, f_y = E.mean(axis=0).T @ y + e.mean(axis=0), C.mean(axis=0) @ y - p.mean(axis=0) + E.mean(axis=0) @ x
    implicit = np.mean([B.T @ np.linalg.solve(A, f_y) for A, B in zip(A, B, strict=True)], axis=0)  # J = -B'
    assert_close(found.mean, x - ALPHA * (f_x + implicit), atol=1e-9)
    assert np.linalg.norm(found.mean - on_all_data(solver, state)) > 1e-2


def test_unrolled_is_unbiased_given_the_lower_steps():
    solver = with_estimator(Unrolled(), lower_steps=2)
    state = some_steps_in(solver)
    found, given = law(solver, BATCHES, state, 2 + 1), law(solver, mixed(), state, 2)
    assert len(given.x) == 4
    for x, y in zip(given.x, given.y, strict=True):
        same = np.abs(found.y - y[None]).max(axis=1) < 1e-9
        assert_close(found.x[same].mean(axis=0), x, atol=1e-12)
    assert np.linalg.norm(found.mean - on_all_data(solver, state)) > 1e-3  # J and y were on the same rows


def mixed():
    """Batches of g, and all the data of f."""
    return bl.Problem(upper, lower, [two_rows()], lower_batch=1)
