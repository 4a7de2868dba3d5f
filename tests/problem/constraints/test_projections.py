"""Projections solve the quadratic program that defines them: the nearest point of the set."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize

from bilevel.problem.constraints import Ball, Box, NonNegative, Product, Simplex, Unconstrained
from theorems import holds, over

SHAPES = [(1,), (3,), (2, 2), ()]
numbers = st.floats(-10, 10).map(lambda v: round(v, 3))
positive = st.floats(0.01, 10)


def array(shape):
    return st.lists(numbers, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda values: np.array(values).reshape(shape)
    )


arrays = st.sampled_from(SHAPES).flatmap(array)
trees = arrays | st.fixed_dictionaries({"b": arrays, "w": arrays}) | st.tuples(arrays, arrays)
boxes = st.tuples(numbers, numbers).map(lambda ends: Box(min(ends), max(ends)))
simple = st.just(Unconstrained()) | st.just(NonNegative()) | boxes | positive.map(Ball) | positive.map(Simplex)


@st.composite
def centred(draw):
    x = draw(trees)
    return Ball(draw(positive), jax.tree.map(lambda a: np.full(a.shape, 0.5), x)), x


@st.composite
def products(draw):
    parts = draw(st.fixed_dictionaries({"a": simple, "b": simple | st.tuples(simple, simple)}))
    x = {"a": draw(trees), "b": (draw(arrays), draw(arrays)) if isinstance(parts["b"], tuple) else draw(trees)}
    return Product(parts), x


cases = st.tuples(simple, trees) | centred() | products()


@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def project(constraint, x):
    return constraint.project(x)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(float)


def closed_form(constraint, x):
    """The nearest point, by what each set is, in numpy."""
    if isinstance(constraint, Product):
        pairs = [(constraint.parts["a"], x["a"])]
        b = constraint.parts["b"]
        pairs += zip(b, x["b"], strict=True) if isinstance(b, tuple) else [(b, x["b"])]
        return np.concatenate([closed_form(c, part) for c, part in pairs])
    v = flat(x)
    if isinstance(constraint, NonNegative):
        return np.maximum(v, 0)
    if isinstance(constraint, Box):
        return np.clip(v, constraint.lower, constraint.upper)
    if isinstance(constraint, Ball):
        centre = 0.0 if constraint.center is None else flat(constraint.center)
        length = np.linalg.norm(v - centre)
        return v if length <= constraint.radius else centre + (v - centre) * constraint.radius / length
    if isinstance(constraint, Simplex):
        ordered = np.sort(v)[::-1]
        shifts = (np.cumsum(ordered) - constraint.total) / np.arange(1, len(v) + 1)
        return np.maximum(v - shifts[np.flatnonzero(ordered > shifts)[-1]], 0)
    return v


@over(40, 2000)
def test_every_projection_is_the_nearest_point(examples):
    def check(case):
        constraint, x = case
        constraint.check(x)
        projected = project(constraint, x)
        assert jax.tree.structure(projected) == jax.tree.structure(x)
        assert [np.shape(p) for p in jax.tree.leaves(projected)] == [a.shape for a in jax.tree.leaves(x)]
        np.testing.assert_allclose(flat(projected), closed_form(constraint, x), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(flat(project(constraint, projected)), flat(projected), rtol=1e-9, atol=1e-9)

    holds(check, examples, cases)


@over(40, 1000)
def test_no_two_points_are_moved_further_apart(examples):
    def check(constraint, pair):
        one, other = (flat(project(constraint, x)) for x in pair)
        assert np.linalg.norm(one - other) <= np.linalg.norm(pair[0] - pair[1]) * (1 + 1e-9) + 1e-9

    holds(check, examples, simple, st.sampled_from(SHAPES).flatmap(lambda shape: st.tuples(array(shape), array(shape))))


PROGRAMS = {  # the set as a solver of quadratic programs takes it
    "non-negative": (NonNegative(), {"bounds": [(0, None)] * 3}),
    "box": (Box(-0.5, 0.25), {"bounds": [(-0.5, 0.25)] * 3}),
    "simplex": (
        Simplex(2.0),
        {"bounds": [(0, None)] * 3, "constraints": [LinearConstraint(np.ones((1, 3)), 2, 2)]},
    ),
    "ball": (
        Ball(1.5, np.ones(3)),
        {"constraints": [NonlinearConstraint(lambda p: np.sum((p - 1) ** 2), -np.inf, 1.5**2)]},
    ),
    "product": (
        Product((NonNegative(), Simplex())),
        {"bounds": [(0, None)] * 3, "constraints": [LinearConstraint([[0, 1, 1]], 1, 1)]},
    ),
}


@pytest.mark.parametrize(("constraint", "program"), PROGRAMS.values(), ids=PROGRAMS)
@over(5, 60)
def test_a_general_solver_finds_the_same_point(constraint, program, examples):
    def check(x):
        given = (jnp.array(x[:1]), jnp.array(x[1:])) if isinstance(constraint, Product) else jnp.array(x)
        solved = minimize(
            lambda p: np.sum((p - x) ** 2) / 2,
            np.full(3, 0.5),
            jac=lambda p: p - x,
            method="SLSQP",
            tol=1e-14,
            **program,
        )
        np.testing.assert_allclose(flat(project(constraint, given)), solved.x, atol=2e-5)

    holds(check, examples, array((3,)))


@over(10, 200)
def test_precision_is_kept(examples):
    def check(case, dtype):
        constraint, x = case
        x = jax.tree.map(lambda a: jnp.asarray(a, dtype), x)
        projected = project(constraint, x)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(projected))
        close = 2e-2 if dtype == jnp.bfloat16 else 1e-5
        exact = closed_form(constraint, jax.tree.map(lambda a: np.asarray(a, float), x))
        np.testing.assert_allclose(flat(projected), exact, rtol=4 * close, atol=20 * close)

    holds(
        check,
        examples,
        st.tuples(simple, st.sampled_from(SHAPES[:2]).flatmap(array)),
        st.sampled_from([jnp.float32, jnp.bfloat16]),
    )
