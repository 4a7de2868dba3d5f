"""Without a learning rate: good runs whatever the scale and the condition of the problem."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import bilevel as bl
from bilevel.diagnostics.points import solve_lower
from bilevel.lower.steps import lower_gradients
from bilevel.problem.initial_point import lower_points
from bilevel.problem.per_task import PerTask
from bilevel.rates import curvature, measured
from bilevel.rates.curvature import UpperCurvature
from every_solver import every

CONDITIONS = list(itertools.product((1.0, 10.0, 100.0), repeat=2))
STEPS = 5000


def solve(known_or_problem, x, seed=0):
    problem = getattr(known_or_problem, "problem", known_or_problem)
    result = bl.solve(problem, bl.MORBiT(), x, steps=STEPS, seed=seed, progress=False)
    assert result.status == "finished"
    return result


def optimal_worst_loss(problem, x_scale):
    """min t subject to l_i(x) <= t by sequential quadratic programming, on the closed form of l_i, in scaled x."""
    group = problem.groups[0]
    B = np.asarray(group.train.data["B"][:, 0]) * x_scale
    C, t = (np.asarray(group.validation.data[name][:, 0]) for name in ("C", "t"))
    loss_scale = C[0, 0, 0]

    def losses(x):
        return np.sum((B @ x - t) ** 2, axis=1) / 2

    def slopes(x):
        return np.einsum("nij,ni->nj", B, B @ x - t)

    n, d = B.shape[0], B.shape[2]
    found = minimize(
        lambda v: v[-1],
        np.r_[np.zeros(d), losses(np.zeros(d)).max()],
        jac=lambda v: np.r_[np.zeros(d), 1],
        constraints={
            "type": "ineq",
            "fun": lambda v: v[-1] - losses(v[:-1]),
            "jac": lambda v: np.c_[-slopes(v[:-1]), np.ones(n)],
        },
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    return loss_scale * losses(found.x[:-1]).max()


SEEDS = range(20)  # of which the first have each pair of conditions once


@pytest.mark.parametrize("seed", every(SEEDS, quick=SEEDS[: len(CONDITIONS)]))
def test_random_quadratics(seed):
    lower, upper = CONDITIONS[seed % len(CONDITIONS)]
    generator = np.random.default_rng(100 + seed)
    x_scale, loss_scale = 10.0 ** generator.uniform(-3, 3, size=2)
    problem = bl.problems.random_quadratics(
        seed, lower_condition=lower, upper_condition=upper, x_scale=x_scale, loss_scale=loss_scale
    ).problem
    result = solve(problem, jnp.array(x_scale * generator.normal(size=5)))
    optimum = optimal_worst_loss(problem, x_scale)
    assert optimum * (1 - 1e-6) <= result.worst <= 1.01 * optimum


@pytest.mark.parametrize("x", [-4.0, -2.0, 0.0, 3.0, 5.0])
def test_far_starts_where_curvature_changes(x):
    known = bl.problems.shrinkage(x)
    assert solve(known, known.x).worst <= 1.01 * known.value


@pytest.mark.parametrize("flat", [1e-2, 1e-4, 1e-6])
def test_weights_do_not_wait_for_a_y_that_no_run_settles(flat):
    """One number of y is nearly free, so that conditions are up to 1e6; f and x do not see it, nor does the solution.

    The smallest ball around three points: its centre, and the barycentric coordinates of the centre.
    """
    upper = lambda x, y, batch: jnp.sum((y[:2] - batch[0]) ** 2) / 2  # noqa: E731
    lower = lambda x, y, batch: (jnp.sum((y[:2] - x) ** 2) + flat * y[2] ** 2) / 2  # noqa: E731
    points = np.array([[0.0, 0], [4, 0], [1, 3]])
    tasks = [bl.Task(np.zeros((1, 1)), point[None], y=np.ones(3)) for point in points]
    result = bl.solve(bl.Problem(upper, lower, tasks), bl.MORBiT(), jnp.array([-1.0, 3]), steps=1000, progress=False)
    np.testing.assert_allclose(result.x, [2, 1], atol=1e-3)
    np.testing.assert_allclose(result.weights, [1 / 4, 5 / 12, 1 / 3], atol=1e-3)


def test_enclosing_ball(padded_ball):
    known = padded_ball()
    result = solve(known, known.x)
    np.testing.assert_allclose(result.x, known.solution, rtol=0, atol=1e-3)
    np.testing.assert_allclose(result.weights, known.weights, rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_average_under_noisy_batches(padded_ball, seed):
    known = padded_ball(ball=bl.problems.noisy_ball(seed=seed))
    assert solve(known, known.x, seed).average.worst <= 1.05 * known.value


def fitted(x, y, batch):
    """x scales the features, unless it is the penalty: whether it is, a row says, so that both compile once."""
    features, target, ridge = batch
    scale = jnp.where(ridge[0], 1.0, x)
    return jnp.mean((features @ (scale * y["w"]) + y["c"] - target) ** 2)


def penalised(x, y, batch):
    penalty = jnp.where(batch[2][0], jnp.exp(x), 0.1)
    return fitted(x, y, batch) + jnp.sum(penalty * y["w"] ** 2) + 0.01 * y["c"] ** 2


@pytest.mark.parametrize("ridge", [True, False])
@pytest.mark.parametrize("name", ["MORBiT", "MRBO"])  # what measures is the same for all
def test_y_of_several_leaves(name, ridge):
    """x in the features or in the penalty, y a dict of a vector and a number."""
    generator = np.random.default_rng(0)
    rows = [(generator.normal(size=(m, 3)), generator.normal(size=m), np.full(m, ridge)) for m in (20, 30, 15, 15)]
    tasks = [bl.Task(train, validation) for train, validation in zip(rows[:2], rows[2:], strict=True)]
    problem = bl.Problem(fitted, penalised, tasks)
    start = {"w": jnp.zeros(3), "c": jnp.zeros(())}
    result = bl.solve(problem, getattr(bl, name)(), jnp.ones(3), start, steps=50, progress=False)
    assert result.status == "finished"
    assert np.all(np.isfinite(result.losses))
    assert np.all(np.asarray(result.x) != 1)


def squares(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2)


def huber(x, y, batch):
    gap = batch[0] @ y - batch[1]
    return jnp.mean(jnp.where(jnp.abs(gap) < 1, gap**2 / 2, jnp.abs(gap) - 0.5))


def ridge_squares(x, y, batch):
    return squares(x, y, batch) + jnp.exp(x) * jnp.sum(y**2)


def ridge_huber(x, y, batch):
    return huber(x, y, batch) + jnp.exp(x) * jnp.sum(y**2)


@pytest.fixture(scope="module")
def cancelling():
    """Tasks whose curvatures nearly cancel at x = 0, and the worst loss at the best x of a grid."""
    generator = np.random.default_rng(0)

    def rows(count, slope):
        features = generator.normal(size=(count, 6))
        return features, features @ slope + 2 * generator.normal(size=count)

    own = {4: {"upper": huber, "lower": ridge_huber}}
    slopes = generator.normal(size=(5, 6))
    sizes = (10, 20, 30, 45, 60)
    tasks = [bl.Task(rows(n, slopes[i]), rows(30, slopes[i]), **own.get(i, {})) for i, n in enumerate(sizes)]
    problem = bl.Problem(squares, ridge_squares, tasks)
    y = lower_points(problem, jnp.zeros(6), None)
    worst = [float(jnp.max(solve_lower(problem, jnp.array(x), y).losses)) for x in np.linspace(-2, 2, 81)]
    return problem, min(worst)


@pytest.mark.parametrize("name", ["MORBiT", "MORMASOBA"])
@pytest.mark.parametrize("x", [0.0, 2.0])
def test_a_first_step_does_not_trust_curvatures_that_cancel(cancelling, name, x):
    """A step of one over the sum of curvatures that cancel would end on a plateau far away."""
    problem, optimum = cancelling
    result = bl.solve(problem, getattr(bl, name)(), jnp.array(x), jnp.zeros(6), steps=2000, progress=False)
    assert result.worst <= 1.02 * optimum


def test_curvature_between_rows_that_bend_is_remembered_where_batches_are_drawn():
    """Of 64 rows one bends: most batches are flat, and 1 / L of these would throw y away on the one."""

    def lower(x, y, batch):
        return jnp.mean(batch * (y - x) ** 2) / 2

    rows = jnp.zeros(64).at[0].set(64.0)
    problem = bl.Problem(lower, lower, [bl.Task(rows, rows, y=jnp.zeros(()))], lower_batch=8, upper_batch=8)
    known = PerTask((curvature.LowerCurvature(jnp.array([8.0]), jnp.ones(1), jnp.array([8.0])),))
    flat = PerTask((jnp.arange(1, 9)[None],))  # a batch without the row that bends
    y = PerTask((jnp.zeros(1),))
    follow = jax.jit(lambda known: curvature.follow_lower(problem, jnp.zeros(()), y, flat, known))
    for _ in range(300):
        known = follow(known)
    assert 8 / 4 * 0.9 < known.groups[0].value[0] < 8 / 4


@pytest.mark.parametrize("noisy", [False, True])
def test_directions_are_clipped_at_twice_their_running_norm(noisy):
    """One that is ten times as long as those before is cut at first, and followed within 100 steps."""
    one = jnp.ones(())
    mean = {"mean": jnp.zeros(2), "square": one} if noisy else {}
    known = measured.UpperRate(UpperCurvature(one, jnp.ones(2)), one, jnp.array(5.0), **mean)
    kept, known = measured.clip(jnp.array([30.0, 40.0]), known)
    np.testing.assert_allclose(kept, [6, 8])
    for _ in range(100):
        kept, known = measured.clip(jnp.array([30.0, 40.0]), known)
    np.testing.assert_allclose(kept, [30, 40], rtol=1e-2)
    after = measured.clip(jnp.zeros(2), known)[1]
    assert float(after.norm) == pytest.approx((1 - measured.SHARE) * float(known.norm))


def test_a_task_that_was_not_seen_while_x_grew_takes_no_step_too_long():
    """x is five times as large as where L was measured: a step of 1 / L throws y away, unless L is looked at ahead."""

    def lower(x, y, batch):
        return jnp.mean((batch[0] @ (x * y) - batch[1]) ** 2) / 2

    draws = np.random.default_rng(0)
    data = draws.normal(size=(8, 40, 6)), draws.normal(size=(8, 40))
    data[0][:4] *= np.linspace(0.2, 2, 6)  # one direction bends the most
    problem = bl.Problem(lower, lower, bl.Task.stack(train=data, validation=data))
    x, y = jnp.ones(6), PerTask((jnp.asarray(draws.normal(size=(8, 6))),))
    known = curvature.lower(problem, x, y, jax.random.key(0))
    # Along a direction that is another one by now.
    known = PerTask((known.groups[0]._replace(vector=jnp.broadcast_to(jnp.eye(6)[0], (8, 6))),))
    samples = PerTask((None,))
    before = problem.validation_losses(5 * x, y)  # of the same function on the same rows

    @functools.partial(jax.jit, static_argnames="stale")
    def after(stale):
        found = curvature.follow_lower(problem, 5 * x, y, samples, known, stale)
        slopes = lower_gradients(problem, 5 * x, y, None)
        rates = 1 / found.groups[0].value
        return problem.validation_losses(5 * x, PerTask((y.groups[0] - rates[:, None] * slopes.groups[0],)))

    assert jnp.any(after(stale=False) > before)
    assert jnp.all(after(stale=True) <= before)
