"""`refit`: y is that of all rows but test rows, with x as it was."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.weightings import Folds, SimplexAscent


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def lower(x, y, batch):
    return jnp.mean((y - batch) ** 2) + (y - x) ** 2


TRAIN, VALIDATION, TEST = np.array([1.0, 2.0, 6.0]), np.array([3.0]), np.array([4.0, 0.0])
TASKS = [
    bl.Task(TRAIN, VALIDATION, TEST, name="north"),
    bl.Task(TRAIN[:2], 2 * TRAIN, TEST + 1, name="south"),
]
X = jnp.array(0.5)
# y* minimises the mean of (y - row)^2 plus (y - x)^2: halfway between the mean of the rows and x.
POOLED = {"north": (3.0 + 0.5) / 2, "south": ((3 + 18) / 5 + 0.5) / 2}


def problem(tasks=TASKS, **batches):
    return bl.Problem(upper, lower, tasks, **batches)


def assert_refitted(refitted, x=0.5):
    assert list(refitted.y) == ["north", "south"]
    for i, (name, test) in enumerate((("north", TEST), ("south", TEST + 1))):
        y = POOLED[name] + (x - 0.5) / 2
        assert float(refitted.y[name]) == pytest.approx(y, abs=1e-9)
        assert refitted.test_losses[i] == pytest.approx(np.mean((y - test) ** 2), abs=1e-8)
    assert np.all(np.isnan(refitted.losses))  # all rows but test rows were fitted


def test_y_is_fitted_on_training_and_validation_rows():
    assert_refitted(bl.refit(problem(), X, y=jnp.array(0.0)))


def test_a_result_gives_x_and_where_y_starts():
    result = bl.solve(problem(), bl.SOBA(1e-9, 0.1), X, jnp.array(0.0), steps=3, progress=False)
    assert_refitted(bl.refit(problem(), result), float(result.x))
    few = bl.refit(problem(), result, steps=1, lower_lr=1e-12)
    assert float(few.y["north"]) == pytest.approx(float(result.y["north"]), abs=1e-9)


@pytest.mark.parametrize("folds", [2, 3])
def test_of_a_cross_fitted_task_there_is_one_again_with_all_its_rows(folds):
    crossed = problem(bl.cross_fit(TASKS, folds))
    solver = bl.SOBA(0.1, 0.3, weighting=Folds(folds, SimplexAscent(0.05)))
    result = bl.solve(crossed, solver, X, jnp.array(0.0), steps=10, progress=False)
    assert len(result.y) == 2 * folds
    assert_refitted(bl.refit(crossed, result), float(result.x))
    assert_refitted(bl.refit(crossed, X, y=jnp.array(0.0)))


def test_rows_say_what_is_fitted_on():
    refitted = bl.refit(problem(), X, rows=("validation",), y=jnp.array(0.0))
    assert float(refitted.y["north"]) == pytest.approx((3 + 0.5) / 2, abs=1e-9)
    with pytest.raises(ValueError, match="refit: task 'north' has no selection rows"):
        bl.refit(problem(), X, rows=("selection",), y=jnp.array(0.0))


def test_batches_are_those_of_the_problem_where_there_are_enough_rows():
    refitted = bl.refit(problem(lower_batch=2), X, y=jnp.array(0.0), steps=4000, lower_lr=1e-3)
    assert float(refitted.y["north"]) == pytest.approx(POOLED["north"], abs=0.2)


def test_it_needs_a_problem():
    with pytest.raises(TypeError, match=r"refit\(problem=...\) got list"):
        bl.refit(TASKS, X)
