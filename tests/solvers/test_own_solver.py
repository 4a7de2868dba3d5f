"""A solver written against the public protocol alone does everywhere what ours do."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl


@bl.part
class Penalised(bl.Solver):
    """Descent on the mean over the tasks of f_i(x, y_i) + strength g_i(x, y_i), in x and in every y_i at once."""

    rate: float = bl.leaf(default=0.05)
    strength: float = bl.leaf(default=4.0)

    def start(self, problem, x, y, key, steps):
        weights = jnp.full(problem.size, 1 / problem.size, jax.tree.leaves(x)[0].dtype)
        return bl.State(jnp.zeros((), jnp.int32), x, y, weights)

    def step(self, problem, state, key):
        samples = problem.draw_upper(key)

        def total(x, y):
            def both(task, y, sample):
                f = task.upper(x, y, sample.upper)
                return f, f + self.strength * task.lower(x, y, sample.lower)

            losses, penalised = problem.join(problem.each(both, y, samples))
            return jnp.mean(penalised), losses

        slopes, losses = jax.grad(total, argnums=(0, 1), has_aux=True)(state.x, state.y)
        move = lambda a, s: a - (self.rate * s).astype(a.dtype)  # noqa: E731
        x, y = jax.tree.map(move, (state.x, state.y), slopes)
        return state._replace(step=state.step + 1, x=problem.constraint.project(x), y=y), bl.Info.of(losses)


SOLVER = Penalised()


@pytest.fixture(scope="module")
def slopes():
    return bl.problems.opposed_slopes()


@pytest.fixture(scope="module")
def result(slopes):
    return bl.solve(slopes.problem, SOLVER, slopes.x, steps=800, progress=False, fitted=False)  # y is its own


def test_it_is_short_and_knows_no_other_module():
    source = inspect.getsource(Penalised)
    assert len(source.splitlines()) <= 40
    assert "upper_lr" not in source
    assert not hasattr(SOLVER, "upper_lr")


def test_it_conforms():
    bl.testing.check_solver(SOLVER)


def test_it_reaches_the_minimum_of_what_it_descends_on(slopes, result):
    """g_i = a_i (y_i - s_i x)^2 / 2 and f_i = (y_i - t_i)^2 / 2: a linear system in (x, y_1, y_2)."""
    a, s, t, strength = np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, -1.0]), SOLVER.strength
    matrix = np.zeros((3, 3))
    matrix[0, 0], matrix[0, 1:], matrix[1:, 0] = np.sum(a * s**2), -a * s, -a * s
    matrix[1:, 1:] = np.diag(1 / strength + a)
    x, *y = np.linalg.solve(matrix, [0, *t / strength])
    assert result.status == "finished"
    np.testing.assert_allclose(result.x, x, atol=1e-6)
    np.testing.assert_allclose([result.y[name] for name in slopes.problem.names], y, atol=1e-6)


def test_it_runs_with_several_seeds(slopes):
    results = bl.solve(slopes.problem, SOLVER, slopes.x, steps=200, seeds=2, progress=False)
    assert [r.status for r in results] == ["finished"] * 2
    np.testing.assert_array_equal(results[0].x, results[1].x)  # all the data in every step


def test_it_is_counted(slopes):
    cost = bl.cost(slopes.problem, SOLVER, slopes.x, steps=3)
    assert (cost.upper_gradients, cost.lower_gradients, cost.total) == (1, 1, 2)


def test_it_is_compared(slopes):
    found = bl.compare(slopes.problem, slopes.x, solvers={"mine": SOLVER}, calls=40, seeds=1, progress=False)
    (candidate,) = found.candidates
    assert (candidate.name, candidate.rates, candidate.steps) == ("mine", "as given", 20)  # of two calls each
    (row,) = found.table()
    assert row["calls_per_step"] == 2
    assert "mine" in found.summary()


def test_it_is_kept(result, tmp_path):
    result.save(tmp_path / "kept")
    again = bl.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.x, result.x)
    np.testing.assert_array_equal(again.history["validation"], result.history["validation"])


def test_it_diverges_with_a_message(slopes):
    with pytest.warns(UserWarning, match=r"Penalised diverged: at step \d+ .*Try a smaller rate of x"):
        result = bl.solve(slopes.problem, SOLVER.replace(rate=1e3), slopes.x, steps=800, progress=False)
    assert result.status == "diverged"
    assert np.all(np.isfinite(result.x))
