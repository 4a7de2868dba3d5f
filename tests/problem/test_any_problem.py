"""Identities of problems that hold for any tasks: any trees, groups, sizes, types and batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import bilevel as bl
from bilevel.problem.per_task import PerTask
from bilevel.problem.task import ROLES
from theorems import holds, over

ROWS = st.sampled_from([1, 2, 4])
WIDTHS = st.sampled_from([1, 3])


def upper(x, y, batch):
    return jnp.mean((batch["in"] @ y - batch["out"]) ** 2) + jnp.sum(x) * jnp.mean(batch["out"])


def lower(x, y, batch):
    return jnp.mean((batch["in"] @ y - batch["out"]) ** 2) + jnp.sum((y - x[0]) ** 2)


def as_numpy(x, y, rows):
    """The upper loss of one task on its own rows, without any of our code."""
    return np.mean((rows["in"] @ y - rows["out"]) ** 2) + np.sum(x) * np.mean(rows["out"])


@st.composite
def task_lists(draw, same_sizes=False):
    """Tasks of one or two widths (so groups), with equal or different numbers of rows, labelled by their place."""
    count, random = draw(st.sampled_from([1, 2, 4])), np.random.default_rng(draw(st.integers(0, 9)))
    widths = [draw(WIDTHS) for _ in range(count)]
    sizes = [{role: draw(ROWS) for role in ROLES} for _ in range(count)]
    sizes = [sizes[0]] * count if same_sizes else sizes

    def rows(i, size):
        return {"in": random.normal(size=(size, widths[i])), "out": i + np.arange(size) / 16}

    return [
        bl.Task(
            **{role: rows(i, size) for role, size in sizes[i].items()}, name=f"{i}", y=random.normal(size=widths[i])
        )
        for i in range(count)
    ]


def own_functions(task):
    """The same task in a group of its own: functions are told apart by identity."""
    return dataclasses.replace(
        task,
        upper=lambda x, y, batch: upper(x, y, batch),
        lower=lambda x, y, batch: lower(x, y, batch),
    )


X = np.array([0.5, -1.0])


def problem_of(tasks, **options):
    made = bl.Problem(upper, lower, tasks, **options)
    return made, made.starting_y(None, jax.random.key(0))


# ------------------------------------------------------------------ losses


losses_of = jax.jit(lambda problem, y, role: getattr(problem, f"{role}_losses")(X, y), static_argnums=2)


@over(6, 300)
def test_losses_are_those_of_each_task_on_its_own_rows(examples):
    """So masked means of ragged tasks are exact."""

    def check(tasks):
        problem, y = problem_of(tasks)
        for role in ROLES[1:]:
            losses = losses_of(problem, y, role)
            expected = [as_numpy(X, task.y, getattr(task, role)) for task in tasks]
            np.testing.assert_allclose(losses, expected, rtol=1e-12, atol=1e-12)

    holds(check, examples, task_lists())


@over(5, 150)
def test_how_tasks_are_grouped_changes_nothing(examples):
    def check(tasks, alone, random):
        problem, y = problem_of(tasks)
        mixed = [own_functions(task) if own else task for task, own in zip(tasks, alone, strict=False)]
        other, other_y = problem_of(mixed)
        np.testing.assert_allclose(other.validation_losses(X, other_y), problem.validation_losses(X, y), rtol=1e-12)
        order = list(range(len(tasks)))
        random.shuffle(order)
        permuted, permuted_y = problem_of([mixed[i] for i in order])
        expected = np.asarray(problem.validation_losses(X, y))[order]
        np.testing.assert_allclose(permuted.validation_losses(X, permuted_y), expected, rtol=1e-12)

    # At most three that differ only by identity: more deserve the warning that they get.
    holds(check, examples, task_lists(), st.permutations([True, True, False, False]), st.randoms())


# ------------------------------------------------------------------ tasks and groups

leaf_shapes = st.sampled_from([(), (2,), (2, 1)])
dtypes = st.sampled_from([np.float32, np.float64, np.int32, jnp.bfloat16])
shaped = st.tuples(leaf_shapes, dtypes)
trees = st.recursive(
    shaped.map(lambda s: ("leaf", *s)),
    lambda inner: st.lists(inner, min_size=1, max_size=2) | st.fixed_dictionaries({"b": inner, "a": inner}),
    max_leaves=4,
)


def filled(tree, tasks):
    """Arrays with a leading axis of tasks, every number different."""
    if isinstance(tree, tuple):
        _, shape, dtype = tree
        size = int(np.prod((tasks, *shape)))
        return jnp.asarray(np.arange(size).reshape(tasks, *shape), dtype)
    children = {k: filled(v, tasks) for k, v in tree.items()} if isinstance(tree, dict) else None
    return [filled(child, tasks) for child in tree] if children is None else children


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@over(8, 400)
def test_join_and_split_are_inverse(examples):
    def check(tasks, tree):
        problem, _ = problem_of(tasks)
        ordered = filled(tree, len(tasks))
        same(problem.join(problem.split(ordered)), ordered)
        per_task = problem.split(ordered)
        again = problem.split(problem.join(per_task))
        for one, other in zip(again, per_task, strict=True):
            same(one, other)

    holds(check, examples, task_lists(), trees)


@over(6, 300)
def test_values_by_name_are_those_of_the_task(examples):
    def check(tasks, tree):
        problem, y = problem_of(tasks)
        ordered = filled(tree, len(tasks))
        named = problem.by_name(problem.split(ordered))
        assert list(named) == [task.name for task in tasks]
        for i, task in enumerate(tasks):
            same(named[task.name], jax.tree.map(lambda a, i=i: a[i], ordered))
            np.testing.assert_array_equal(problem.by_name(y)[task.name], task.y)

    holds(check, examples, task_lists(), trees)


@over(6, 300)
def test_every_way_to_give_y_is_the_same(examples):
    def check(tasks):
        problem, y = problem_of(tasks)
        by_task = {task.name: task.y for task in tasks}
        key = jax.random.key(0)
        for given in (by_task, lambda key, task: by_task[task.name]):
            for one, other in zip(problem.starting_y(given, key), y, strict=True):
                same(one, other)

    holds(check, examples, task_lists())


# ------------------------------------------------------------------ batches


@jax.jit
def drawn_of(problem, key):
    """What a batch of each task has."""
    take = lambda task, sample: task.train.take(sample)["out"]  # noqa: E731
    return problem.join(problem.each(take, problem.draw_lower(key)))


@over(5, 150)
def test_a_batch_holds_rows_of_its_own_task_only(examples):
    def check(tasks, seed):
        smallest = min(len(task.train["out"]) for task in tasks)
        problem, _ = problem_of(tasks, lower_batch=smallest)
        drawn = np.asarray(drawn_of(problem, jax.random.key(seed)))
        assert drawn.shape == (len(tasks), smallest)
        for task, rows in zip(tasks, drawn, strict=True):
            assert set(rows) <= set(task.train["out"])

    holds(check, examples, task_lists(), st.integers(0, 99))


@over(4, 100)
def test_what_a_task_draws_does_not_depend_on_its_group(examples):
    def check(tasks, seed):
        drawn = []
        for given in (tasks, [own_functions(tasks[0]), *tasks[1:]]):
            problem, _ = problem_of(given, lower_batch=1)
            drawn.append(drawn_of(problem, jax.random.key(seed)))
        np.testing.assert_array_equal(*drawn)

    holds(check, examples, task_lists(same_sizes=True), st.integers(0, 99))


@over(4, 100)
def test_blocks_of_any_size_make_up_the_whole(examples):
    """Shares sum to 1, and the blocks' losses, weighted by them, to the loss on all rows."""

    def check(tasks, size):
        problem, y = problem_of(tasks)
        size = min(size, *(len(task.train["out"]) for task in tasks))
        for group, y_group in zip(problem.groups, y, strict=True):
            count = group.train.blocks(size)

            def one(task, y, size=size, count=count):
                blocks = [task.train.block(jnp.asarray(number), size) for number in range(count)]
                losses = jnp.stack([task.lower(X, y, block.sample) for block in blocks])
                shares = jnp.stack([block.share for block in blocks])
                return jnp.sum(shares), jnp.sum(shares * losses), task.lower(X, y, None)

            total, parts, whole = jax.jit(lambda y, group=group, one=one: group.each(one, y))(y_group)
            np.testing.assert_allclose(total, 1, rtol=1e-6)
            np.testing.assert_allclose(parts, whole, rtol=1e-6)

    holds(check, examples, task_lists(), st.sampled_from([1, 2, 3]))


def test_a_problem_passes_through_a_pytree_unchanged():
    tasks = [
        bl.Task({"in": np.ones((2, 1)), "out": np.ones(2)}, {"in": np.ones((k, 1)), "out": np.ones(k)}, y=np.ones(1))
        for k in (1, 2)
    ]
    problem, y = problem_of(tasks, lower_batch=1)
    again = jax.tree.unflatten(jax.tree.structure(problem), jax.tree.leaves(problem))
    assert again.names == problem.names
    assert isinstance(y, PerTask)
    np.testing.assert_array_equal(again.validation_losses(X, y), problem.validation_losses(X, y))
