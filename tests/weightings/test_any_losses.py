"""Whatever the losses: weights stay on the simplex, and know tasks by their losses, not by their places."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from bilevel.weightings import Average, CVaR, Exponentiated, SimplexAscent, Watched
from bilevel.weightings.cvar import project_capped
from theorems import holds, over

TASKS = [1, 2, 5]
losses = st.floats(-1e3, 1e3) | st.sampled_from([0.0, 1.0, 1e-30, -1e30, 1e30, 3e37])
shares = st.floats(0, 0.99)
weightings = st.one_of(
    st.just(Average()),
    st.floats(0.01, 1).map(CVaR),
    shares.map(lambda floor: Exponentiated(floor=floor)),
    st.tuples(st.floats(0, 3), shares).map(lambda options: SimplexAscent(pull=options[0], floor=options[1])),
)


def histories(tasks):
    return st.lists(st.lists(losses, min_size=tasks, max_size=tasks), min_size=1, max_size=4).map(
        lambda rows: np.array(rows, np.float32)
    )


cases = st.sampled_from(TASKS).flatmap(histories)
rates = st.floats(1e-4, 10).map(np.float32)


@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def update(weighting, weights, losses, state, rate):
    return weighting.update(weights, losses, state, rate)


def follow(weighting, history, rate):
    """The weights after every row of losses."""
    weights, state = weighting.init(history.shape[1], jnp.float32)
    for row in history:
        weights, state = update(weighting, weights, jnp.array(row), state, rate)
        yield np.asarray(weights, float)


@over(40, 2000)
def test_weights_are_always_on_the_simplex(examples):
    def check(weighting, history, rate):
        n = history.shape[1]
        floor = getattr(weighting, "floor", 0.0) / n
        for weights in follow(weighting, history, rate):
            assert np.all(weights >= floor * (1 - 1e-5) - 1e-9)
            assert weights.sum() == pytest.approx(1, abs=2e-6 * n)
            if isinstance(weighting, CVaR):
                assert np.all(weights <= max(1 / n, min(1, 1 / (weighting.fraction * n))) * (1 + 1e-5))

    holds(check, examples, weightings, cases, rates)


@over(30, 1000)
def test_permuting_tasks_permutes_weights(examples):
    def check(weighting, history, rate, random):
        order = list(range(history.shape[1]))
        random.shuffle(order)
        [*_, plain] = follow(weighting, history, rate)
        [*_, permuted] = follow(weighting, history[:, order], rate)
        np.testing.assert_allclose(permuted, plain[order], atol=2e-5)

    tame = st.sampled_from(TASKS).flatmap(
        lambda n: st.lists(st.lists(st.floats(-5, 5), min_size=n, max_size=n), min_size=1, max_size=4)
    )
    holds(check, examples, weightings, tame.map(lambda rows: np.array(rows, np.float32)), rates, st.randoms())


@over(20, 500)
def test_a_larger_loss_never_has_the_smaller_weight(examples):
    """After one update from equal weights."""

    def check(weighting, history, rate):
        [weights] = follow(weighting, history[:1], rate)
        order = np.argsort(history[0], kind="stable")
        assert np.all(np.diff(weights[order]) >= -1e-5)

    holds(check, examples, weightings, cases, rates)


@over(15, 300)
def test_tasks_that_are_watched_change_nothing(examples):
    def check(weighting, history, rate, seen):
        watched = [*follow(Watched(seen, weighting), history, rate)]
        alone = [*follow(weighting, history[:, :seen], rate)]
        for one, other in zip(watched, alone, strict=True):
            np.testing.assert_allclose(one, [*other, *np.zeros(history.shape[1] - seen)], atol=1e-6)

    holds(check, examples, weightings, histories(5), rates, st.sampled_from([1, 3]))


@over(10, 100)
def test_the_capped_projection_is_the_nearest_point(examples):
    def check(values, cap):
        v = np.array(values)
        found = np.asarray(project_capped(jnp.array(v), cap))
        start = np.full(len(v), 1 / len(v))
        solved = minimize(
            lambda w: np.sum((w - v) ** 2) / 2,
            start,
            jac=lambda w: w - v,
            bounds=[(0, max(cap, 1 / len(v)))] * len(v),
            constraints=[LinearConstraint(np.ones((1, len(v))), 1, 1)],
            method="SLSQP",
            tol=1e-14,
        )
        np.testing.assert_allclose(found, solved.x, atol=1e-5)

    holds(check, examples, st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.floats(0.1, 1))
