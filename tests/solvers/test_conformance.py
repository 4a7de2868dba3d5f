"""What every exported solver must do. A solver joins by being exported, nothing else."""

import functools
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bilevel as bl
from bilevel.hypergradients import Neumann, RandomNeumann
from bilevel.problem.initial_point import lower_points

STEPS = 25
RATES = {"upper_lr": 0.05, "lower_lr": 0.2}
GAMMA = 0.05


def upper(x, y, batch):
    features, target = batch
    return jnp.mean((features @ (x["scale"] * y["w"]) + y["b"] - target) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jnp.sum(y["w"] ** 2) + 0.1 * y["b"] ** 2 + jnp.sum(x["shift"] * y["w"])


def absolute(x, y, batch):
    """Another loss, so that there are two groups."""
    features, target = batch
    return jnp.mean(jnp.sqrt((features @ (x["scale"] * y["w"]) + y["b"] - target) ** 2 + 0.1))


def make_tasks(dtype=jnp.float64, noise=1.0):
    """Ragged sizes inside a group; groups that interleave; one task of each kind. Without noise all rows are alike."""
    generator = np.random.default_rng(0)

    def rows(count, slope):
        features = (generator.normal(size=3) + noise * generator.normal(size=(count, 3))) / 2
        return jnp.asarray(features, dtype), jnp.asarray(features @ slope, dtype)

    def task(i, count, f):
        slope = generator.normal(size=3)
        return bl.Task(rows(count, slope), rows(10, slope), name=f"t{i}", upper=f)

    kinds = [(20, None), (30, absolute), (25, None), (30, absolute), (20, None)]
    return [task(i, count, f) for i, (count, f) in enumerate(kinds)]


def make_problem(tasks):
    box = bl.constraints.Product({"scale": bl.constraints.Box(0.98, 1.02), "shift": bl.constraints.Unconstrained()})
    return bl.Problem(upper, lower, tasks, constraint=box, lower_batch=4, upper_batch=4)


def start(dtype=jnp.float64):
    x = {"scale": jnp.ones(3, dtype), "shift": jnp.zeros(3, dtype)}
    return x, {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}


# Unoptimised: these runs are short, and compiling them is what takes time.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def run(solver, problem, x, y, key):
    """The last state, and x, the weights and what each step saw along the way."""

    def one(state, k):
        state, info = solver.step(problem, state, jax.random.fold_in(key, k))
        return state, (state.x, state.weights, info)

    return jax.lax.scan(one, solver.start(problem, x, y, jax.random.key(0), STEPS), jnp.arange(STEPS))


def go(solver, problem, key=1, dtype=jnp.float64):
    x, y = start(dtype)
    return run(solver, problem, x, lower_points(problem, y, None), jax.random.key(key))


BILEVEL = [name for name in bl.solvers.__all__ if getattr(bl, name).card.problem == "bilevel"]


@pytest.fixture(scope="module", params=BILEVEL)
def solver(request):
    """With rates, and without the random series: it draws by a task's place, so permuting tasks would change it."""
    solver = getattr(bl, request.param)(**RATES, weighting=bl.weightings.SimplexAscent(lr=GAMMA))
    random = isinstance(solver.hypergradient, RandomNeumann)
    return solver.replace(hypergradient=Neumann(3)) if random else solver


@pytest.fixture(scope="module")
def noisy(solver):
    """One run with batches, which several checks look at."""
    problem = make_problem(make_tasks())
    solver.check(problem)
    return problem, go(solver, problem)


@pytest.fixture(scope="module")
def quiet(solver):
    """The same shapes, so that nothing is compiled again, but rows that are alike: no batch differs from another."""
    return go(solver, make_problem(make_tasks(noise=0.0)))[0]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_steps_are_finite_and_move_everything(noisy):
    problem, (last, _) = noisy
    x, y = start()
    first = x, lower_points(problem, y, None)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves((last.x, last.y)), strict=True):
        assert np.all(np.isfinite(b))
        assert np.any(np.asarray(a) != np.asarray(b))
    assert np.ptp(last.weights) > 0
    assert int(last.step) == STEPS


def test_weights_stay_on_the_simplex(noisy):
    _, (_, (_, weights, _)) = noisy
    assert np.all(np.asarray(weights) >= 0)
    np.testing.assert_allclose(np.sum(weights, axis=1), 1, atol=1e-12)


