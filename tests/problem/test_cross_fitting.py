"""Cross-fitting: every row validates once, and folds that see the same data change nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.initial_point import lower_points
from bilevel.weightings import Folds, Ratio, SimplexAscent


def rows(first, count):
    return {"input": np.arange(first, first + count)[:, None] * 1.0, "target": np.arange(first, first + count)}


def numbers(data):
    return sorted(np.asarray(data["target"]).tolist())


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_every_row_validates_once_and_trains_in_all_other_folds(folds):
    test = rows(100, 3)
    tasks = [bl.Task(rows(0, 7), rows(7, 4), test, "north"), bl.Task(rows(0, 5), rows(5, 5), test)]
    made = bl.cross_fit(tasks, folds)
    names = ["north, fold 1 of", "task 1, fold 1 of", "north, fold 2 of"]
    assert [task.name for task in made[:3]] == [f"{name} {folds}" for name in names]
    for i, count in enumerate((11, 10)):
        own = made[i::2]
        assert len(own) == folds
        assert sorted(row for task in own for row in numbers(task.validation)) == list(range(count))
        for task in own:
            assert sorted(numbers(task.train) + numbers(task.validation)) == list(range(count))
            assert task.test is test
            np.testing.assert_array_equal(task.train["input"][:, 0], task.train["target"])  # rows stay together
        sizes = [len(task.validation["target"]) for task in own]
        assert max(sizes) - min(sizes) <= 1


def test_the_seed_decides():
    task = bl.Task(rows(0, 20), rows(20, 20))
    first, again, other = (bl.cross_fit(task, 2, seed)[0].validation["target"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_stack_is_cut_along_its_rows():
    stacked = bl.Task.stack(train=np.arange(24.0).reshape(3, 8), validation=np.arange(24.0, 36).reshape(3, 4))
    first, second = bl.cross_fit([bl.Task(np.zeros(4), np.zeros(2)), stacked], 2)[1::2]
    assert first.names == ["task 1, fold 1 of 2", "task 2, fold 1 of 2", "task 3, fold 1 of 2"]
    assert first.validation.shape == second.train.shape == (3, 6)
    for i in range(3):
        pooled = [*np.arange(24.0).reshape(3, 8)[i], *np.arange(24.0, 36).reshape(3, 4)[i]]
        assert sorted([*first.validation[i], *second.validation[i]]) == sorted(pooled)


def upper(x, y, batch):
    return jnp.mean((y - batch["target"]) ** 2) / 2 + x**2 / 20


def lower(x, y, batch):
    return jnp.mean(batch["curvature"] * (y - batch["slope"] * x) ** 2) / 2


def constant(slope, target, curvature, count):
    own = {"slope": slope, "target": target, "curvature": curvature}
    return {name: jnp.full(count, value) for name, value in own.items()}


def path(solver, problem, steps=60):
    key, x = jax.random.key(0), jnp.array(1.5)
    state = solver.start(problem, x, lower_points(problem, jnp.array(0.0), key), key, jnp.array(steps))

    def one(state, _):
        state, _ = solver.step(problem, state, key)
        return state, (state.x, state.weights)

    return jax.jit(lambda state: jax.lax.scan(one, state, None, length=steps)[1])(state)


@pytest.mark.parametrize("weighting", [SimplexAscent(0.05), Ratio([1.0, 2.0], SimplexAscent(0.05))], ids=repr)
@pytest.mark.parametrize("folds", [2, 3])
def test_folds_that_see_the_same_data_move_x_as_one_task_does(folds, weighting):
    """All rows of a task are the same, so that whichever train and whichever validate is one problem."""
    tasks = [
        bl.Task(constant(*own, 6), constant(*own, 6), name=name)
        for name, own in (("a", (1.0, 2.0, 1.0)), ("b", (2.0, -1.0, 2.0)))
    ]
    x, weights = path(bl.SOBA(0.1, 0.3, weighting=weighting), bl.Problem(upper, lower, tasks))
    solver = bl.SOBA(0.1, 0.3, weighting=Folds(folds, weighting))
    fold_x, fold_weights = path(solver, bl.Problem(upper, lower, bl.cross_fit(tasks, folds)))
    np.testing.assert_allclose(fold_x, x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(fold_weights.reshape(-1, folds, 2).sum(axis=1), weights, rtol=0, atol=1e-13)
    assert np.ptp(x) > 0.1


@pytest.mark.parametrize(
    ("tasks", "folds", "kind", "said"),
    [
        (bl.Task(np.zeros(2), np.zeros(1)), 4, ValueError, "folds=4: task 'task 0' has 3 rows"),
        (bl.Task(np.zeros(2), np.zeros(1)), 1, ValueError, r"cross_fit\(folds=1\)"),
        (bl.Task(np.zeros((3, 2)), np.zeros(3), name="n"), 2, ValueError, "train and validation rows .* 'n' differ"),
        (bl.Task(bl.Generator(lambda p, k, n: k, {}), np.zeros(3)), 2, TypeError, "has a Generator as train"),
        (7, 2, TypeError, r"cross_fit\(tasks=...\) got int"),
    ],
)
def test_what_cannot_be_cut_is_refused(tasks, folds, kind, said):
    with pytest.raises(kind, match=said):
        bl.cross_fit(tasks, folds)


def test_other_fields_of_a_task_stay():
    task = bl.Task(np.zeros(4), np.zeros(2), y=jnp.ones(3), upper=upper, lower=lower)
    for fold in bl.cross_fit(task, 2):
        same = {f.name for f in dataclasses.fields(task)} - {"train", "validation", "name"}
        assert all(getattr(fold, name) is getattr(task, name) for name in same)
