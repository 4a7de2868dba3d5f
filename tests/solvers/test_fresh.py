"""Steps that see new tasks of a distribution: what they estimate, where they lead, and what they leave as it is."""

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import fsolve

import bilevel as bl
from bilevel._core import module
from bilevel._core.module import leaf, part
from bilevel.hypergradients.trackers import Momentum
from bilevel.problem.distribution import TaskDistribution
from bilevel.problem.per_task import PerTask
from bilevel.results.history import tail_mean
from bilevel.solvers._base.fresh_tasks import looked_at
from bilevel.solvers._base.state import Halves
from bilevel.weightings.cvar import Tail
from every_solver import every
from ulp import assert_ulp

CURVED = 2.0  # a: g = a/2 (y - x)^2 and f = 1/2 (y - p)^2, so that y* = x and F(x) = 1/2 (x - p)^2
KEY = jax.random.key(0)


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return CURVED * jnp.mean((y - x) ** 2 + 0 * batch) / 2


def exponential(key):
    return jax.random.exponential(key)


def rows(p, key, size):
    return jnp.broadcast_to(p, (size,))


def problem_of(tasks):
    return bl.Problem(upper, lower, tasks, lower_batch=1, upper_batch=1)


PROBLEM = problem_of(TaskDistribution(exponential, rows, rows, evaluation=20, rows=1))
STARTS = {"x": jnp.array(3.0), "y": jnp.array(0.0)}


WORST = bl.weightings.CVaR(0.4)


def solver(weighting=WORST, tasks=3, catch_up=1, **options):
    settled = {"lower_lr": 1 / CURVED, "hypergradient": bl.hypergradients.Exact()}  # y = x after one lower step
    given = {"upper_lr": 0.5} | settled | options
    return bl.MORBiT(weighting=weighting, sampling=bl.sampling.Fresh(tasks, catch_up), **given)


@part
class Listed(TaskDistribution):
    """Always these tasks: what a distribution may draw, one draw after the other."""

    given: Any = leaf(default=None)

    def parameters(self, key, count):
        return self.given


# ------------------------------------------------------------------ what is estimated

POINTS, CHANCES, X = np.array([0.0, 1.0, 4.0]), np.array([0.5, 0.3, 0.2]), 1.2
LOSSES = (X - POINTS) ** 2 / 2


def state_at(own, **fields):
    state = own.stepper().start(PROBLEM, jnp.array(X), PerTask((jnp.zeros(20),)), KEY, jnp.asarray(10))
    return state._replace(**fields)


@pytest.mark.parametrize(("level", "fraction"), [(1.0, 0.4), (0.3, 0.7), (LOSSES[0], 0.4), (0.0, 1.0)])
def test_the_mean_direction_over_all_draws_is_the_gradient_of_cvar_at_a_known_level(level, fraction):
    """All draws of three tasks of a discrete distribution; once the level is one of its losses."""
    own = solver(bl.weightings.CVaR(fraction), upper_lr=1.0)
    state = state_at(own, sampling=Tail(jnp.array(level), jnp.array(1.0), jnp.array(5)))
    listed = Listed(exponential, rows, rows, evaluation=20, rows=1, given=jnp.zeros(3))
    step, mean = jax.jit(own.stepper().step), 0.0
    for drawn in map(list, itertools.product(range(3), repeat=3)):
        tasks = module.replace(listed, given=jnp.asarray(POINTS[drawn]))
        after, _ = step(PROBLEM.replace(distribution=tasks), state, KEY)
        mean += np.prod(CHANCES[drawn]) * (X - float(after.x))
    counted = np.ones(3)
    if fraction < 1:
        counted = np.where(level < LOSSES, 1 / fraction, 0.0) + (level == LOSSES)
    assert mean == pytest.approx(np.sum(CHANCES * counted * (X - POINTS)), abs=1e-12)


def test_tasks_are_weighed_by_rows_that_the_direction_does_not_see():
    """With rows that are noise alone: where the worst by one batch are taken, their loss on another is the mean."""

    def noise(p, key, size):
        return 3 * jax.random.normal(key, (size,))

    tasks = problem_of(TaskDistribution(exponential, noise, noise, evaluation=20, rows=1))
    own = solver(bl.weightings.CVaR(0.1), tasks=4000)
    state = state_at(own)
    begin_key, look_key, key = jax.random.split(KEY, 3)

    @jax.jit
    def seen():
        drawn, there = own.stepper().begin_step(tasks, state, begin_key)
        losses = looked_at(drawn, there, look_key)
        weights, _ = own.weighting.weigh_draw(losses, state.sampling)
        _, info = own.stepper().plain.step(drawn, there._replace(weights=weights), key)
        return losses, weights, info.losses

    losses, weights, used = map(np.asarray, seen())
    mean, error = used.mean(), used.std() / np.sqrt(400)
    assert weights @ losses > 2 * mean  # what the selection was by is large
    assert abs(weights @ used - mean) < 4 * error


