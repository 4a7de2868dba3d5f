"""Estimators: surrogates of the right value and gradient, and estimates that come to the true gradient."""

import functools

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
    RandomNeumann,
    Tracked,
    Unrolled,
)
from bilevel.hypergradients.neumann import Series, sum_series
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.steps import LowerSteps, Replay
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask
from ulp import assert_ulp

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
KEY = jax.random.key(0)
# Unoptimised: each program runs once, and compiling it is what takes time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


# ---------------------------------------------------------------- a problem that is quadratic in nothing


def predict(y, batch):
    return batch["input"] @ y["slope"] + y["offset"]


def upper(x, y, batch):
    own = jnp.sum(jnp.sin(x["shape"] * y["slope"])) + x["scale"] ** 2 * y["offset"]  # f_x is not zero
    return jnp.mean(jnp.cosh(predict(y, batch) - batch["target"])) + own


def lower(x, y, batch):
    ridge = jnp.sum(jnp.exp(x["shape"]) * y["slope"] ** 2) + y["offset"] ** 2
    fit = jnp.log(jnp.cosh(predict(y, batch) - batch["target"]))
    return jnp.mean(fit) + (ridge + jnp.cosh(x["scale"] * y["offset"])) / 2


def rows(seed, count):
    table = jnp.array(np.random.default_rng(seed).normal(size=(count, 3)))
    return {"input": table[:, :2], "target": table[:, 2]}


CURVED = bl.Problem(upper, lower, [bl.Task(rows(i, 8), rows(2 + i, 6)) for i in range(2)], lower_batch=3, upper_batch=3)
X = {"shape": jnp.array([0.3, -0.5]), "scale": jnp.array(0.8)}
YS = PerTask(({"slope": jnp.array([[0.2, -1.0], [0.5, 0.1]]), "offset": jnp.array([0.4, -0.3])},))
WEIGHTS = jnp.array([0.3, 0.7])
NOTHING = PerTask(((),))  # carried by an estimator that has not started


def dense(task, x, y, sample):
    """f_x, f_y, J and A as arrays."""
    (flat_x, x_tree), (flat_y, y_tree) = ravel_pytree(x), ravel_pytree(y)
    f = lambda x, y: task.upper(x_tree(x), y_tree(y), sample.upper)  # noqa: E731
    g = lambda x, y: task.lower(x_tree(x), y_tree(y), sample.lower)  # noqa: E731
    J = jax.jacfwd(jax.grad(g, 0), 1)(flat_x, flat_y)
    return *jax.grad(f, (0, 1))(flat_x, flat_y), J, jax.hessian(g, 1)(flat_x, flat_y)


def flat(tree):
    return jax.vmap(lambda t: ravel_pytree(t)[0])(tree)


ESTIMATORS = [Exact(), ConjugateGradient(2), Neumann(3), RandomNeumann(3), Tracked(0.1), Direct()]


@pytest.mark.parametrize("hypergradient", ESTIMATORS, ids=repr)
def test_a_surrogate_has_the_value_of_the_loss_and_the_gradient_that_was_estimated(hypergradient):
    problem, level = CURVED, Upper(CURVED, hypergradient)

    @jit
    def evaluate():
        samples = problem.draw_upper(KEY)
        point = Point(X, YS, WEIGHTS, NOTHING)
        point = point._replace(v=level.init(point, samples))
        losses = problem.each(lambda task, y, s: task.upper(X, y, s.upper), YS, samples)
        matrices = problem.each(lambda task, y, s: dense(task, X, y, s), YS, samples)
        return level.directions(point, samples), level.direction(point, samples), *map(problem.join, (losses, matrices))

    seen, joint, losses, (f_x, f_y, J, A) = evaluate()
    v = jnp.zeros_like(f_y) if hypergradient == Direct() else flat(seen.v.groups[0].v)
    assert_ulp(seen.losses, losses)
    estimate = f_x - np.einsum("nij,nj->ni", J, v)
    assert_close(flat(seen.direction), estimate, atol=1e-13)
    assert_close(ravel_pytree(joint.direction)[0], WEIGHTS @ estimate, atol=1e-13)
    if hypergradient == Exact():
        assert_close(np.einsum("nij,nj->ni", A, v), f_y, atol=1e-13)


# ---------------------------------------------------------------- the true gradient


@pytest.mark.parametrize("hypergradient", [Exact(), ConjugateGradient(), Neumann(80), Unrolled()], ids=repr)
def test_at_the_lower_solution_estimates_are_the_gradient(padded_ball, hypergradient):
    """Of the enclosing ball, whose l_i(x) is |x - p_i|^2 / 2."""
    problem, x = padded_ball().problem, jnp.array([-1.0, 3.0])
    group, samples = problem.groups[0], problem.draw_upper(KEY)
    solved = group.train.data["B"][:, 0] @ x
    # Unrolled replays 80 steps that started elsewhere.
    away = LowerSteps(solved + 1, jax.vmap(optax.sgd(0.4).init)(solved), jnp.full(4, 0.4), None)
    level = Upper(problem, hypergradient, Replay(PerTask((away,)), optax.sgd, 80))

    @jit
    def evaluate():
        point = Point(x, PerTask((solved,)), jnp.full(4, 1 / 4), NOTHING)
        return level.directions(point._replace(v=level.init(point, samples)), samples)

    seen, p = evaluate(), group.validation.data["p"][:, 0]
    assert_close(seen.direction, x[None] - p, atol=1e-8)
    assert_close(seen.losses, jnp.sum((x[None] - p) ** 2, axis=1) / 2, atol=1e-8)


# ---------------------------------------------------------------- unrolled


SMOOTH_ADAM = functools.partial(optax.adam, eps_root=1e-8)


