"""Projections: into the set, onto its nearest point, and nowhere else the second time."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilevel.problem.constraints import Ball, Box, NonNegative, Product, Simplex, Unconstrained

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
theorem = settings(derandomize=True, deadline=None, max_examples=60)
LOWER, UPPER, CENTRE = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.0, 5.0]), np.array([1.0, -2.0, 0.5])


class Case(NamedTuple):
    """A set of three numbers, how far a point is outside of it, and a way to make any point a member."""

    constraint: Any
    outside: Any
    member: Any


def into_ball(z, centre, radius):
    return centre + radius * z / max(1, np.linalg.norm(z))


def into_simplex(z, total):
    return total * (np.abs(z) + 1e-12) / (np.abs(z) + 1e-12).sum()


CASES = {
    "all of space": Case(Unconstrained(), lambda x: 0, lambda z: z),
    "non-negative": Case(NonNegative(), lambda x: -x.min(), np.abs),
    "box": Case(Box(-1.0, 0.5), lambda x: max(-1 - x.min(), x.max() - 0.5), lambda z: np.clip(z, -1, 0.5)),
    "box of arrays": Case(
        Box(jnp.array(LOWER), jnp.array(UPPER)),
        lambda x: max((LOWER - x).max(), (x - UPPER).max()),
        lambda z: LOWER + (UPPER - LOWER) * np.abs(np.sin(z)),
    ),
    "ball": Case(Ball(2.0), lambda x: np.linalg.norm(x) - 2, lambda z: into_ball(z, 0, 2)),
    "ball elsewhere": Case(
        Ball(2.0, jnp.array(CENTRE)),
        lambda x: np.linalg.norm(x - CENTRE) - 2,
        lambda z: into_ball(z, CENTRE, 2),
    ),
    "simplex": Case(Simplex(), lambda x: max(-x.min(), abs(x.sum() - 1)), lambda z: into_simplex(z, 1)),
    "larger simplex": Case(Simplex(3.0), lambda x: max(-x.min(), abs(x.sum() - 3)), lambda z: into_simplex(z, 3)),
}

project = jax.jit(lambda constraint, x: constraint.project(x))
number = st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0]))
vectors = st.lists(number, min_size=3, max_size=3).map(np.array)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@theorem
@given(vectors, vectors)
def test_a_projection_is_the_nearest_point_of_its_set(case, x, z):
    nearest = np.asarray(project(case.constraint, jnp.array(x)))
    assert case.outside(nearest) <= 1e-14 * (1 + np.abs(x).max())
    # The step from the nearest point to x makes no acute angle with any step into a convex set.
    member = case.member(z)
    assert case.outside(member) <= 1e-14 * (1 + np.abs(z).max())
    assert (x - nearest) @ (member - nearest) <= 1e-12


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@theorem
@given(vectors)
def test_members_stay_where_they_are_so_that_projecting_twice_is_projecting_once(case, z):
    member = case.member(z)
    assert_close(project(case.constraint, jnp.array(member)), member, atol=1e-14)
    once = project(case.constraint, jnp.array(z))
    assert_close(project(case.constraint, once), once, atol=1e-14)


def assert_trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert_close(one, other, atol=1e-15)


X = np.array([3.0, -4.0, 0.7])


def as_tree(x):
    return {"matrix": jnp.array(x[:2]).reshape(1, 2), "number": jnp.array(x[2])}


@pytest.mark.parametrize("name", ["non-negative", "box", "ball", "larger simplex"])
def test_a_pytree_is_projected_as_the_vector_of_its_entries(name):
    constraint = CASES[name].constraint
    expected = np.asarray(constraint.project(jnp.array(X)))
    assert not np.allclose(expected, X)
    assert_trees_equal(constraint.project(as_tree(X)), as_tree(expected))


def test_bounds_and_centres_may_be_pytrees():
    box = Box(as_tree(LOWER), as_tree(UPPER))
    assert_trees_equal(box.project(as_tree(X)), as_tree(np.clip(X, LOWER, UPPER)))
    edge = CENTRE + 2 * (X - CENTRE) / np.linalg.norm(X - CENTRE)
    assert_trees_equal(Ball(2.0, as_tree(CENTRE)).project(as_tree(X)), as_tree(edge))


def test_a_number_in_a_tree_of_bounds_stands_for_a_whole_leaf():
    projected = Box({"matrix": -1.0, "number": 0.0}, {"matrix": 1.0, "number": 0.5}).project(as_tree(X))
    assert_trees_equal(projected, as_tree(np.array([1.0, -1.0, 0.5])))


def test_a_product_projects_every_part_onto_its_own_set():
    product = Product({"penalty": NonNegative(), "net": (Unconstrained(), Ball(1.0))})
    x = {"penalty": jnp.array([-1.0, 2.0]), "net": (jnp.array(X), as_tree(X))}
    projected = jax.jit(product.project)(x)
    ball = as_tree(X / np.linalg.norm(X))  # one ball around the whole subtree
    assert_trees_equal(projected, {"penalty": jnp.array([0.0, 2.0]), "net": (jnp.array(X), ball)})


def test_a_constraint_keeps_the_dtype_of_x():
    x = jnp.array(X, jnp.float32)
    dtypes = {name: case.constraint.project(x).dtype for name, case in CASES.items()}
    assert dtypes == dict.fromkeys(CASES, x.dtype)
