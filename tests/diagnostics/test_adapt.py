"""Unseen tasks: y reaches y* with x held fixed, by the steps that were asked for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl

X = jnp.array([0.3, -0.4])
Y = jnp.zeros(2)


def fit(y, batch):
    return jnp.mean((batch["input"] @ y - batch["target"]) ** 2)


def upper(x, y, batch):
    return fit(y, batch)


def lower(x, y, batch):
    return fit(y, batch) + jnp.sum(jnp.exp(x) * y**2)


def rows(seed, count, spread=1.0):
    table = np.random.default_rng(seed).normal(size=(count, 3))
    return {"input": jnp.array(spread * table[:, :2]), "target": jnp.array(table[:, 2])}


def problem(**options):
    seen = [bl.Task(rows(i, 6), rows(10 + i, 4)) for i in range(2)]
    return bl.Problem(upper, lower, seen, **options)


WHOLE = problem()
UNSEEN = [
    bl.Task(rows(20 + i, 5 + i, spread), rows(30 + i, 4), rows(40 + i, 3), name=name)
    for i, (name, spread) in enumerate([("north", 0.1), ("south", 1.0), ("west", 10.0)])  # curvatures far apart
]


def solution(task):
    """The ridge regression by hand."""
    A, t = np.asarray(task.train["input"]), np.asarray(task.train["target"])
    return np.linalg.solve(A.T @ A / len(A) + np.diag(np.exp(X)), A.T @ t / len(A))


def test_unseen_ragged_tasks_reach_their_solutions_each_at_its_own_rate():
    adapted = bl.adapt(WHOLE, X, UNSEEN, y=Y, steps=3000)
    for i, task in enumerate(UNSEEN):
        y = solution(task)
        np.testing.assert_allclose(adapted.y[task.name], y, rtol=0, atol=1e-9)
        np.testing.assert_allclose(adapted.losses[i], fit(jnp.array(y), task.validation), rtol=1e-7)
        np.testing.assert_allclose(adapted.test_losses[i], fit(jnp.array(y), task.test), rtol=1e-7)
        A = np.asarray(task.train["input"])
        largest = np.linalg.eigvalsh(2 * A.T @ A / len(A) + 2 * np.diag(np.exp(X)))[-1]
        np.testing.assert_allclose(adapted.rates[i], 1 / largest, rtol=1e-3)
    assert list(adapted.y) == ["north", "south", "west"]
    assert adapted.worst == max(adapted.losses) == adapted.losses[list(adapted.y).index(adapted.worst_task)]
    np.testing.assert_allclose(adapted.mean, np.mean(adapted.losses))
    assert adapted.worst_task in str(adapted)


@pytest.mark.parametrize("rule", [optax.sgd, optax.adam], ids=["sgd", "adam"])
def test_the_steps_are_those_of_a_loop_by_hand(rule):
    schedule = optax.exponential_decay(0.1, 1, 0.9)
    adapted = bl.adapt(WHOLE, X, UNSEEN[1:2], steps=7, y=Y, lower_rule=rule, lower_lr=schedule)
    y, state = Y, rule(0.1).init(Y)
    for k in range(7):
        transformation = rule(schedule(k))
        updates, state = transformation.update(jax.grad(lower, 1)(X, y, UNSEEN[1].train), state, y)
        y = optax.apply_updates(y, updates)
    np.testing.assert_allclose(adapted.y["south"], y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(adapted.rates[0], schedule(6))


def test_batches_are_those_of_the_problem():
    """One row at a time never comes to rest; where a task has fewer rows than a batch, all of them are seen."""
    whole = bl.adapt(WHOLE, X, UNSEEN, steps=50, y=Y, lower_lr=0.01)
    noisy = bl.adapt(problem(lower_batch=1, upper_batch=2), X, UNSEEN, steps=50, y=Y, lower_lr=0.01)
    again = bl.adapt(problem(lower_batch=1, upper_batch=2), X, UNSEEN, steps=50, y=Y, lower_lr=0.01)
    other = bl.adapt(problem(lower_batch=1, upper_batch=2), X, UNSEEN, steps=50, y=Y, lower_lr=0.01, seed=1)
    large = bl.adapt(problem(lower_batch=6), X, UNSEEN, steps=50, y=Y, lower_lr=0.01)
    assert np.abs(whole.y["south"] - noisy.y["south"]).max() > 1e-3
    np.testing.assert_array_equal(noisy.y["south"], again.y["south"])
    assert np.abs(other.y["south"] - noisy.y["south"]).max() > 1e-3
    np.testing.assert_allclose(large.y["south"], whole.y["south"], rtol=0, atol=1e-12)


def test_stacks_and_single_tasks():
    stack = bl.Task.stack(
        train=jax.tree.map(lambda *a: jnp.stack(a), rows(1, 4), rows(2, 4)),
        validation=jax.tree.map(lambda *a: jnp.stack(a), rows(3, 4), rows(4, 4)),
        y=jnp.ones((2, 2)),
        names=["one", "two"],
    )
    both = bl.adapt(WHOLE, X, [stack], steps=5, lower_lr=0.1)
    single = bl.adapt(WHOLE, X, bl.Task(rows(2, 4), rows(4, 4), y=jnp.ones(2), name="two"), steps=5, lower_lr=0.1)
    np.testing.assert_allclose(single.y["two"], both.y["two"], rtol=0, atol=1e-14)
    assert both.test_losses is None


def test_rows_for_selection_do_nothing():
    """There is nothing to select, so that one task may have them and others not."""
    held = [dataclasses.replace(UNSEEN[0], selection=rows(7, 3)), *UNSEEN[1:]]
    own, plain = [bl.adapt(WHOLE, X, tasks, y=Y, steps=5) for tasks in (held, UNSEEN)]
    np.testing.assert_array_equal(own.losses, plain.losses)


def test_a_task_needs_no_validation_rows():
    """Its y is that of the same task with them; its loss is not known, and those of others are."""
    bare = [bl.Task(task.train, name=task.name) for task in UNSEEN]
    own, fitted = [bl.adapt(WHOLE, X, tasks, y=Y, steps=20) for tasks in (bare, UNSEEN)]
    for name, y in fitted.y.items():
        np.testing.assert_allclose(own.y[name], y, rtol=0, atol=1e-12)
    assert np.isnan(own.losses).all()
    assert np.isnan([own.worst, own.mean]).all()
    assert (own.test_losses, str(own)) == (None, "3 tasks, 3 without a validation loss")

    tested = [bl.Task(task.train, test=task.test, name=task.name) for task in UNSEEN]
    own = bl.adapt(WHOLE, X, [*tested[:2], UNSEEN[2]], y=Y, steps=20)
    np.testing.assert_array_equal(np.isnan(own.losses), [True, True, False])
    np.testing.assert_allclose(own.losses[2], fitted.losses[2])
    np.testing.assert_allclose(own.test_losses, fitted.test_losses)
    known = f"worst loss {fitted.losses[2]:.5g}"
    assert str(own).startswith(f"3 tasks, 2 without a validation loss; of the others: {known}")


def test_a_stack_needs_no_validation_rows_and_rows_of_g_need_not_fit_f():
    def upper(x, y, batch):
        return jnp.mean((batch["other"] - y[None]) ** 2)

    seen = bl.Task(rows(0, 4), {"other": jnp.ones((3, 2))}, name="seen", y=Y)
    stack = bl.Task.stack(train=jax.tree.map(lambda a: a[None], rows(2, 4)), names=["new"], y=Y[None])
    adapted = bl.adapt(bl.Problem(upper, lower, seen), X, [stack, seen], steps=2000)
    np.testing.assert_allclose(adapted.y["new"], solution(bl.Task(rows(2, 4))), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(np.isnan(adapted.losses), [True, False])


def test_a_run_that_diverges_says_so_also_without_validation_rows():
    with pytest.warns(UserWarning, match=r"adapt diverged.*'west'"):
        bl.adapt(WHOLE, X, bl.Task(UNSEEN[2].train, name="west"), steps=1000, y=Y, lower_lr=10.0)


def test_a_run_that_diverges_says_so():
    with pytest.warns(UserWarning, match=r"adapt diverged.*'west'.*smaller lower_lr \(it was 10\)"):
        adapted = bl.adapt(WHOLE, X, UNSEEN[2:], steps=1000, y=Y, lower_lr=10.0)
    assert not np.isfinite(adapted.losses[0])


# ---------------------------------------------------------------- errors


def other_upper(x, y, batch):
    return 2 * upper(x, y, batch)


MIXED = bl.Problem(upper, lower, [bl.Task(rows(0, 4), rows(1, 4)), bl.Task(rows(2, 4), rows(3, 4), upper=other_upper)])


def endless(parameters, key, size):
    return rows(0, size)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tasks": []}, ValueError, r"adapt\(tasks=.*no tasks.*at least one"),
        ({"tasks": 3}, TypeError, r"adapt\(tasks=.*int.*bl\.Task"),
        ({"tasks": [rows(0, 4)]}, TypeError, r"tasks=.*dict.*bl\.Task"),
        ({"steps": 0}, ValueError, r"adapt\(steps=0.*1 or more"),
        ({"steps": 2.5}, ValueError, r"adapt\(steps=2.5.*whole number"),
        ({"seed": "a"}, ValueError, r"adapt\(seed='a'\).*whole number"),
        ({"x": jnp.zeros(3)}, ValueError, r"(?s)task 'north' fails with x = float64\[3\]"),
        ({"x": jnp.zeros(2, int)}, TypeError, r"x has dtype int64"),
        ({"y": None}, ValueError, r"y is missing: task 'north'"),
        ({"lower_lr": -1.0}, ValueError, r"adapt\(lower_lr=-1.0.*positive number"),
        ({"lower_rule": optax.adam}, ValueError, r"adapt\(lower_lr=None\).*optax.sgd only"),
        ({"lower_rule": 0.1}, TypeError, r"adapt\(lower_rule=.*0.1.*such as optax.sgd"),
        ({"problem": UNSEEN}, TypeError, r"adapt\(problem=.*list.*bl\.Problem"),
        ({"problem": MIXED}, ValueError, r"adapt\(tasks=.*without upper.*Task\(upper=...\)"),
        (
            {"tasks": [bl.Task(bl.Generator(endless, 0.0), rows(0, 4))]},
            ValueError,
            r"adapt\(tasks=.*Generator.*lower_batch",
        ),
    ],
    ids=lambda a: next(iter(a)) if isinstance(a, dict) else "",
)
def test_arguments_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        bl.adapt(**{"problem": WHOLE, "x": X, "tasks": UNSEEN, "steps": 10, "y": Y, **options})


def test_a_task_may_bring_the_function_that_the_problem_leaves_open():
    new = bl.Task(rows(5, 4), rows(6, 4), name="new", upper=other_upper)
    adapted = bl.adapt(MIXED, X, [new], steps=5, y=Y, lower_lr=0.1)
    np.testing.assert_allclose(adapted.losses[0], 2 * fit(adapted.y["new"], new.validation))