@pytest.mark.parametrize("rule", [optax.sgd, SMOOTH_ADAM], ids=["sgd", "adam"])
def test_unrolled_is_the_slope_of_the_loss_after_the_lower_steps(rule):
    problem = CURVED
    solver = bl.MORBiT(0.1, 0.1, Unrolled(), bl.weightings.Average(), lower_rule=rule, lower_steps=3)
    solver.check(problem)
    flat_x, x_tree = ravel_pytree(X)

    @jit
    def step(flat_x):
        state = solver.start(problem, x_tree(flat_x), YS, KEY, 10)
        (lowered, _, replay), samples = solver.descend(problem, state, KEY, 3), problem.draw_upper(KEY)
        level = Upper(problem, Unrolled(), replay)
        seen = level.direction(solver.point(state._replace(y=lowered.y)), samples)
        losses = problem.join(problem.each(lambda task, y, s: task.upper(state.x, y, s.upper), lowered.y, samples))
        return ravel_pytree(seen.direction)[0], seen.losses, losses

    direction, value, losses = step(flat_x)
    assert_close(value, losses, atol=1e-14)
    h = 1e-5
    ends = [[step(flat_x.at[k].add(s))[2].mean() for s in (h, -h)] for k in range(3)]
    assert_close(direction, [(a - b) / (2 * h) for a, b in ends], atol=1e-8)
    assert np.abs(direction).min() > 1e-3


def test_unrolled_refuses_a_rule_that_has_no_derivative_at_a_zero_gradient():
    with pytest.raises(ValueError, match="eps_root"):
        bl.MORBiT(0.1, 0.1, Unrolled(), lower_rule=optax.adam).check(CURVED)
    bl.MORBiT(0.1, 0.1, Unrolled(), lower_rule=SMOOTH_ADAM).check(CURVED)
    bl.MORBiT(0.1, 0.1, Exact(), lower_rule=optax.adam).check(CURVED)


def test_unrolled_through_adam_is_finite_where_the_lower_gradient_is_zero(run):
    known = bl.problems.shrinkage()
    (group,) = known.problem.groups
    data = [(group.train.task(i), group.validation.task(i)) for i in range(2)]
    solved = [bl.Task(c, t, y=c[0] / 2) for c, t in data]  # y* at x = 0
    known = known._replace(problem=bl.Problem(group.upper, group.lower, solved))
    state = run(bl.MORBiT(0.1, 0.1, Unrolled(), lower_rule=SMOOTH_ADAM), known, 1)
    assert np.isfinite(state.x)
    assert state.x != known.x


# ---------------------------------------------------------------- the series that scales itself


def distance(x, y, batch):
    return jnp.sum((y - 1) ** 2) / 2


def stiffening(x, y, batch):
    return jnp.sum(jnp.stack([1.0, jnp.exp(x) / 2, jnp.exp(x)]) * y**2) / 2


# One task with f_y = y - 1 and the lower Hessian diag(1, e^x / 2, e^x).
GROWING = bl.Problem(distance, stiffening, [bl.Task((), ())]).groups[0]
Y = jnp.array([3.0, 0.5, -1.0])
NO_BATCH = UpperSample(None, None, KEY)


@pytest.mark.parametrize("curvature", [1e-3, 1.0, 100.0], ids=["too small", "near", "too large"])
def test_the_series_and_what_is_left_of_it_add_up_whatever_its_scale(curvature):
    x, terms = jnp.array(1.0), 6

    def both(task):
        known = jnp.array(curvature)
        summed = sum_series(task, x, Y, known, NO_BATCH, terms, None, lambda q: 1.0)
        one = lambda q: jnp.where(q == terms, 1.0, 0.0)  # noqa: E731
        last = sum_series(task, x, Y, known, NO_BATCH, terms + 1, None, one)
        return summed.v, last.curvature * last.v  # the last term is r / L

    v, r = jit(lambda: GROWING.each(both))()
    A = np.array([1, np.e / 2, np.e])
    assert np.abs(r).max() > 1e-6
    assert_close(A * v[0] + r[0], Y - 1, atol=1e-13)


@pytest.mark.parametrize("steps", [100, 2], ids=["gradually", "at once"])
@pytest.mark.parametrize("estimator", [Neumann(10), RandomNeumann(10)], ids=repr)
def test_the_series_survives_a_curvature_that_grows_ten_thousandfold(estimator, steps):
    def along(task):
        first = estimator.init(task, jnp.array(0.0), Y, NO_BATCH)

        def step(state, x):
            state = estimator.prepare(task, x, Y, state, NO_BATCH)
            return state, state.v

        return jax.lax.scan(step, first, jnp.linspace(0, np.log(1e4), steps))

    end, v = jax.tree.map(lambda a: a[0], jit(lambda: GROWING.each(along))())
    assert np.all(np.isfinite(v))
    assert np.abs(v).max() <= 10 * np.abs(Y - 1).max()
    assert 0.5e4 < end.curvature <= 1.001e4  # above half the true one, where the series contracts


@pytest.mark.parametrize("hypergradient", ESTIMATORS[:-1], ids=repr)
def test_where_the_upper_loss_is_flat_nothing_is_to_be_solved(hypergradient):
    def at_its_minimum(task):
        y = jnp.ones(3)  # f_y = 0
        state = hypergradient.init(task, jnp.array(1.0), y, NO_BATCH)
        return hypergradient.prepare(task, jnp.array(1.0), y, state, NO_BATCH)

    state = jit(lambda: GROWING.each(at_its_minimum))()
    np.testing.assert_array_equal(state.v, np.zeros((1, 3)))
    if isinstance(state, Series):
        assert 0.98 * np.e <= state.curvature[0] <= 1.01 * np.e
