"""Lower steps of tasks that are visited rarely."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.per_task import PerTask
from bilevel.solvers._base.some_tasks import STEPS, SeenRarely, after_extra_lower_steps, extra_lower_steps
from bilevel.solvers._base.task_subset import Rows

N, D = 6, 4


def problem_of(n, rows=3):
    data = np.random.default_rng(0).normal(size=(n, rows, D)) * np.array([3.0, 1.0, 0.5, 0.1])
    lower = lambda x, y, batch: jnp.mean((batch @ (y - x)) ** 2) / 2 + 0.005 * jnp.sum((y - x) ** 2)  # noqa: E731
    upper = lambda x, y, batch: jnp.mean((batch @ y - 1) ** 2) / 2  # noqa: E731
    return bl.Problem(upper, lower, bl.Task.stack(train=data, validation=data))


def test_it_is_for_rare_visits_and_chosen_rates():
    solver = bl.MORBiT(sampling=bl.sampling.Uniform(2))
    assert [extra_lower_steps(solver, n, 2) for n in (1023, 1024)] == [0, STEPS]
    assert extra_lower_steps(solver.replace(lower_lr=0.1), 1024, 2) == 0
    assert extra_lower_steps(bl.STABLE(sampling=solver.sampling), 1024, 2) == 0
    assert extra_lower_steps(bl.Tandem(sampling=solver.sampling), 1024, 2) == STEPS


@pytest.mark.parametrize("known", [1e-9, 1e9])
def test_no_step_makes_a_quadratic_larger_on_its_rows(known):
    """Also where what is known of the curvature is of another x, and far too small."""
    problem, solver = problem_of(N), bl.MORBiT(sampling=bl.sampling.Uniform(2))
    y = PerTask((jnp.asarray(np.random.default_rng(1).normal(size=(N, D))),))
    start = jax.jit(solver.start)(problem, jnp.ones(D), y, jax.random.key(0), jnp.asarray(10))
    measured = start.rates.curvature.groups[0]
    old = measured._replace(value=jnp.full(N, known), highest=jnp.full(N, known))
    start = start._replace(rates=start.rates._replace(curvature=PerTask((old,))))

    def value(state):
        group = problem.groups[0]
        return np.asarray(group.losses(group.lower, group.train, state.x, state.y.groups[0]))

    values = [value(start)]
    for steps in (1, 2, STEPS):
        after = jax.jit(after_extra_lower_steps, static_argnums=4)(solver, problem, start, jax.random.key(1), steps)
        values.append(value(after))
        assert np.all(values[-1] <= values[-2] * (1 + 1e-12))
        np.testing.assert_array_equal(after.x, start.x)
    if known < 1:
        assert np.all(values[-1] < 0.5 * values[0])


def test_a_visit_is_these_steps_and_the_solvers_own():
    problem, solver = problem_of(1024), bl.MORBiT(0.1, weighting=bl.weightings.Average())
    sampled = solver.replace(sampling=bl.sampling.Uniform(2))
    y = PerTask((jnp.asarray(np.random.default_rng(1).normal(size=(1024, D))),))
    state = jax.jit(sampled.stepper().start)(problem, jnp.ones(D), y, jax.random.key(0), jnp.asarray(10))
    key = jax.random.key(1)
    after, info = jax.jit(sampled.stepper().step)(problem, state, key)
    rows = Rows.of(problem, PerTask((info.seen,)))

    @jax.jit
    def by_hand(state):
        few = rows.take(state._replace(weights=None, sampling=()))._replace(weights=jnp.full(2, 0.5))
        tasks = rows.problem(problem)
        own = solver.replace(rates=SeenRarely(solver.rates, 1.0))
        return own.step(tasks, after_extra_lower_steps(own, tasks, few, key, STEPS), key)[0]

    wanted = by_hand(state)
    np.testing.assert_allclose(after.x, wanted.x, rtol=1e-12)
    np.testing.assert_allclose(rows.take(after.y).groups[0], wanted.y.groups[0], rtol=1e-12)
