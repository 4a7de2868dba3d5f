"""Sources, grouping and problems: how tasks are stored never changes what they are."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.initial_point import lower_points
from bilevel.problem.per_task import PerTask


def upper(x, y, batch):
    return jnp.mean((batch["input"] @ y - batch["target"]) ** 2) / 2


def lower(x, y, batch):
    return upper(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def rows(seed, *shape, width=2):
    generator = np.random.default_rng(seed)
    return {
        "input": jnp.array(generator.normal(size=(*shape, width))),
        "target": jnp.array(generator.normal(size=shape)),
    }


X, Y = jnp.array([0.1, -0.2]), jnp.array([0.3, 0.5])
SIZES = (5, 1, 3)
RAGGED = [
    bl.Task(rows(i, size), rows(10 + i, size + i), rows(20 + i, 7 - size), name=name)
    for i, (size, name) in enumerate(zip(SIZES, ("north", "east", "south"), strict=True))
]
KEY = jax.random.key(3)


def names_of(problem):
    return list(problem.names)


@jax.jit
def losses(problem, x, y):
    return problem.validation_losses(x, y), problem.test_losses(x, y)


# ------------------------------------------------------------------ ragged tasks


def test_ragged_tasks_are_one_group():
    assert len(bl.Problem(upper, lower, RAGGED).groups) == 1


def test_whole_data_losses_of_ragged_tasks_are_those_of_a_loop_over_tasks():
    problem = bl.Problem(upper, lower, RAGGED)
    y = lower_points(problem, Y, KEY)
    validation, test = losses(problem, X, y)
    np.testing.assert_allclose(validation, [upper(X, Y, task.validation) for task in RAGGED], rtol=1e-14)
    np.testing.assert_allclose(test, [upper(X, Y, task.test) for task in RAGGED], rtol=1e-14)
    (group,) = problem.groups
    whole = jax.jit(lambda y: group.each(lambda task, y: task.lower(X, y, None), y))(y.groups[0])
    np.testing.assert_allclose(whole, [lower(X, Y, task.train) for task in RAGGED], rtol=1e-14)


def test_gradients_of_ragged_losses_are_those_of_a_loop_over_tasks():
    (group,) = bl.Problem(upper, lower, RAGGED).groups
    ys = jnp.stack([Y, 2 * Y, -Y])
    slope = jax.jit(lambda ys: group.each(lambda task, y: jax.grad(task.lower, argnums=1)(X, y, None), ys))(ys)
    loop = [jax.grad(lower, argnums=1)(X, y, task.train) for y, task in zip(ys, RAGGED, strict=True)]
    np.testing.assert_allclose(slope, jnp.stack(loop), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("ragged", [True, False])
def test_draws_are_uniform_over_a_tasks_own_rows(ragged):
    sizes = (5, 1, 3) if ragged else (4, 4, 4)
    offset = np.concatenate([[0], np.cumsum(sizes)])
    marks = [jnp.arange(a, b, dtype=float) for a, b in itertools.pairwise(offset)]  # every row has a number of its own
    tasks = [bl.Task(mark, mark, name=str(i)) for i, mark in enumerate(marks)]
    draws = 4000
    problem = bl.Problem(lambda x, y, b: b.mean(), lambda x, y, b: b.mean(), tasks, lower_batch=1, upper_batch=1)
    (group,) = problem.groups

    @jax.jit
    @jax.vmap
    def seen(key):
        drawn = group.draw_upper(key)
        take = lambda task, lower, upper: (task.lower(X, Y, lower), task.upper(X, Y, upper))  # noqa: E731
        return group.each(take, group.draw_lower(key), drawn.upper), group.each(
            lambda t, s: t.lower(X, Y, s), drawn.lower
        )

    (lower_rows, upper_rows), hyper_rows = seen(jax.random.split(KEY, draws))
    for drawn in (lower_rows, upper_rows, hyper_rows):
        for i, size in enumerate(sizes):
            own, count = np.unique(drawn[:, i], return_counts=True)
            np.testing.assert_array_equal(own, marks[i])
            # The counts are binomial: five standard deviations.
            assert np.all(np.abs(count - draws / size) <= 5 * np.sqrt(draws / size * (1 - 1 / size)) + 1e-9)


def test_batches_of_a_ragged_task_have_the_size_asked_for():
    seen = []

    def spy(x, y, batch):
        seen.append(batch["target"].shape)
        return upper(x, y, batch)

    tasks = [bl.Task(rows(i, n), rows(i, n), name=str(i)) for i, n in enumerate((5, 3))]
    (group,) = bl.Problem(spy, spy, tasks, lower_batch=2, upper_batch=3).groups
    ys = jnp.stack([Y, Y])
    jax.eval_shape(lambda: group.each(lambda task, y, s: task.lower(X, y, s), ys, group.draw_lower(KEY)))
    jax.eval_shape(lambda: group.each(lambda task, y, s: task.upper(X, y, s.upper), ys, group.draw_upper(KEY)))
    assert seen == [(2,), (3,)]


# ------------------------------------------------------------------ stacks and groups

TRAIN, VALIDATION, TEST = rows(0, 4, 5), rows(1, 4, 3), rows(2, 4, 6)
STACK = bl.Task.stack(train=TRAIN, validation=VALIDATION, test=TEST, names=list("abcd"))


def cut(data, i):
    return jax.tree.map(lambda a: a[i], data)


SINGLE = [bl.Task(cut(TRAIN, i), cut(VALIDATION, i), cut(TEST, i), name=name) for i, name in enumerate("abcd")]
HALVES = [
    bl.Task.stack(
        train=cut(TRAIN, half),
        validation=cut(VALIDATION, half),
        test=cut(TEST, half),
        names=list("abcd")[half],
    )
    for half in (slice(0, 2), slice(2, 4))
]
SOLVER = bl.MORBiT(
    upper_lr=0.05,
    lower_lr=0.1,
    hypergradient=bl.hypergradients.Tracked(lr=0.1),
    weighting=bl.weightings.SimplexAscent(lr=0.05),
)


def run(problem, y=Y, **options):
    options = {"steps": 20, "every": 10, "progress": False, **options}
    return bl.solve(problem, SOLVER, X, y, **options)


@pytest.mark.parametrize("tasks", [STACK, HALVES, [HALVES[0], *SINGLE[2:]]], ids=["one stack", "two stacks", "mixed"])
def test_a_stack_of_tasks_is_the_same_as_the_tasks(tasks):
    one, other = (bl.Problem(upper, lower, t, lower_batch=2, upper_batch=2) for t in (SINGLE, tasks))
    assert names_of(one) == names_of(other) == list("abcd")
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_a_stack_of_tasks_takes_the_same_steps_as_the_tasks():
    one, other = (run(bl.Problem(upper, lower, t, lower_batch=2, upper_batch=2)) for t in (SINGLE, STACK))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.losses, other.losses)
    np.testing.assert_array_equal(one.test_losses, other.test_losses)
    for name in "abcd":
        np.testing.assert_array_equal(one.y[name], other.y[name])


def test_groups_that_interleave_keep_the_order_of_the_tasks():
    wide = [rows(30 + i, 4, width=3) for i in range(2)]
    tasks = [
        SINGLE[0],
        bl.Task(wide[0], wide[0], name="wide 0", upper=wide_upper, lower=wide_lower),
        bl.Task.stack(
            train=cut(TRAIN, slice(1, 3)),
            validation=cut(VALIDATION, slice(1, 3)),
            test=cut(TEST, slice(1, 3)),
        ),
        bl.Task(wide[1], wide[1], name="wide 1", upper=wide_upper, lower=wide_lower),
        SINGLE[3],
    ]
    problem = bl.Problem(upper, lower, tasks)
    names = ["a", "wide 0", "task 2", "task 3", "wide 1", "d"]
    assert names_of(problem) == names
    assert [group.size for group in problem.groups] == [4, 2]

    start = {
        "a": Y,
        "wide 0": jnp.ones(3),
        "task 2": 2 * Y,
        "task 3": 3 * Y,
        "wide 1": -jnp.ones(3),
        "d": 4 * Y,
    }
    data = [cut(VALIDATION, 0), wide[0], cut(VALIDATION, 1), cut(VALIDATION, 2), wide[1], cut(VALIDATION, 3)]
    functions = [upper, wide_upper, upper, upper, wide_upper, upper]
    loop = [f(X, start[name], batch) for f, name, batch in zip(functions, names, data, strict=True)]
    ys = lower_points(problem, start, KEY)
    np.testing.assert_allclose(losses(problem, X, ys)[0], loop, rtol=1e-14)
    assert {name: y.tolist() for name, y in problem.by_name(ys).items()} == {n: y.tolist() for n, y in start.items()}

    # Weights stand in the order of the names: a step moves them by the losses at the new y.
    state = SOLVER.init(problem, X, start, key=KEY, steps=10)
    after, info = jax.jit(SOLVER.step)(problem, state, KEY)
    loop = [f(X, problem.by_name(after.y)[name], b) for f, name, b in zip(functions, names, data, strict=True)]
    np.testing.assert_allclose(info.losses, loop, rtol=1e-13)
    expected, _ = SOLVER.weighting.update(jnp.full(6, 1 / 6), jnp.array(loop), (), 0.05)
    np.testing.assert_allclose(after.weights, expected, rtol=1e-12)


def wide_upper(x, y, batch):
    return 3 * upper(x, y, batch)


def wide_lower(x, y, batch):
    return upper(x, y, batch) + jnp.sum(jnp.exp(x)) * jnp.sum(y**2)


def test_how_tasks_are_grouped_does_not_change_what_they_draw():
    plain = bl.Problem(upper, lower, SINGLE, lower_batch=2, upper_batch=2)
    apart = [
        SINGLE[0],
        bl.Task(cut(TRAIN, 1), cut(VALIDATION, 1), cut(TEST, 1), name="b", upper=lambda x, y, b: upper(x, y, b)),
        *SINGLE[2:],
    ]
    split = bl.Problem(upper, lower, apart, lower_batch=2, upper_batch=2)
    assert (len(plain.groups), len(split.groups)) == (1, 2)
    draw = jax.jit(lambda p: (p.join(p.draw_lower(KEY)), p.join(p.draw_upper(KEY))))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), draw(plain), draw(split)))


def test_different_functions_and_dimensions_in_one_problem():
    """Two tasks that share x and nothing else: the run equals its closed form."""
    tasks = [
        # y* = x, f = (y - 2)^2 / 2
        bl.Task(
            (),
            (),
            name="scalar",
            upper=lambda x, y, b: (y - 2) ** 2 / 2,
            lower=lambda x, y, b: (y - x) ** 2 / 2,
        ),
        # y* = (2x, 0, 0), f = (y_0 + 1)^2 / 2
        bl.Task(
            {"scale": jnp.array([2.0])},
            {"target": jnp.array([-1.0])},
            name="vector",
            upper=lambda x, y, b: jnp.mean((y["a"][0] - b["target"]) ** 2) / 2,
            lower=lambda x, y, b: (y["a"][0] - jnp.mean(b["scale"]) * x) ** 2 / 2 + jnp.sum(y["a"][1:] ** 2),
        ),
    ]
    start = {"scalar": jnp.array(0.0), "vector": {"a": jnp.ones(3)}}
    problem = bl.Problem(upper, lower, tasks)
    assert len(problem.groups) == 2
    solver = SOLVER.replace(lower_lr=0.5, hypergradient=bl.hypergradients.Tracked(lr=0.5))
    result = bl.solve(problem, solver, jnp.array(1.5), start, steps=2000, progress=False)
    np.testing.assert_allclose(result.x, 1 / 3, atol=5e-3)
    np.testing.assert_allclose(result.weights, [2 / 3, 1 / 3], atol=5e-3)
    np.testing.assert_allclose(result.y["scalar"], result.x, atol=5e-3)
    np.testing.assert_allclose(result.y["vector"]["a"], [2 * result.x, 0, 0], atol=5e-3)


def test_tasks_that_share_one_function_object_share_a_group():
    shared = bl.Problem(upper, lower, [bl.Task(rows(0, 4), rows(1, 3), upper=wide_upper) for _ in range(3)])
    assert len(shared.groups) == 1


def test_many_groups_that_differ_only_by_function_identity_are_warned_of():
    def own(i):
        return bl.Task(rows(i, 4), rows(i, 3), upper=lambda x, y, batch: (1 + i) * upper(x, y, batch))

    with pytest.warns(
        UserWarning, match=r"5 groups.*differ only by the identity.*compiled.*same function objects"
    ) as seen:
        bl.Problem(upper, lower, [own(i) for i in range(5)])
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    "tasks",
    [
        [bl.Task(rows(i, 4), rows(i, 3), upper=lambda x, y, b, i=i: i * upper(x, y, b)) for i in range(4)],
        [bl.Task(rows(i, 4, width=2 + i), rows(i, 3, width=2 + i)) for i in range(6)],
        [bl.Task((), (), y=jnp.zeros(1 + i)) for i in range(6)],
        SINGLE,
    ],
    ids=["few groups", "groups of different shapes", "groups of different y", "one group"],
)
def test_other_groups_are_not_warned_of(tasks):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        bl.Problem(upper, lower, tasks)
    assert not seen


# ------------------------------------------------------------------ names


def test_default_names():
    tasks = [
        bl.Task(rows(0, 4), rows(0, 3)),
        bl.Task(rows(0, 4), rows(0, 3), name="own"),
        bl.Task(rows(0, 4), rows(0, 3)),
    ]
    assert names_of(bl.Problem(upper, lower, tasks)) == ["task 0", "own", "task 2"]


def test_names_do_not_matter_to_what_is_compiled():
    traced = []

    @jax.jit
    def trace(problem):
        traced.append(problem)

    for names in ("abcd", "wxyz"):
        trace(bl.Problem(upper, lower, bl.Task.stack(train=TRAIN, validation=VALIDATION, names=list(names))))
    assert len(traced) == 1


def test_an_unknown_name_is_answered_with_the_names():
    problem = bl.Problem(upper, lower, STACK)
    with pytest.raises(KeyError, match=r"no task is named 'z'.*'a', 'b'"):
        problem.by_name(PerTask((jnp.zeros((4, 2)),)))["z"]


# ------------------------------------------------------------------ where y starts


def equal(one, other):
    same = jax.tree.structure(one) == jax.tree.structure(other)
    return same and jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_all_ways_to_give_y_start_at_the_same_place():
    ys = {name: jnp.full(2, float(i)) for i, name in enumerate("abcd")}
    problem = bl.Problem(upper, lower, SINGLE)
    carried = [bl.Task(task.train, task.validation, task.test, name=task.name, y=ys[task.name]) for task in SINGLE]
    stacked = bl.Task.stack(train=TRAIN, validation=VALIDATION, y=jnp.stack(list(ys.values())))
    starts = [
        lower_points(problem, ys, KEY),
        lower_points(problem, dict(reversed(ys.items())), KEY),
        lower_points(problem, lambda key, task: ys[task.name], KEY),
        lower_points(bl.Problem(upper, lower, carried), None, KEY),
        lower_points(bl.Problem(upper, lower, stacked), None, KEY),
    ]
    assert all(equal(start, PerTask((jnp.stack(list(ys.values())),))) for start in starts)


def test_one_pytree_is_for_all_tasks():
    assert equal(lower_points(bl.Problem(upper, lower, SINGLE), Y, KEY), PerTask((jnp.stack([Y] * 4),)))


def test_a_dict_whose_keys_name_no_task_is_one_pytree():
    problem = bl.Problem(upper, lower, SINGLE)
    y = {"slope": jnp.ones(2), "offset": jnp.array(0.5)}
    assert equal(lower_points(problem, y, KEY), PerTask(({"slope": jnp.ones((4, 2)), "offset": jnp.full(4, 0.5)},)))


def test_what_is_given_to_solve_goes_before_what_the_tasks_brought():
    carried = [bl.Task(rows(0, 4), rows(0, 3), y=jnp.zeros(2))]
    assert equal(lower_points(bl.Problem(upper, lower, carried), Y, KEY), PerTask((Y[None],)))


def test_a_function_sees_each_task_as_it_was_written_and_a_key_of_its_own():
    seen = {}

    def start(key, task):
        seen[task.name] = (jax.random.key_data(key).tolist(), task)
        return Y

    lower_points(bl.Problem(upper, lower, RAGGED), start, KEY)
    assert list(seen) == ["north", "east", "south"]
    assert len({str(key) for key, _ in seen.values()}) == 3
    for task in RAGGED:
        _, given = seen[task.name]
        assert equal((given.train, given.validation, given.test), (task.train, task.validation, task.test))
        assert (given.upper, given.lower) == (upper, lower)


def test_all_ways_to_give_y_take_the_same_steps():
    problem = bl.Problem(upper, lower, SINGLE)
    ways = [Y, dict.fromkeys("abcd", Y), lambda key, task: Y]
    first, *others = [run(problem, y).x for y in ways]
    assert all(np.array_equal(first, other) for other in others)


# ------------------------------------------------------------------ generators


def line(parameters, key, size):
    t = jax.random.normal(key, (size, 2))
    return {"input": t, "target": t @ parameters["slope"]}


def generated(i, **options):
    return bl.Generator(line, {"slope": jnp.array([float(i), 1.0])}, **options)


def test_generators_with_one_function_are_stacked():
    tasks = [bl.Task(generated(i), generated(i)) for i in range(3)]
    stack = bl.Generator(line, {"slope": jnp.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])})
    one = bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2)
    other = bl.Problem(upper, lower, bl.Task.stack(train=stack, validation=stack), lower_batch=2, upper_batch=2)
    assert len(one.groups) == 1
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_a_generator_is_evaluated_on_a_fixed_sample():
    tasks = [bl.Task(generated(i), generated(i, evaluation=50), generated(i, evaluation=50)) for i in range(2)]
    problem = bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2)
    ys = lower_points(problem, Y, KEY)
    validation, test = losses(problem, X, ys)
    np.testing.assert_array_equal(validation, losses(problem, X, ys)[0])
    assert np.all(validation != test)
    # Both estimate E (input . (y - slope))^2 / 2 = |y - slope|^2 / 2.
    exact = [np.sum((Y - jnp.array([i, 1.0])) ** 2) / 2 for i in range(2)]
    np.testing.assert_allclose(validation, exact, rtol=0.5)
    np.testing.assert_allclose(test, exact, rtol=0.5)


def test_batches_of_a_generator_are_fresh_for_every_task_and_key():
    tasks = [bl.Task(generated(1), generated(1)) for _ in range(2)]
    (group,) = bl.Problem(upper, lower, tasks, lower_batch=3, upper_batch=3).groups
    batch = jax.jit(lambda key: group.each(lambda task, s: task.lower(X, Y, s), group.draw_lower(key)))
    assert len(np.unique([batch(jax.random.key(i)) for i in range(3)])) == 6


# ------------------------------------------------------------------ tasks without data, and many tasks


@pytest.mark.parametrize("nothing", [(), {}, None])
def test_tasks_without_data(nothing):
    def target(x, y, batch):
        assert batch == nothing
        return (y - 1) ** 2 / 2

    def follow(x, y, batch):
        return (y - x) ** 2 / 2

    problem = bl.Problem(target, follow, [bl.Task(nothing, nothing), bl.Task(nothing, nothing)])
    ys = lower_points(problem, {"task 0": jnp.array(0.0), "task 1": jnp.array(3.0)}, KEY)
    np.testing.assert_allclose(losses(problem, jnp.array(0.0), ys)[0], [0.5, 2.0])
    state = SOLVER.init(problem, jnp.array(0.0), jnp.array(2.0), key=KEY, steps=1)
    after, _ = jax.jit(SOLVER.step)(problem, state, KEY)
    np.testing.assert_allclose(after.y.groups[0], [1.8, 1.8])


def test_a_task_without_data_beside_others_with_batches():
    tasks = [
        bl.Task(rows(0, 4), rows(0, 3)),
        bl.Task((), (), upper=lambda x, y, b: 0.0 * y.sum(), lower=ridge),
    ]
    problem = bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2)
    assert problem.size == 2


def ridge(x, y, batch):
    return jnp.sum(y**2)


def test_a_hundred_thousand_tasks():
    count = 100_000
    generator = np.random.default_rng(0)
    stack = bl.Task.stack(train=generator.normal(size=(count, 2)), validation=generator.normal(size=(count, 1)))

    def follow(x, y, batch):
        return jnp.mean((y - x - batch) ** 2) / 2

    def target(x, y, batch):
        return jnp.mean((y - batch) ** 2) / 2

    problem = bl.Problem(target, follow, stack)
    assert problem.size == count
    assert problem.names[count - 1] == "task 99999"
    result = bl.solve(problem, SOLVER, jnp.array(0.0), jnp.array(0.0), steps=3, progress=False)
    assert result.weights.shape == (count,)
    np.testing.assert_allclose(result.weights.sum(), 1, rtol=1e-9)
    last = f"task {count - 1}"
    np.testing.assert_allclose(result.losses[-1], target(result.x, result.y[last], stack.validation[-1]), rtol=1e-12)


def test_random_keys_may_be_parameters_of_generators():
    """Joined by numpy, a task at a time or as a stack, they are the keys that they were."""

    def sample(parameters, key, size):
        return jax.random.normal(parameters, (size,))

    keys = jax.random.split(jax.random.key(3), 4)
    one_by_one = [bl.Task(bl.Generator(sample, key), bl.Generator(sample, key)) for key in keys]
    stack = bl.Task.stack(train=bl.Generator(sample, keys), validation=bl.Generator(sample, keys))
    for tasks in (one_by_one, stack):
        problem = bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2)
        assert len(problem.groups) == 1
        joined = problem.groups[0].train.parameters
        assert joined.dtype == keys.dtype
        np.testing.assert_array_equal(jax.random.key_data(joined), jax.random.key_data(keys))


class EndlessDataset:
    """As those of PyTorch may be: one item a row, and numpy would go through it for ever."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return np.zeros(2), 1


