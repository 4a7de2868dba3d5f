"""Calls of whole runs: every solver against arithmetic from its published updates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.costs import WINDOW, RunCounter
from bilevel.studies import catalogue
from bilevel.studies.catalogue import GivenRates, with_rates
from every_solver import every
from step_calls import before_the_first_step, expected, refreshes_of_spaba

SHORT, LONG = 64, 4 * WINDOW + 5  # of the longer ones most windows are not counted one by one
GROWING_OR_REFRESHED = ("BSA", "MRBO", "SPABA", "SRBA", "VRBO")
BILEVEL = [listing.name for listing in catalogue.listings() if hasattr(getattr(bl, listing.name), "rates")]
OTHERS = [listing.name for listing in catalogue.listings() if listing.card.problem != "bilevel"]


def calls(cost):
    assert cost.upper_values == cost.lower_values == 0
    return cost.upper_gradients, cost.lower_gradients, cost.hessian_products, cost.jacobian_products


@functools.cache
def counter(name):
    """One for all lengths: it has compiled its step, and knows those that it has counted."""
    solver = with_rates(getattr(bl, name)(), catalogue.RATES)
    known = bl.problems.random_quadratics(0, 2, catalogue.X_SIZE, catalogue.Y_SIZE)
    return RunCounter(known.problem, solver, jnp.ones(catalogue.X_SIZE))


def costs_what_its_updates_say(name, steps):
    cost = counter(name).count(steps)
    made = calls(cost.steps)
    refreshes = refreshes_of_spaba(made[2] / steps, steps) if name == "SPABA" else 0
    each, before = expected(steps, catalogue.Y_SIZE, refreshes)[name], before_the_first_step(catalogue.Y_SIZE)
    assert made == pytest.approx([steps * count for count in each], rel=1e-12)
    assert calls(cost.start) == before.get(name, (0, 0, 0, 0))
    assert not any(cost.measuring)  # all rates are given
    assert cost.length == steps
    assert cost.rows[-1] == pytest.approx(sum(calls(cost.total)), rel=1e-12)  # tasks of one row


@pytest.mark.parametrize("name", every(BILEVEL))
def test_a_run_of_every_solver_costs_what_its_updates_say(name):
    costs_what_its_updates_say(name, SHORT)


@pytest.mark.parametrize("name", every(GROWING_OR_REFRESHED, quick=("BSA", "SPABA")))
def test_a_longer_run_does_too_where_steps_grow_or_are_refreshed(name):
    costs_what_its_updates_say(name, LONG)


@pytest.mark.parametrize("name", OTHERS)
def test_other_problems_have_no_calls_that_are_counted(name):
    with pytest.raises(TypeError, match=r"cost\(problem=\.\.\.\) got MinMaxProblem: it needs a bl.Problem"):
        RunCounter(bl.problems.reduced_ball().problem, getattr(bl, name)(), jnp.ones(2))


def test_the_rows_of_a_loop_that_grows_are_those_of_every_step():
    """BSA: t_k = ceil(sqrt(k + 1)) lower gradients, f, nine products and J v; 20 products before."""
    rows = counter("BSA").count(100).rows
    each = [np.ceil(np.sqrt(k + 1)) + 1 + 9 + 1 for k in range(100)]
    np.testing.assert_allclose(rows, 20 + np.concatenate([[0], np.cumsum(each)]), rtol=1e-12)


# ------------------------------------------------------------------ rows of batches, and of all the data

TRAIN, VALIDATION, BATCH = 8, 4, 2


def waves():
    """Two tasks with batches; A has two eigenvalues, so that conjugate gradients end after two products."""
    bend, slope = jnp.array([1.0, 0.3]), jnp.array([1.0, 0.99])
    rows = lambda count, seed: jnp.asarray(np.random.default_rng(seed).normal(size=(count, 2)))  # noqa: E731
    return bl.Problem(
        lambda x, y, batch: jnp.mean(jax.vmap(lambda row: slope @ (y - row) ** 2)(batch)) / 2,
        lambda x, y, batch: jnp.mean(jax.vmap(lambda row: bend @ (y - x - row) ** 2)(batch)) / 2,
        [bl.Task(rows(TRAIN, i), rows(VALIDATION, 9 + i), y=jnp.zeros(2)) for i in range(2)],
        lower_batch=BATCH,
        upper_batch=BATCH,
    )


def test_a_refresh_sees_all_the_data():
    """SRBA: f on the validation rows, grad g, A v and J v on the training rows; two points on batches between."""
    steps, period = 64, 16
    cost = RunCounter(waves(), with_rates(bl.SRBA(period=period), catalogue.RATES), jnp.ones(2)).count(steps)
    whole = VALIDATION + 3 * TRAIN
    assert cost.start.rows == whole
    assert cost.steps.rows == steps / period * whole + (steps - steps / period) * 2 * 4 * BATCH


def test_tables_are_filled_from_all_the_data():
    """SABA: f on the validation rows, grad g, A v and J v on the training rows, block by block."""
    cost = RunCounter(waves(), with_rates(bl.SABA(), catalogue.RATES), jnp.ones(2)).count(SHORT)
    assert cost.start.rows == VALIDATION + 3 * TRAIN


# ------------------------------------------------------------------ rates that are measured

MEASURING_ROWS = 128  # where steps draw fewer


def measurement(power):
    """Rows of measuring once with so many power iterations, and with the directions that are known."""
    condition = 2 * 5 * power  # products, for the largest and the smallest curvature of g
    settle = 5 * power  # gradients of g
    # A difference of two hypergradients: at both ends y follows x by J' u and two products of conjugate gradients, and
    # the hypergradient is f_x, f_y, J v and three products, of which the first is for a start that is zero.
    ends = 2 * ((1 + 2) + (1 + 1 + 3))
    turns = power + 1  # the last confirms that a whole step meets no larger curvature
    return MEASURING_ROWS * (condition + settle + turns * ends)


@functools.cache
def automatic():
    """Of rates that are measured."""
    solver = bl.MORBiT(weighting=bl.weightings.SimplexAscent())
    return RunCounter(waves(), solver, jnp.array([1.0, 2.0]))


def test_measuring_is_counted():
    """Automatic MORBiT: 20 power iterations on batches, ten on 128 rows, then one at every refresh."""
    steps = 64
    cost = automatic().count(steps)
    refreshed = {2**i for i in range(steps.bit_length())} | set(range(0, steps, steps // 20))
    refreshed = {step for step in refreshed if 0 < step < steps}
    assert cost.start.rows == 20 * BATCH + measurement(10)
    assert cost.measuring.rows == len(refreshed) * measurement(1)
    assert cost.steps.rows == steps * BATCH * (1 + 1 + (1 + 1) + 1)  # one product more than with given rates
    after = np.diff(cost.rows) - cost.steps.rows / steps
    assert set(np.flatnonzero(after) + 1) == refreshed


# ------------------------------------------------------------------ the longest run of a budget


@pytest.mark.parametrize("name", every(["SOBA", "BSA", "VRBO", "SPABA"], quick=("SOBA", "BSA")))
def test_a_budget_buys_as_many_steps_as_fit(name):
    counting = counter(name)
    for budget in (700.0, 5000.0):
        found = counting.within(budget)
        assert found.rows[-1] <= budget
        assert counting.count(found.length + 1).rows[-1] > budget


def test_measuring_is_part_of_the_budget():
    budget = 200_000
    found = automatic().within(budget)
    assert 0.9 * budget < found.rows[-1] <= budget
    assert found.start.rows + found.measuring.rows > 0.5 * budget


def test_a_budget_too_small_for_a_step_buys_one():
    found = counter("BSA").within(1.0)
    assert (found.length, found.rows[-1] > 1.0) == (1, True)


def test_a_run_that_diverges_is_not_counted():
    solver = with_rates(bl.MORBiT(), GivenRates(1e-3, 1e6, 1e-3, 0.1))
    with pytest.raises(ValueError, match=r"diverged at step \d+ of 200"):
        RunCounter(bl.problems.random_quadratics(0, 2, 2, 3).problem, solver, jnp.ones(2)).count(200)
