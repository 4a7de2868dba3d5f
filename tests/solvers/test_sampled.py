"""Steps that see some of the tasks, with any solver."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._core.module import part
from bilevel.hypergradients.trackers import Momentum, Storm
from bilevel.problem.per_task import InOrder, PerTask
from bilevel.solvers._base.state import Halves
from bilevel.solvers._base.task_subset import Rows
from bilevel.solvers.sampling import Draw, Sampling
from bilevel.testing import check_solver
from bilevel.testing.common import Setting, make
from bilevel.testing.solvers import CompiledRun
from every_solver import every

OPTIONS = {"upper_lr": 0.05, "lower_lr": 0.2, "weighting": bl.weightings.SimplexAscent(0.05)}
BILEVEL = [name for name in bl.solvers.__all__ if hasattr(getattr(bl, name), "sampling")]
ALL_ONLY = [name for name in BILEVEL if getattr(bl, name).needs_all_tasks]
SOLVERS = {name: getattr(bl, name)(**OPTIONS) for name in BILEVEL if name not in ALL_ONLY}
SOLVERS["MASOBA, per task"] = bl.MASOBA(**OPTIONS, tracker=Momentum(per_task=True))
SOLVERS["MORBiT, Adam"] = bl.MORBiT(**OPTIONS, lower_rule=optax.adam)
SOLVERS["MORBiT, multiplicative"] = bl.MORBiT(0.05, 0.2, weighting=bl.weightings.Exponentiated(0.1))

SOLVERS["MRBO, per task"] = bl.MRBO(**OPTIONS, tracker=Storm(per_task=True))


def test_these_solvers_see_all_tasks_and_say_so():
    assert sorted(ALL_ONLY) == ["FSLA", "VRBO"]
    problem = make(Setting(), jnp.float64).problem
    for name in ALL_ONLY:
        solver = getattr(bl, name)(sampling=bl.sampling.Uniform(3))
        with pytest.raises(ValueError, match=re.escape(f"{name}(sampling=Uniform(tasks=3))")) as raised:
            solver.check(problem)
        assert solver.needs_all_tasks in str(raised.value)  # the reason


@pytest.mark.parametrize("name", every(SOLVERS, quick=("MORBiT", "Tandem")))
def test_drawing_all_tasks_is_seeing_all_tasks(name):
    """Two groups; to a few rounding errors, as c + (F - c) is F up to one."""
    example = make(Setting(), jnp.float64)
    wanted = CompiledRun(SOLVERS[name])(example)
    for sampling in (bl.sampling.Uniform(5), *[bl.sampling.Mixture(5)] * (name == "MORBiT")):
        found = CompiledRun(SOLVERS[name].replace(sampling=sampling))(example)
        for field in ("x", "y", "weights", "lower", "v", "memory"):
            for a, b in zip(*(jax.tree.leaves(getattr(run.last, field)) for run in (wanted, found)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    every(["MORBiT", "SOBA", "SABA", "F2SA", "MASOBA, per task", "MORBiT, Adam"], quick=("SABA", "MORBiT, Adam")),
)
def test_only_drawn_tasks_move(name):
    example = make(Setting(), jnp.float64)
    solver = SOLVERS[name].replace(sampling=bl.sampling.Uniform(3))
    state = jax.jit(solver.stepper().start)(*example, jax.random.key(0), jnp.asarray(10))
    after, info = jax.jit(solver.stepper().step)(example.problem, state, jax.random.key(1))
    places = [np.flatnonzero(np.isin(group.ids, info.seen)) for group in example.problem.groups]
    for half in ("y", "v", "memory", "lower"):
        own = [Halves.of(s._replace(sampling=())).tasks for s in (state, after)]
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(getattr(own[0], half)),
            jax.tree.leaves(getattr(own[1], half)),
            strict=True,
        ):
            group = next((k.idx for k in path if isinstance(k, jax.tree_util.SequenceKey)), None)
            drawn = info.seen if len(old) == 5 else places[group]
            rest = np.setdiff1d(np.arange(len(old)), np.asarray(drawn))
            np.testing.assert_array_equal(np.asarray(old)[rest], np.asarray(new)[rest])
    for g, (a, b) in enumerate(zip(state.y, after.y, strict=True)):
        changed = np.any([np.any(np.reshape(p != q, (len(p), -1)), axis=1) for p, q in _leaves(a, b)], axis=0)
        assert set(np.flatnonzero(changed)) == set(places[g])


def _leaves(a, b):
    return zip(map(np.asarray, jax.tree.leaves(a)), map(np.asarray, jax.tree.leaves(b)), strict=True)


@part
class These(Sampling):
    """Given tasks, as if drawn uniformly."""

    tasks: int
    index: jax.Array = bl.leaf()

    def draw(self, urn, weights, count, key):
        return Draw(self.index, jnp.full(count, count / len(weights)))


def quadratics(n=5, noise=0.0):
    """min over x of the worst 1/2 |y_i - p_i|^2 with y_i = x; without noise."""
    points = np.random.default_rng(0).normal(size=(n, 1, 2))
    loss = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=-1))  # noqa: E731
    lower = lambda x, y, batch: 0.5 * jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)  # noqa: E731
    return bl.Problem(loss, lower, bl.Task.stack(train=points, validation=points)), jnp.array([2.0, -1.0])


def test_a_step_of_x_and_of_weights_is_unbiased():
    """The mean over all subsets of two of five tasks; weights inside the simplex, so that all is linear."""
    problem, x = quadratics()
    weighting = bl.weightings.SimplexAscent(1e-3)
    solver = bl.MORBiT(0.1, 0.3, bl.hypergradients.Exact(), weighting)
    y = PerTask((jnp.asarray(np.random.default_rng(1).normal(size=(5, 2))),))
    args = (jax.random.key(0), jnp.asarray(10))
    wanted, _ = jax.jit(solver.stepper().step)(
        problem, jax.jit(solver.stepper().start)(problem, x, y, *args), jax.random.key(1)
    )

    def step(index):
        own = solver.replace(sampling=These(2, index)).stepper()
        state = own.start(problem, x, y, *args)
        # A table that knows nothing: what is estimated does not depend on it.
        owed = state.sampling.owed._replace(last=InOrder(jnp.arange(5.0)))
        return own.step(problem, state._replace(sampling=state.sampling._replace(owed=owed)), jax.random.key(1))[0]

    subsets = jnp.array(list(itertools.combinations(range(5), 2)))
    states = jax.lax.map(jax.jit(step), subsets)
    np.testing.assert_allclose(states.x.mean(axis=0), wanted.x, rtol=1e-12)
    np.testing.assert_allclose(states.weights.mean(axis=0), wanted.weights, rtol=1e-12)


@pytest.mark.parametrize("name", ["MRBO", "SRBA"])
def test_a_direction_that_is_followed_by_differences_is_unbiased(name):
    """After a step of two tasks, the mean over all draws of the next is what all tasks at both points give.

    Here D_i is y_i - p_i, or v_i where the solver moves v. Tasks that the first step did not see stand where they were.
    """
    problem, x = quadratics()
    points = np.asarray(problem.groups[0].train.data)[:, 0]
    options = {"hypergradient": bl.hypergradients.Exact()} if name == "MRBO" else {}
    rates = {"upper_lr": 0.1, "lower_lr": 0.3, "weighting": bl.weightings.SimplexAscent(1e-2)}
    solver = getattr(bl, name)(**rates, **options)
    keep = 1 - (2.0) ** (-2 / 3) if name == "MRBO" else 1.0
    y = PerTask((jnp.asarray(np.random.default_rng(1).normal(size=(5, 2))),))

    def directions(state):
        return np.asarray(state.y.groups[0]) - points if name == "MRBO" else np.asarray(state.v.groups[0].v)

    drawing = lambda index: solver.replace(sampling=These(2, index)).stepper()  # noqa: E731
    advance = jax.jit(lambda index, state, key: drawing(index).step(problem, state, key)[0])
    first = jax.jit(drawing(jnp.array([0, 3])).start)(problem, x, y, jax.random.key(0), jnp.asarray(10))
    then = advance(jnp.array([0, 3]), first, jax.random.key(1))
    memory = then.memory.upper.value if name == "MRBO" else then.memory.value.upper
    old, new = (np.asarray(s.weights) @ directions(s) for s in (first, then))
    wanted = new + keep * (np.asarray(memory.direction) - old)
    assert np.max(np.abs(np.asarray(then.weights) - np.asarray(first.weights))) > 1e-3
    found = [advance(jnp.array(pair), then, jax.random.key(2)) for pair in itertools.combinations(range(5), 2)]
    np.testing.assert_allclose(np.mean([s.x for s in found], axis=0), then.x - 0.1 * wanted, rtol=1e-12)


def test_matrices_of_a_task_that_rested_are_a_running_mean():
    """And of one that was in the last step, where both points are known, the recursion; here A_i = exp(sum x)."""
    points = np.random.default_rng(0).normal(size=(4, 1, 2))
    upper = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=-1))  # noqa: E731
    lower = lambda x, y, batch: 0.5 * jnp.exp(jnp.sum(x)) * jnp.sum((y - x) ** 2) + 0 * jnp.sum(batch)  # noqa: E731
    problem = bl.Problem(upper, lower, bl.Task.stack(train=points, validation=points))
    y = PerTask((jnp.asarray(np.random.default_rng(1).normal(size=(4, 2))),))
    drawing = lambda *index: bl.STABLE(0.1, 0.3, sampling=These(2, jnp.array(index)), momentum=0.2).stepper()  # noqa: E731
    first = jax.jit(drawing(0, 1).start)(problem, jnp.array([0.3, -0.1]), y, jax.random.key(0), jnp.asarray(10))
    then = jax.jit(drawing(0, 1).step)(problem, first, jax.random.key(1))[0]
    last = jax.jit(drawing(1, 2).step)(problem, then, jax.random.key(2))[0]
    old, new = (np.exp(float(jnp.sum(state.x))) for state in (first, then))
    assert abs(new - old) > 0.01
    found = np.asarray(last.memory.second.groups[0].A)[:, 0, 0]
    np.testing.assert_allclose(found, [old, new, 0.2 * new + 0.8 * old, old], rtol=1e-12)


def test_weights_move_every_so_many_steps_by_what_was_seen():
    problem, x = quadratics(200)
    solver = bl.MORBiT(0.1, 0.3, weighting=bl.weightings.SimplexAscent(1e-3), sampling=bl.sampling.Mixture(8))
    assert solver.stepper().steps_between(problem) == 3
    state = jax.jit(solver.stepper().start)(
        problem, x, PerTask((jnp.zeros((200, 2)),)), jax.random.key(0), jnp.asarray(10)
    )
    weights = [state.weights]
    step = jax.jit(solver.stepper().step)
    for k in range(6):
        state, _ = step(problem, state, jax.random.fold_in(jax.random.key(1), k))
        weights.append(state.weights)
    moved = [bool(np.any(a != b)) for a, b in itertools.pairwise(weights)]
    assert moved == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", every(SOLVERS, quick=("MORBiT", "Tandem")))
def test_solvers_that_sample_conform(name):
    """Every exported one that draws tasks, with one sampling or the other."""
    kinds = bl.sampling.Mixture(3), bl.sampling.Uniform(3)
    check_solver(SOLVERS[name].replace(sampling=kinds[list(SOLVERS).index(name) % 2]))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [bl.sampling.Uniform(3), bl.sampling.Mixture(3)])
def test_stable_does_not_run_away_where_it_samples(sampling):
    """Where matrices start anew at every visit, 9 of these 40 runs end above 100 with tasks drawn uniformly."""
    solver, example, steps = bl.STABLE(**OPTIONS, sampling=sampling), make(Setting(), jnp.float64), 200

    def run(key):
        def one(state, k):
            state, info = solver.stepper().step(example.problem, state, jax.random.fold_in(key, k))
            return state, jnp.max(jnp.abs(info.losses))

        first = solver.stepper().start(*example, jax.random.key(0), jnp.asarray(steps))
        return jnp.max(jax.lax.scan(one, first, jnp.arange(steps))[1])

    losses = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 40)))
    assert np.mean(losses < 100) > 0.9


def test_tasks_taken_out_are_a_problem_of_their_own():
    problem = make(Setting(), jnp.float64).problem
    rows = Rows.of(problem, PerTask((jnp.array([2, 0]), jnp.array([1]))))
    few = rows.problem(problem)
    assert few.size == 3
    numbers = jnp.arange(5.0)
    np.testing.assert_array_equal(few.join(few.split(numbers[rows.numbers])), rows.numbers)
    taken = rows.take({"a": problem.split(numbers), "b": InOrder(numbers), "c": numbers})
    np.testing.assert_array_equal(few.join(taken["a"]), rows.numbers)
    np.testing.assert_array_equal(taken["b"].value, rows.numbers)
    np.testing.assert_array_equal(taken["c"], numbers)
    whole = {"a": problem.split(numbers), "b": InOrder(numbers), "c": numbers}
    new = {**taken, "b": InOrder(taken["b"].value + 10), "c": numbers + 1}
    put = rows.put(whole, taken, new)
    assert all(a is b for a, b in zip(put["a"], whole["a"], strict=True))  # left as it was: nothing is written
    expected = np.arange(5.0)
    expected[np.asarray(rows.numbers)] += 10
    np.testing.assert_array_equal(put["b"].value, expected)
    np.testing.assert_array_equal(put["c"], numbers + 1)


def test_a_chosen_rate_of_the_weights_is_the_smaller_the_fewer_tasks_a_step_sees():
    rows = jnp.ones((8, 4))
    ball = lambda x, y, batch: jnp.mean((y - batch) ** 2) + 0 * x  # noqa: E731
    problem = bl.Problem(
        ball, lambda x, y, batch: jnp.mean((y - x - batch) ** 2), bl.Task.stack(train=rows, validation=rows)
    )
    rates = []
    for sampling in (bl.sampling.All(), bl.sampling.Uniform(2)):
        solver = bl.MORBiT(0.1, 0.1, bl.hypergradients.Direct(), rates=bl.rates.Relative(), sampling=sampling)
        state = solver.init(problem, jnp.zeros(()), jnp.zeros(()), key=jax.random.key(0), steps=10)
        rates.append(jax.jit(solver.stepper().step)(problem, state, jax.random.key(1))[1].weights_rate)
    np.testing.assert_allclose(rates[1] / rates[0], (2 / 8) ** 1.5, rtol=1e-5)


@pytest.mark.slow
def test_weights_of_ten_thousand_tasks_do_not_run_after_noise():
    """With a rate of the weights that is m / n times that of all tasks the losses here end above 10^6."""
    ready = bl.problems.sinusoid_regression(bl.datasets.sinusoids(10_000, 3_333))
    solver = bl.Tandem(sampling=bl.sampling.Mixture(64))
    result = bl.solve(ready.problem, solver, ready.x, steps=2000, progress=False)
    losses = np.sort(np.asarray(result.average.test_losses))
    assert losses[-1000:].mean() < 5  # 13 at the start