# ------------------------------------------------------------------ where it leads


def minimiser(fraction):
    """Of CVaR of 1/2 (x - p)^2 with p exponential: the tasks farther than r from x are both tails."""

    def conditions(point):
        x, r = point
        right, left = np.exp(-x - r), np.exp(r - x)
        return right + 1 - left - fraction, right * (r + 1) + (r - 1) * left + 1 - x

    return float(fsolve(conditions, (1.5, 1.0))[0])


def ends(own, steps, seeds, problem=PROBLEM):
    def one(seed):
        key = jax.random.key(seed)
        start = own.stepper().start(problem, STARTS["x"], PerTask((jnp.zeros(20),)), key, jnp.asarray(steps))
        step = lambda k, state: own.stepper().step(problem, state, jax.random.fold_in(key, k))[0]  # noqa: E731
        return jax.lax.fori_loop(0, steps, step, start).x

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(seeds)))


def falling(step):
    return 1 / (3 + step)


@pytest.mark.parametrize(("weighting", "wanted"), [(bl.weightings.Average(), 1.0), (0.5, None), (0.1, None)])
def test_a_run_converges_to_the_minimiser_of_the_distribution(weighting, wanted):
    if wanted is None:
        weighting, wanted = bl.weightings.CVaR(weighting), minimiser(weighting)
    found = ends(solver(weighting, tasks=16, upper_lr=falling), 4000, seeds=8)
    assert np.abs(found - wanted).max() < 0.05
    assert abs(found.mean() - wanted) < 4 * found.std(ddof=1) / np.sqrt(8)


def test_minimisers_are_those_of_a_fine_grid():
    """The closed form, against CVaR of many quantiles of the distribution."""
    points = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)
    grid = np.linspace(0.9, 2.0, 111)
    for fraction in (0.5, 0.1):
        values = [tail_mean((x - points) ** 2 / 2, fraction) for x in grid]
        assert grid[np.argmin(values)] == pytest.approx(minimiser(fraction), abs=0.011)


def test_of_a_distribution_with_few_values_the_tail_may_end_within_one_of_them():
    """p = 0, 1, 4 with chances .5, .3, .2: the worst .4 at x = 2 are all of p = 4 and a part of p = 0."""

    def draw(key):
        return jax.random.choice(key, jnp.asarray(POINTS), p=jnp.asarray(CHANCES))

    tasks = problem_of(TaskDistribution(draw, rows, rows, evaluation=20, rows=1))
    found = ends(solver(bl.weightings.CVaR(0.4), tasks=16, upper_lr=falling), 4000, seeds=4, problem=tasks)
    np.testing.assert_allclose(found, 2, atol=0.06)


def test_the_worst_of_all_is_the_mean():
    options = {"tasks": 8, "upper_lr": falling}
    by_tail = ends(solver(bl.weightings.CVaR(1.0), **options), 30, seeds=1)
    assert_ulp(by_tail, ends(solver(bl.weightings.Average(), **options), 30, seeds=1))


ACCEPTED = ["ALSET", "AmIGO", "BSA", "F2SA", "MASOBA", "MORBiT", "MORMASOBA", "SOBA", "StocBiO", "TTSA", "Tandem"]
REFUSED = ["FSLA", "MRBO", "SABA", "SPABA", "SRBA", "STABLE", "SUSTAIN", "VRBO"]


def test_every_bilevel_solver_is_here():
    assert sorted(ACCEPTED + REFUSED) == sorted(
        name for name in bl.solvers.__all__ if hasattr(getattr(bl, name), "sampling")
    )


@pytest.mark.parametrize("name", every(ACCEPTED, quick=("MASOBA", "Tandem")))
def test_solvers_converge_to_the_minimiser_with_rates_that_fall(name):
    """Chosen rates would not do: `Measured` clips long directions, which moves the solution where losses are skewed."""
    options = {"strength": 1000.0} if name == "F2SA" else {}  # what is solved is 1 / strength away
    options |= {"upper_rule": optax.sgd} if name == "Tandem" else {}
    options |= {"weighting": bl.weightings.CVaR(0.5), "sampling": bl.sampling.Fresh(16)}
    found = ends(getattr(bl, name)(falling, **options), 3000, seeds=8)
    assert np.abs(found - minimiser(0.5)).max() < 0.08
    assert abs(found.mean() - minimiser(0.5)) < 4 * found.std(ddof=1) / np.sqrt(8) + 0.002


def test_tandem_comes_near_without_rates():
    own = bl.Tandem(weighting=bl.weightings.CVaR(0.5), sampling=bl.sampling.Fresh(16))
    result = bl.solve(PROBLEM, own, **STARTS, steps=1500, progress=False)
    assert float(result.average.x) == pytest.approx(minimiser(0.5), abs=0.05)


