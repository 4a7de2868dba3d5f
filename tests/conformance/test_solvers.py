"""What every exported solver must do. A solver joins by being exported, nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

STEPS = 25
RATES = {"upper_lr": 0.05, "lower_lr": 0.2}
GAMMA = 0.05
BILEVEL = [name for name in bl.solvers.__all__ if getattr(bl, name).card.problem == "bilevel"]


def upper(x, y, batch):
    features, target = batch
    return jnp.mean((features @ (x["scale"] * y["w"]) + y["b"] - target) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jnp.sum(y["w"] ** 2) + 0.1 * y["b"] ** 2 + jnp.sum(x["shift"] * y["w"])


def absolute(x, y, batch):
    """Another loss, so that there are two groups."""
    features, target = batch
    return jnp.mean(jnp.sqrt((features @ (x["scale"] * y["w"]) + y["b"] - target) ** 2 + 0.1))


def make_tasks(dtype=jnp.float64):
    generator = np.random.default_rng(0)

    def rows(count):
        features = generator.normal(size=(count, 3))
        return jnp.asarray(features, dtype), jnp.asarray(features @ generator.normal(size=3), dtype)

    # Ragged sizes inside a group; groups that interleave; one task of each kind.
    kinds = [(20, None), (30, absolute), (25, None), (30, absolute), (20, None)]
    return [bl.Task(rows(m), rows(10), name=f"t{i}", upper=f) for i, (m, f) in enumerate(kinds)]


def make_problem(tasks, batch=4):
    box = bl.constraints.Product({"scale": bl.constraints.Box(0.5, 1.2), "shift": bl.constraints.Unconstrained()})
    return bl.Problem(upper, lower, tasks, constraint=box, lower_batch=batch, upper_batch=batch)


def start(dtype=jnp.float64):
    x = {"scale": jnp.ones(3, dtype), "shift": jnp.zeros(3, dtype)}
    return x, {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}


@jax.jit
def run(solver, problem, state, key):
    """All steps; the states along the way."""

    def one(state, k):
        state, info = solver.step(problem, state, jax.random.fold_in(key, k))
        return state, (state.x, state.weights, info)

    return jax.lax.scan(one, state, jnp.arange(STEPS))


@pytest.fixture(scope="module", params=BILEVEL)
def solver(request):
    weighting = bl.weightings.SimplexAscent(lr=GAMMA)
    return getattr(bl, request.param)(**RATES, weighting=weighting)


@pytest.fixture(scope="module")
def noisy(solver):
    """One run with batches, which several checks look at."""
    problem, (x, y) = make_problem(make_tasks()), start()
    state = solver.init(problem, x, y, key=jax.random.key(0), steps=STEPS)
    return problem, state, run(solver, problem, state, jax.random.key(1))


def test_steps_are_finite_and_move_everything(noisy):
    _, first, (last, _) = noisy
    for a, b in zip(jax.tree.leaves((first.x, first.y)), jax.tree.leaves((last.x, last.y)), strict=True):
        assert np.all(np.isfinite(b))
        assert np.any(np.asarray(a) != np.asarray(b))
    assert np.any(np.asarray(first.weights) != np.asarray(last.weights))
    assert int(last.step) == STEPS


def test_weights_stay_on_the_simplex(noisy):
    _, _, (_, (_, weights, _)) = noisy
    assert np.all(np.asarray(weights) >= 0)
    np.testing.assert_allclose(np.sum(weights, axis=1), 1, atol=1e-12)


def test_x_stays_in_its_constraint(noisy):
    _, _, (_, (x, _, _)) = noisy
    scale = np.asarray(x["scale"])
    assert np.all((scale >= 0.5) & (scale <= 1.2))
    assert jax.tree.structure(tree_of(x)) == jax.tree.structure(tree_of(start()[0]))


def tree_of(x):
    return jax.tree.map(lambda _: 0, x)


def test_info_speaks_of_every_task(noisy):
    problem, _, (_, (_, _, info)) = noisy
    assert info.losses.shape == (STEPS, problem.size)
    assert info.lower_rate.shape == (STEPS, problem.size)
    assert np.all(np.asarray(info.direction_norm) > 0)
    np.testing.assert_allclose(info.upper_rate, RATES["upper_lr"])


def test_same_key_same_run_other_key_other_run(solver, noisy):
    problem, state, (last, _) = noisy
    again, _ = run(solver, problem, state, jax.random.key(1))
    other, _ = run(solver, problem, state, jax.random.key(2))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(last.x), jax.tree.leaves(again.x), strict=True))
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(last.x), jax.tree.leaves(other.x), strict=True))


def test_other_rates_do_not_retrace(solver, noisy):
    problem, state, _ = noisy
    before = run._cache_size()
    other = solver.replace(upper_lr=0.01, lower_lr=0.1, weighting=bl.weightings.SimplexAscent(lr=0.01))
    run(other, problem, state, jax.random.key(1))
    assert run._cache_size() == before


def test_seeds_under_vmap_equal_single_runs(solver, noisy):
    problem, state, (last, _) = noisy
    keys = jax.vmap(jax.random.key)(jnp.arange(1, 3))
    many, _ = jax.vmap(lambda key: run(solver, problem, state, key))(keys)
    for a, b in zip(jax.tree.leaves((last.x, last.weights)), jax.tree.leaves((many.x, many.weights)), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def plain(solver):
    """Without the random start from which the tracked estimator measures curvature."""
    return solver.replace(hypergradient=bl.hypergradients.ConjugateGradient())


def test_permuting_tasks_permutes_weights(plain):
    """With all the data in every step, nothing but the order of the tasks can differ."""
    solver, tasks, (x, y) = plain, make_tasks(), start()
    order = [2, 3, 0, 1, 4]
    ends = []
    for chosen in (tasks, [tasks[i] for i in order]):
        problem = make_problem(chosen, batch=None)
        state = solver.init(problem, x, y, key=jax.random.key(0), steps=STEPS)
        ends.append(run(solver, problem, state, jax.random.key(1))[0])
    np.testing.assert_allclose(np.asarray(ends[0].weights)[order], ends[1].weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ends[0].x["scale"], ends[1].x["scale"], rtol=1e-9)


def test_float32_stays_float32_and_close_to_float64(plain):
    solver, ends = plain, []
    for dtype in (jnp.float64, jnp.float32):
        problem, (x, y) = make_problem(make_tasks(dtype), batch=None), start(dtype)
        state = solver.init(problem, x, y, key=jax.random.key(0), steps=STEPS)
        last, _ = run(solver, problem, state, jax.random.key(1))
        assert {leaf.dtype for leaf in jax.tree.leaves((last.x, last.y, last.weights))} == {jnp.dtype(dtype)}
        ends.append(last)
    np.testing.assert_allclose(ends[0].weights, ends[1].weights, atol=1e-4)
    np.testing.assert_allclose(ends[0].x["scale"], ends[1].x["scale"], atol=1e-4)


def test_one_task_alone(solver):
    problem, (x, y) = make_problem(make_tasks()[:1]), start()
    state = solver.init(problem, x, y, key=jax.random.key(0), steps=STEPS)
    last, _ = run(solver, problem, state, jax.random.key(1))
    assert np.array_equal(last.weights, [1.0])
    assert np.all(np.isfinite(last.x["scale"]))


def test_refresh_and_automatic_rates(solver):
    """Without rates: measured ones, that stay positive and finite when measured again."""
    problem, (x, y) = make_problem(make_tasks()), start()
    own = solver.replace(upper_lr=None, lower_lr=None, weighting=bl.weightings.SimplexAscent())
    state = own.init(problem, x, y, key=jax.random.key(0), steps=STEPS)
    state = jax.jit(own.refresh)(problem, state, jax.random.key(3))
    last, (_, _, info) = run(own, problem, state, jax.random.key(1))
    for rate in (info.upper_rate, info.lower_rate, info.weights_rate):
        assert np.all(np.isfinite(rate))
        assert np.all(np.asarray(rate) > 0)
    assert np.all(np.isfinite(last.x["scale"]))
