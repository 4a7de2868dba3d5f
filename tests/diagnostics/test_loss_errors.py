"""`loss_errors`: the standard error of a mean, row by row."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.initial_point import lower_points
from bilevel.solvers._base.state import State


def upper(x, y, batch):
    return jnp.mean((y + x - batch) ** 2)


def at(problem, x=0.5):
    y = lower_points(problem, None, None)
    return State(jnp.array(0), jnp.array(x), y, jnp.full(problem.size, 1 / problem.size))


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 3, 9)], ids=["equal sizes", "ragged"])
@pytest.mark.parametrize("role", ["validation", "test"])
def test_it_is_the_spread_of_the_rows_over_the_root_of_their_number(sizes, role):
    data = [GENERATOR.normal(size=size) for size in sizes]
    other = np.zeros(4)
    tasks = [
        bl.Task(other, rows if role == "validation" else other, rows if role == "test" else other, y=jnp.array(0.1 * i))
        for i, rows in enumerate(data)
    ]
    problem = bl.Problem(upper, upper, tasks)
    expected = [((0.1 * i + 0.5 - rows) ** 2).std(ddof=1) / np.sqrt(len(rows)) for i, rows in enumerate(data)]
    np.testing.assert_allclose(bl.loss_errors(problem, at(problem), role), expected, rtol=1e-12)


def test_one_row_says_nothing_of_its_spread():
    task = bl.Task(np.ones(2), np.ones(1), y=jnp.array(0.0))
    problem = bl.Problem(upper, upper, [task])
    assert np.isnan(bl.loss_errors(problem, at(problem))).all()


def test_rows_that_are_not_there_are_refused():
    problem = bl.Problem(upper, upper, [bl.Task(np.ones(2), np.ones(2), y=jnp.array(0.0))])
    with pytest.raises(ValueError, match=r"loss_errors\(role='test'\): not every task has such rows"):
        bl.loss_errors(problem, at(problem), "test")
    with pytest.raises(ValueError, match=r"loss_errors\(role='tests'\): it needs the name of rows"):
        bl.loss_errors(problem, at(problem), "tests")