# ------------------------------------------------------------------ what stays as it is


def test_tasks_catch_up_at_a_fixed_x():
    """y = x + (1 - rate a)^k (y_0 - x) after k lower steps, and the tasks of the evaluation get as many as others."""
    own = solver(tasks=3, catch_up=4, lower_lr=0.1, lower_steps=2)
    state = state_at(own)
    drawn, there = jax.jit(own.stepper().begin_step)(PROBLEM, state, KEY)
    assert drawn.size == 3
    left = 1 - 0.1 * CURVED
    np.testing.assert_allclose(there.y.groups[0], X - left**8 * X, rtol=1e-12)
    assert float(there.x) == X
    assert int(there.step) == int(state.step)
    fitted = jax.jit(own.stepper().fit)(PROBLEM, jnp.array(X), PerTask((jnp.zeros(20),)))
    np.testing.assert_allclose(fitted.groups[0], X - left**10 * X, rtol=1e-12)


@pytest.mark.parametrize("name", every(ACCEPTED, quick=("MASOBA", "Tandem")))
def test_only_what_is_shared_is_carried_on(name):
    """A state is no larger after a step, and what it has of tasks are directions to measure along, and the start."""
    own = getattr(bl, name)(weighting=bl.weightings.CVaR(0.5), sampling=bl.sampling.Fresh(7))
    y = PerTask((jnp.zeros(20),))
    state = jax.eval_shape(own.stepper().start, PROBLEM, jnp.array(X), y, KEY, jnp.asarray(10))
    after, info = jax.eval_shape(own.stepper().step, PROBLEM, state, KEY)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), after) == jax.tree.map(lambda a: (a.shape, a.dtype), state)
    assert info.losses.shape == (7,)
    tasks = Halves.of(after).tasks._replace(rates=None, y=None, weights=None)
    assert not jax.tree.leaves(tasks)


def test_lower_rates_of_new_tasks_do_not_fall_with_the_run():
    """Tandem's fall to zero, with which a new task would stay at its start."""
    own = bl.Tandem(weighting=bl.weightings.Average(), sampling=bl.sampling.Fresh(3))
    state = state_at(own)
    late = state._replace(step=jnp.asarray(10, jnp.int32))
    for at in (state, late):
        _, there = jax.jit(own.stepper().begin_step)(PROBLEM, at, KEY)
        np.testing.assert_allclose(there.y.groups[0], X, rtol=1e-9)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("name", REFUSED)
def test_solvers_that_need_a_task_twice_are_refused(name):
    options = {"refresh_batch": 4} if name in ("SPABA", "SRBA", "VRBO") else {}
    own = getattr(bl, name)(sampling=bl.sampling.Fresh(8), weighting=bl.weightings.Average(), **options)
    with pytest.raises(ValueError, match=rf"{name}.*(new tasks have no last point|Generator|infinite)"):
        bl.solve(PROBLEM, own, **STARTS, steps=2, progress=False)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (bl.MORBiT(), "sampling=All()) was given tasks of a bl.TaskDistribution"),
        (solver(bl.weightings.SimplexAscent()), "Give bl.weightings.CVaR(0.1)"),
        (solver(bl.weightings.Regret([0.0] * 20, WORST)), "Give bl.weightings.CVaR"),
        (solver(bl.weightings.CVaR(0.01), tasks=16), "Draw at least 100 tasks"),
        (solver(bl.weightings.CVaR(0.4), catch_up=0), "give catch_up of at least 1"),
        (solver(tasks=0), "Fresh(tasks=0)"),
        (
            bl.MASOBA(
                sampling=bl.sampling.Fresh(8), weighting=bl.weightings.Average(), tracker=Momentum(per_task=True)
            ),
            "give per_task=False",
        ),
    ],
)
def test_what_makes_no_sense_for_new_tasks_is_refused(own, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        bl.solve(PROBLEM, own, **STARTS, steps=2, progress=False)


def test_fresh_needs_a_distribution():
    listed = problem_of(PROBLEM.distribution.sample(5, seed=3))
    with pytest.raises(ValueError, match=r"it needs tasks=bl\.TaskDistribution"):
        bl.solve(listed, solver(), **STARTS, steps=2, progress=False)


@pytest.mark.parametrize("y", [None, lambda key, task: 0.0, {"task 0": 0.0}])
def test_new_tasks_start_at_one_point(y):
    with pytest.raises(ValueError, match="start at one point"):
        bl.solve(PROBLEM, solver(), jnp.array(1.0), y, steps=2, progress=False)


def test_new_tasks_are_drawn_on_one_device():
    with pytest.raises(ValueError, match="one device only"):
        bl.solve(PROBLEM, solver(), **STARTS, steps=2, devices=1, progress=False)