def test_x_stays_in_its_constraint(noisy):
    _, (_, (x, _, _)) = noisy
    scale = np.asarray(x["scale"])
    assert np.all((scale >= 0.98) & (scale <= 1.02))
    assert np.any((scale > 1.019) | (scale < 0.981)), "the constraint is not felt, so that this says nothing"


def test_info_speaks_of_every_task(noisy):
    problem, (_, (_, _, info)) = noisy
    assert info.losses.shape == (STEPS, problem.size)
    assert info.lower_rate.shape == (STEPS, problem.size)
    assert np.all(np.asarray(info.direction_norm)[2:] > 0)  # at first v = 0, and x may not enter f
    np.testing.assert_allclose(info.upper_rate, RATES["upper_lr"])


def test_same_key_same_run_other_key_other_run(solver, noisy):
    problem, (last, _) = noisy
    assert same(last, go(solver, problem)[0])
    assert not same(last.x, go(solver, problem, key=2)[0].x)


def test_other_rates_do_not_retrace(solver, noisy):
    problem, _ = noisy
    before = run._cache_size()
    go(solver.replace(upper_lr=0.01, lower_lr=0.1, weighting=bl.weightings.SimplexAscent(lr=0.01)), problem)
    assert run._cache_size() == before


def test_a_state_is_arrays_that_come_back_from_a_file(noisy, tmp_path):
    _, (last, _) = noisy
    leaves, structure = jax.tree.flatten(last)
    save_file({str(i): np.array(leaf) for i, leaf in enumerate(leaves)}, tmp_path / "state")
    kept = load_file(tmp_path / "state")
    again = jax.tree.unflatten(structure, [jnp.asarray(kept[str(i)]) for i in range(len(leaves))])
    assert same(last, again)
    for a, b in zip(leaves, jax.tree.leaves(again), strict=True):  # another type would compile, and step, otherwise
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


def test_permuting_tasks_permutes_weights(solver, quiet):
    tasks, order = make_tasks(noise=0.0), [2, 3, 0, 1, 4]
    problem = make_problem([tasks[i] for i in order])
    if isinstance(solver, bl.SABA):  # it remembers which block was drawn when, so that all the data must be one
        quiet, _ = go(solver, make_problem(tasks).rebatched(lambda _: None))
        problem = problem.rebatched(lambda _: None)
    other, _ = go(solver, problem)
    np.testing.assert_allclose(np.asarray(quiet.weights)[order], other.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(quiet.x["shift"], other.x["shift"], rtol=1e-9, atol=1e-12)
    assert np.ptp(quiet.weights) > 0.01


def test_seeds_in_float32_under_vmap_are_close_to_single_runs_in_float64(solver, noisy):
    _, (last, _) = noisy
    problem, (x, y) = make_problem(make_tasks(jnp.float32)), start(jnp.float32)
    y = lower_points(problem, y, None)
    many, _ = jax.vmap(lambda key: run(solver, problem, x, y, key))(jax.vmap(jax.random.key)(jnp.array([1, 2])))
    assert {leaf.dtype for leaf in jax.tree.leaves((many.x, many.y, many.weights))} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(last.weights, many.weights[0], atol=1e-3)
    np.testing.assert_allclose(last.x["shift"], many.x["shift"][0], atol=1e-3)
    assert np.max(np.abs(many.x["shift"][0] - many.x["shift"][1])) > 1e-3


def test_one_task_alone_without_rates(solver):
    own = solver.replace(upper_lr=None, lower_lr=None, weighting=bl.weightings.SimplexAscent())
    last, (_, _, info) = go(own, make_problem(make_tasks()[:1]))
    assert np.array_equal(last.weights, [1.0])
    assert np.all(np.isfinite(last.x["scale"]))
    for rate in (info.upper_rate, info.lower_rate, info.weights_rate):
        assert np.all(np.isfinite(rate))
        assert np.all(np.asarray(rate) > 0)


@pytest.mark.parametrize("name", bl.solvers.__all__)
def test_a_solver_is_one_short_file_that_says_what_it_does(name):
    kind = getattr(bl, name)
    module = inspect.getmodule(kind)
    assert len(Path(module.__file__).read_text().splitlines()) <= 150
    assert "Reference:" in module.__doc__
    assert all(kind.card)
    assert kind.__doc__.strip()
