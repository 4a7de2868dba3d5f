"""Tasks from a distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl


def draw(key):
    return {"level": jax.random.normal(key), "key": key}


def rows(parameters, key, size):
    return parameters["level"] + jax.random.normal(key, (size,))


def few_rows(parameters, key, size):
    """Rows that a task keeps: they come from its own key."""
    return parameters["level"] + jax.random.normal(parameters["key"], (size,))


def loss(x, y, batch):
    return jnp.mean((y - x - batch) ** 2)


TASKS = bl.TaskDistribution(draw, rows, rows, evaluation=5, rows=3)


def test_samples_are_of_their_seed_and_independent():
    first, again, other = (TASKS.sample(2000, seed).train.parameters["level"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    for own in (first, other):
        assert abs(float(own.mean())) < 4 / np.sqrt(2000)
        assert float(own.std()) == pytest.approx(1, abs=0.1)
    assert abs(np.corrcoef(first, other)[0, 1]) < 4 / np.sqrt(2000)


def test_a_problem_has_the_tasks_of_its_evaluation_and_makes_others():
    problem = bl.Problem(loss, loss, TASKS, lower_batch=2, upper_batch=2)
    assert problem.size == 5
    own = TASKS.sample(5, seed=0).train.parameters["level"]
    np.testing.assert_array_equal(problem.groups[0].train.parameters["level"], own)
    fresh = problem.distribution.fresh(problem, jax.random.key(3), 8)
    assert fresh.size == 8
    assert fresh.distribution is None
    levels = fresh.groups[0].train.parameters["level"]
    np.testing.assert_array_equal(levels, fresh.groups[0].validation.parameters["level"])
    assert not np.isin(np.asarray(levels), np.asarray(own)).any()


def test_a_task_may_keep_its_rows():
    tasks = bl.TaskDistribution(draw, few_rows, rows, evaluation=5, rows=3)
    problem = bl.Problem(loss, loss, tasks, lower_batch=2, upper_batch=2)
    group = problem.distribution.fresh(problem, jax.random.key(3), 4).groups[0]
    drawn = [group.draw_lower(jax.random.key(seed)).batch for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)
    assert len(np.unique(drawn[0])) == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draw": 3}, r"TaskDistribution\(draw=...\) got 3: it needs a function of \(key\)"),
        ({"train": None}, r"TaskDistribution\(train=...\) got None: it needs a function of \(parameters"),
        ({"evaluation": 0}, r"evaluation=0"),
        ({"rows": 1.5}, r"rows=1\.5"),
        ({"draw": lambda key: key[0]}, r"draw=...\) fails"),
        ({"draw": lambda key: ()}, r"needs the parameters of a task"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said):
    tasks = bl.TaskDistribution(**{"draw": draw, "train": rows, "validation": rows} | options)
    with pytest.raises((TypeError, ValueError), match=said):
        bl.Problem(loss, loss, tasks, lower_batch=2, upper_batch=2)


def test_a_batch_size_must_be_given():
    with pytest.raises(ValueError, match="lower_batch=None"):
        bl.Problem(loss, loss, TASKS)
