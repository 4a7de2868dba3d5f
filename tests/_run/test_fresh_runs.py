"""Whole runs on tasks from a distribution."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
import kept_runs
from bilevel.results.history import tail_mean


def draw(key):
    return jax.random.exponential(key)


def rows(p, key, size):
    return p + 0.1 * jax.random.normal(key, (size,))


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean((y - x + 0.1 * batch) ** 2)


TASKS = bl.TaskDistribution(draw, rows, rows, test=rows, evaluation=6, rows=4)
PROBLEM = bl.Problem(upper, lower, TASKS, lower_batch=2, upper_batch=2)
SOLVER = bl.Tandem(sampling=bl.sampling.Fresh(5, catch_up=2), weighting=bl.weightings.CVaR(0.4))


def solve(steps=60, **options):
    given = {"x": jnp.array(3.0), "y": jnp.array(0.0), "every": 20, "progress": False} | options
    return bl.solve(PROBLEM, SOLVER, steps=steps, **given)


@pytest.fixture(scope="module")
def result():
    return solve()


def test_how_often_one_looks_does_not_change_the_run(result):
    often = solve(every=7)
    np.testing.assert_array_equal(often.x, result.x)
    np.testing.assert_array_equal(often.average.x, result.average.x)
    np.testing.assert_array_equal(often.losses, result.losses)


def test_an_interrupted_run_goes_on_bit_for_bit(result, tmp_path):
    def ctrl_c(row):
        if row["step"] == 40:
            os.kill(os.getpid(), signal.SIGINT)

    cut = solve(checkpoint=tmp_path, callback=ctrl_c)
    assert (cut.status, cut.steps) == ("interrupted", 40)
    assert kept_runs.same(solve(checkpoint=tmp_path, resume=True), result)


def test_a_result_is_about_tasks_that_no_step_saw(result, tmp_path):
    assert len(result.y) == len(result.losses) == PROBLEM.size
    assert result.history.validation.shape == (4, 6)
    assert result.tail == pytest.approx(tail_mean(result.losses, 0.4))
    objectives = [tail_mean(row, 0.4) for row in result.history.validation]
    assert result.best.tail(0.4) == pytest.approx(min(objectives))
    text = result.summary()
    assert "mean of the worst 40 % of validation losses" in text
    assert "tasks that x never saw" in text
    assert "largest weights" not in text
    result.save(tmp_path / "result.safetensors")
    loaded = bl.load(tmp_path / "result.safetensors")
    assert loaded.tail == result.tail
    assert loaded.summary() == text
    result.plot(tmp_path / "figure.png")
    assert len(result.to_dataframe()) == 4 * 6


def test_callbacks_and_results_have_y_that_was_fitted(result):
    """The losses that are told are those of the y that is told."""
    seen = []
    solve(callback=seen.append)
    row = seen[-1]
    y = PROBLEM.starting_y(jnp.array(0.0), None)
    stacked = type(y)((jnp.stack([row["y"][name] for name in PROBLEM.names]),))
    np.testing.assert_allclose(PROBLEM.validation_losses(row["x"], stacked), row["validation"], rtol=1e-12)
    own = type(y)(result.y.stacked)
    np.testing.assert_allclose(PROBLEM.validation_losses(result.x, own), result.losses, rtol=1e-12)


def test_seeds_see_other_tasks_and_are_evaluated_on_the_same():
    both = solve(seeds=2, steps=20)
    assert float(both[0].x) != float(both[1].x)
    np.testing.assert_array_equal(both[0].history.validation[0], both[1].history.validation[0])


def test_new_tasks_are_adapted(result):
    found = bl.adapt(PROBLEM, result.x, TASKS.sample(9, seed=4), y=jnp.array(0.0), steps=20)
    assert found.losses.shape == found.test_losses.shape == (9,)
    assert np.all(np.isfinite(found.losses))


def test_what_is_recommended_sees_new_tasks():
    own = bl.recommended(PROBLEM)
    assert own.sampling == bl.sampling.Fresh(64)
    assert own.weighting == bl.weightings.CVaR(0.1)
    run = bl.solve(PROBLEM, x=jnp.array(3.0), y=jnp.array(0.0), steps=3, progress=False)
    assert run.status == "finished"


def test_cost_counts_calls_of_a_list_of_tasks():
    with pytest.raises(ValueError, match=r"tasks\.sample"):
        bl.cost(PROBLEM, SOLVER, x=jnp.array(3.0), y=jnp.array(0.0))


def test_a_run_that_diverges_says_so():
    wild = SOLVER.replace(upper_lr=1e200)
    with pytest.warns(UserWarning, match="Tandem diverged"):
        run = bl.solve(PROBLEM, wild, x=jnp.array(3.0), y=jnp.array(0.0), steps=20, progress=False)
    assert run.status == "diverged"