def test_a_dataset_of_items_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"train got EndlessDataset.*np\.stack, zip\(\*dataset\)"):
        bl.Problem(upper, lower, [bl.Task(EndlessDataset(), np.zeros(3))])


def test_a_module_of_pytorch_as_x_is_refused_with_what_to_do():
    class Linear:
        def named_parameters(self):
            return []

    problem = bl.Problem(upper, lower, [bl.Task(np.ones(3), np.ones(3))])
    with pytest.raises(TypeError, match=r"x got Linear: .*PyTorch.*Flax NNX or Equinox.*named_parameters"):
        bl.solve(problem, bl.MORBiT(0.1, 0.1), Linear(), np.zeros(()), steps=1, progress=False)


# ------------------------------------------------------------------ rows for selection


def mean_of(x, y, batch):
    return jnp.mean(batch) + 0 * x + 0 * y


def test_all_tasks_have_rows_for_selection_or_none_has():
    rows = jnp.ones(2)
    with_, without = bl.Task(rows, rows, selection=rows, name="a"), bl.Task(rows, rows, name="b")
    with pytest.raises(ValueError, match=r"1 of 2 tasks, 'b' for one, has no selection rows, and the others do"):
        bl.Problem(mean_of, mean_of, [with_, without])
    assert bl.Problem(mean_of, mean_of, with_).has_selection
    problem = bl.Problem(mean_of, mean_of, without)
    assert not problem.has_selection
    y = problem.starting_y(jnp.array(0.0), jax.random.key(0))
    assert problem.selection_losses(jnp.array(0.0), y) is None


def test_positional_test_rows_stay_test_rows():
    task = bl.Task(1, 2, 3, "name")
    assert (task.validation, task.selection, task.test, task.name) == (2, None, 3, "name")


def test_generators_are_evaluated_on_samples_of_their_own():
    source = bl.Generator(lambda scale, key, size: scale * jax.random.normal(key, (size,)), jnp.array(1.0))
    problem = bl.Problem(mean_of, mean_of, bl.Task(source, source, selection=source, test=source), None, 2, 2)
    y = problem.starting_y(jnp.array(0.0), jax.random.key(0))
    losses = [
        getattr(problem, f"{role}_losses")(jnp.array(0.0), y).item() for role in ("validation", "selection", "test")
    ]
    assert len(set(losses)) == 3
