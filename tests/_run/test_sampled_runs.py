"""Runs whose steps see some of the tasks: their loop, their average, their evaluation, their files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import final_refit, state_files
from bilevel._run.evaluation import FIXED, HEAVY, EvaluatedTasks
from bilevel._run.loop import add, rested
from bilevel._run.run import Run
from bilevel.problem import sources

STEPS = 40


def problem_of(n):
    points = np.random.default_rng(0).normal(size=(n, 2, 2))
    upper = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=-1))  # noqa: E731
    lower = lambda x, y, batch: 0.5 * jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)  # noqa: E731
    stacked = bl.Task.stack(train=points, validation=points, test=points + 1, y=np.zeros((n, 2)))
    return bl.Problem(upper, lower, stacked, lower_batch=1, upper_batch=1)


def solver_of(tasks):
    ascent = bl.weightings.SimplexAscent(1e-3)
    return bl.MORBiT(0.05, 0.3, weighting=ascent, sampling=bl.sampling.Mixture(tasks))


X = jnp.array([2.0, -1.0])


@pytest.mark.parametrize("tasks", [4, 20, 200])  # the weights move every 6 steps, or every step; all tasks
def test_the_loop_and_the_average_are_those_of_steps_one_by_one(tasks):
    """The driver's loop takes steps in parts and averages the weights when they move; here, whole steps.

    And at the end every task is visited at the last x, or the average one, unless every step has visited all.
    """
    problem, solver = problem_of(200), solver_of(tasks)
    result = bl.solve(problem, solver, X, steps=STEPS, seed=3, every=15, progress=False, fitted=False)
    run = Run(problem, solver, X, None, 3, STEPS)

    @jax.jit
    def whole(state):
        def one(carry, k):
            state, average = carry
            state, _ = solver.stepper().step(problem, state, jax.random.fold_in(run.key, k))
            point = (state.x, state.y, state.weights)
            return (state, add(average, point, state.step, jnp.float64)), None

        first = (state, (state.x, state.y, state.weights))
        return jax.lax.scan(one, first, jnp.arange(STEPS))[0]

    state, (x, y, weights) = whole(run.start())
    steps = jnp.full(2, final_refit.STEPS if tasks < 200 else 0)
    last_y, y = (own.y.groups[0] for own in final_refit.visited(problem, [(state.x, state.y), (x, y)], steps))
    np.testing.assert_allclose(result.x, state.x, rtol=1e-10)
    np.testing.assert_allclose(result.weights, state.weights, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(result.y.stacked[0], last_y, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(result.average.x, x, rtol=1e-10)
    np.testing.assert_allclose(result.average.y.stacked[0], y, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(result.average.weights, weights, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("since", "until"), [(0, 0), (0, 5), (3, 3), (3, 4), (2, 50)])
def test_the_average_of_what_rests_is_that_of_its_steps(since, until):
    average, point = jnp.array([1.0, 2.0]), jnp.array([5.0, -3.0])
    wanted = average
    for k in range(since + 1, until + 1):
        wanted = add(wanted, point, jnp.asarray(k), jnp.float64)
    found = rested(average, point, jnp.asarray(since), jnp.asarray(until), jnp.float64)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_of_many_tasks_a_part_is_evaluated_and_the_result_has_all():
    n = 1200
    problem, solver = problem_of(n), solver_of(40)
    seen = []
    result = bl.solve(problem, solver, X, steps=STEPS, every=20, progress=False, callback=seen.append, fitted=False)
    history, last = result.history, seen[-1]["y"].stacked[0]  # before every task is visited once more
    losses, test = (problem.losses(result.x, bl.PerTask((last,)), role) for role in ("validation", "test"))
    columns = history.tasks[0]
    assert history.validation.shape == (3, FIXED) == history.weights.shape == history.test.shape
    assert all(np.array_equal(row, columns) for row in history.tasks)
    assert result.losses.shape == result.average.losses.shape == (n,)
    np.testing.assert_allclose(history.validation[-1], losses[columns], rtol=1e-12)
    np.testing.assert_allclose(history.test[-1], test[columns], rtol=1e-12)
    np.testing.assert_allclose(history.weights[-1], result.weights[columns], rtol=1e-12)
    left = np.setdiff1d(np.arange(n), columns)
    heavy = left[np.argsort(-result.weights[left], kind="stable")[:HEAVY]]
    heavy = heavy[result.weights[heavy] > 1 / n]
    assert history.largest[-1] >= losses[np.concatenate([columns, heavy])].max()
    np.testing.assert_allclose(history.largest[-1], losses[history.largest_task[-1]], rtol=1e-12)
    assert len(result.to_dataframe()) == 3 * FIXED


def test_a_summary_is_of_all_tasks_where_the_history_is_of_some():
    solver = solver_of(40).replace(weighting=bl.weightings.SimplexAscent(1e-9))
    result = bl.solve(problem_of(1200), solver, X, steps=STEPS, every=1, progress=False)
    (found,) = [finding for finding in result.findings if finding.kind == "weights do not move"]
    worst = int(result.losses.argmax())
    assert worst not in result.history.tasks[0]
    assert found.numbers["task"] == f"task {worst}"
    assert found.numbers["gap"] == pytest.approx(result.losses[worst] - result.weights @ result.losses)
    assert "each of some of the tasks" in result.summary()


@pytest.mark.parametrize("n", [50, 1200])  # in one go, and in blocks
def test_at_the_end_every_y_fits_the_x_that_is_returned(n):
    """g_i is quadratic in 2 numbers, y_i* = x; the random iterate is left as it was. Losses are of what is returned."""
    problem, distance = problem_of(n), lambda x, y, batch: jnp.mean(jnp.abs(y[None] - batch))
    options = {"steps": STEPS, "every": 20, "progress": False, "metrics": {"distance": distance}}
    result = bl.solve(problem, solver_of(4), X, **options)
    for iterate in (result.last, result.best, result.average):
        np.testing.assert_allclose(iterate.y.stacked[0], np.tile(iterate.x, (n, 1)), rtol=0, atol=1e-12)
    for iterate in (result.last, result.best, result.average, result.random):
        at = iterate.x, bl.PerTask(tuple(iterate.y.stacked))
        np.testing.assert_allclose(iterate.losses, problem.losses(*at, "validation"), rtol=1e-12)
        np.testing.assert_allclose(iterate.test_losses, problem.losses(*at, "test"), rtol=1e-12)
        assert list(iterate.metrics) == ["validation distance", "test distance"]
        np.testing.assert_allclose(iterate.metrics["test distance"], problem.losses(*at, "test", distance), rtol=1e-12)
        assert iterate.selection_losses is None
    assert np.abs(np.asarray(result.random.y.stacked[0]) - np.asarray(result.random.x)).max() > 0.1


def test_threads_share_the_last_visit_and_change_nothing(monkeypatch):
    """Groups of 23 and 5 tasks, blocks of 2: neither comes out even."""
    draws = np.random.default_rng(0)
    loss = lambda x, y, batch: jnp.mean((batch @ y - x[0]) ** 2) + 0.1 * jnp.sum((y - x[1]) ** 2)  # noqa: E731
    stacks = [bl.Task.stack(train=draws.normal(size=(n, 4, d)), validation=draws.normal(size=(n, 3, d))) for n, d in
              ((23, 3), (5, 2))]  # fmt: skip
    problem = bl.Problem(loss, loss, stacks)
    y = bl.PerTask(tuple(jnp.asarray(draws.normal(size=(n, d))) for n, d in ((23, 3), (5, 2))))
    points, steps = [(jnp.array([1.0, 2.0]), y), (jnp.array([-1.0, 0.5]), y)], jnp.array([3, 0])
    wanted, calls, of_group = final_refit.visited(problem, points, steps), [], final_refit._of_group
    monkeypatch.setattr(sources, "AT_ONCE", 2)
    monkeypatch.setattr(sources, "SMALLEST", 2)
    monkeypatch.setattr(sources, "LARGEST", 2)
    monkeypatch.setattr(final_refit, "_of_group", lambda *args, **named: calls.append(args) or of_group(*args, **named))
    found = final_refit.visited(problem, points, steps)
    assert len(calls) == 12 + 3
    for own, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12)
    np.testing.assert_array_equal(found[1].y.groups[0], y.groups[0])


def test_a_run_whose_steps_see_all_tasks_ends_where_its_last_step_left_it():
    problem = problem_of(20)
    for sampling in (bl.sampling.All(), bl.sampling.Mixture(20)):
        assert not final_refit.is_needed(solver_of(4).replace(sampling=sampling).stepper(), problem)
    assert not final_refit.is_needed(bl.GDA(), problem)
    assert final_refit.is_needed(solver_of(19).stepper(), problem)


def test_a_part_is_for_steps_that_see_a_few_of_very_many():
    assert EvaluatedTasks.of(bl.MORBiT(), problem_of(1200)) is None
    assert EvaluatedTasks.of(solver_of(4).stepper(), problem_of(200)) is None
    part = EvaluatedTasks.of(solver_of(4).stepper(), problem_of(1200))
    weights = np.zeros(1200)
    weights[[7, 1100]] = 0.5
    places = part.places(weights)[0]
    assert len(set(places.tolist())) == FIXED + HEAVY
    assert {7, 1100} <= set(places.tolist())


def test_a_sampled_run_is_kept_and_comes_back(tmp_path):
    problem, solver = problem_of(1200), solver_of(40)
    args = {"steps": STEPS, "every": 20, "progress": False, "checkpoint": tmp_path}
    result = bl.solve(problem, solver, X, **args)
    run = Run(problem, solver, X, None, 0, STEPS, 20)
    [path] = tmp_path.glob("state-*")
    reached = state_files.restore(state_files.read(path), state_files.outline(run))
    assert reached.step == STEPS
    np.testing.assert_array_equal(reached.carry.state.x, result.x)
    np.testing.assert_array_equal(reached.rows[-1].tasks, result.history.tasks[-1])
    again = bl.solve(problem, solver, X, resume=True, **args)
    np.testing.assert_array_equal(again.history.largest, result.history.largest)
    loaded = bl.load(tmp_path / "result.safetensors")
    np.testing.assert_array_equal(loaded.history.tasks, result.history.tasks)
    np.testing.assert_array_equal(loaded.history.validation, result.history.validation)
