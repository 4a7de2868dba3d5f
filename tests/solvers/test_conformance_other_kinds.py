"""What every exported solver of the other kinds of problem must do. A solver joins by being exported, nothing else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bilevel as bl
from bilevel.problem.initial_point import lower_points

STEPS = 25
OTHERS = [name for name in bl.solvers.__all__ if getattr(bl, name).card.problem != "bilevel"]


def loss(x, batch):
    features, target = batch
    return jnp.mean((features @ x["w"] + x["b"] - target) ** 2)


def absolute(x, batch):
    features, target = batch
    return jnp.mean(jnp.sqrt((features @ x["w"] + x["b"] - target) ** 2 + 0.1))


def upper(x, dual, y, batch):
    features, target = batch
    return dual * jnp.mean(features @ (x["w"] + y) - target) - dual**2 + jnp.mean((features @ y) ** 2)


def lower(x, y, batch):
    features, target = batch
    return jnp.mean((features @ y - x["b"] - target) ** 2) + jnp.sum((y - x["w"]) ** 2)


def other_upper(x, dual, y, batch):
    return upper(x, dual, y, batch) + jnp.mean(dual * 0.1)


def make(kind, dtype=jnp.float64, noise=1.0, order=(0, 1, 2, 3, 4)):
    """Ragged sizes inside a group, groups that interleave; without noise all rows are alike."""
    generator = np.random.default_rng(0)

    def rows(count, slope):
        features = (generator.normal(size=3) + noise * generator.normal(size=(count, 3))) / 2
        return jnp.asarray(features, dtype), jnp.asarray(features @ slope, dtype)

    single = kind.problem_type is bl.MinMaxProblem
    own = absolute if single else other_upper
    tasks = []
    for i, count in enumerate((20, 30, 25, 30, 20)):
        slope = generator.normal(size=3)
        y = None if single else jnp.zeros(3, dtype)
        tasks.append(bl.Task(rows(count, slope), rows(10, slope), name=f"t{i}", upper=own if i % 2 else None, y=y))
    tasks = [tasks[i] for i in order]
    box = bl.constraints.Product({"w": bl.constraints.Box(-0.05, 0.05), "b": bl.constraints.Unconstrained()})
    if single:
        return bl.MinMaxProblem(loss, tasks, constraint=box, batch=4)
    dual = jnp.zeros((), dtype)
    return bl.MultiBlockProblem(upper, lower, tasks, dual, constraint=box, lower_batch=4, upper_batch=4)


@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def run(solver, problem, x, y, key):
    def one(state, k):
        state, info = solver.step(problem, state, jax.random.fold_in(key, k))
        return state, (state.x, state.weights, info)

    return jax.lax.scan(one, solver.start(problem, x, y, jax.random.key(0), STEPS), jnp.arange(STEPS))


def arguments(problem, dtype=jnp.float64):
    x = {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}
    if isinstance(problem, bl.MinMaxProblem):
        return x, ((),) * len(problem.groups)
    return x, problem.points(lower_points(problem, None, None))


def go(solver, problem, key=1):
    return run(solver, problem, *arguments(problem), jax.random.key(key))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture(scope="module", params=OTHERS)
def solver(request):
    kind = getattr(bl, request.param)
    if kind.problem_type is bl.MinMaxProblem:
        return kind(0.05, bl.weightings.SimplexAscent(0.05))
    return kind(0.05, 0.2, 0.1)


@pytest.fixture(scope="module")
def noisy(solver):
    problem = make(type(solver))
    solver.check(problem)
    return problem, go(solver, problem)


def test_steps_are_finite_move_x_and_stay_in_the_sets(solver, noisy):
    problem, (last, (x, weights, info)) = noisy
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((last.x, last.y, last.weights)))
    assert int(last.step) == STEPS
    assert np.all(np.abs(x["w"]) <= 0.05)
    assert np.any(np.abs(x["w"]) > 0.049), "the constraint is not felt, so that this says nothing"
    assert np.all(np.asarray(weights) >= 0)
    np.testing.assert_allclose(np.sum(weights, axis=1), 1, atol=1e-12)
    assert info.losses.shape == info.lower_rate.shape == (STEPS, problem.size)


def test_same_key_same_run_other_key_other_run(solver, noisy):
    problem, (last, _) = noisy
    assert same(last, go(solver, problem)[0])
    assert not same(last.x, go(solver, problem, key=2)[0].x)


def test_other_rates_do_not_retrace(solver, noisy):
    before = run._cache_size()
    go(solver.replace(upper_lr=0.01), noisy[0])
    assert run._cache_size() == before


def test_a_state_is_arrays_that_come_back_from_a_file(noisy, tmp_path):
    _, (last, _) = noisy
    leaves, structure = jax.tree.flatten(last)
    save_file({str(i): np.array(leaf) for i, leaf in enumerate(leaves)}, tmp_path / "state")
    kept = load_file(tmp_path / "state")
    again = jax.tree.unflatten(structure, [jnp.asarray(kept[str(i)]) for i in range(len(leaves))])
    assert same(last, again)


def test_permuting_tasks_permutes_weights(solver):
    order = [2, 3, 0, 1, 4]
    ends = [go(solver, make(type(solver), noise=0.0, order=o))[0] for o in (range(5), order)]
    np.testing.assert_allclose(np.asarray(ends[0].weights)[order], ends[1].weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ends[0].x["b"], ends[1].x["b"], rtol=1e-9)


def test_seeds_in_float32_under_vmap_are_close_to_single_runs_in_float64(solver, noisy):
    _, (last, _) = noisy
    problem = make(type(solver), jnp.float32)
    x, y = arguments(problem, jnp.float32)
    many, _ = jax.vmap(lambda key: run(solver, problem, x, y, key))(jax.vmap(jax.random.key)(jnp.array([1, 2])))
    assert {leaf.dtype for leaf in jax.tree.leaves((many.x, many.y, many.weights))} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(last.weights, many.weights[0], atol=1e-3)
    np.testing.assert_allclose(last.x["b"], many.x["b"][0], atol=1e-3)
    assert abs(many.x["b"][0] - many.x["b"][1]) > 1e-4
