"""Tandem: its equations by hand, its units, and where its rates lead without being given any."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.hypergradient import LinearSolution
from bilevel.hypergradients.upper import Point, Upper
from bilevel.problem.initial_point import task_of
from bilevel.problem.per_task import PerTask
from bilevel.rates import relative
from bilevel.rates.protocol import Needs
from bilevel.weightings import SimplexAscent


@jax.jit
def looks(problem, point, samples):
    """The gradient with residuals, the direction apart from them, and v a step on."""
    upper = Upper(problem, Tracked(lr=0.1))
    return upper.with_residuals(point, samples), upper.at_fixed_v(point, samples), upper.prepare(point, samples)


@pytest.mark.parametrize("weights", [[0.3, 0.7, 0.0], [1.0, 0.0, 0.0]])
def test_one_gradient_has_the_direction_and_the_residuals(weights):
    problem, x = bl.problems.random_quadratics(0, tasks=3, x_size=2, y_size=3).problem, jnp.ones(2)
    y, v = (jax.random.normal(jax.random.key(k), (3, 3)) for k in (1, 2))
    point = Point(x, PerTask((y,)), jnp.array(weights), PerTask((LinearSolution(v),)))
    (seen, residuals), apart, after = looks(problem, point, problem.draw_upper(jax.random.key(3)))
    np.testing.assert_allclose(seen.direction, apart.direction, atol=1e-12)
    np.testing.assert_allclose(seen.losses, apart.losses)
    np.testing.assert_allclose(
        v + 0.1 * residuals.groups[0], after.groups[0].v, atol=1e-12
    )  # also of tasks without weight


def test_a_step_is_what_the_equations_say():
    known = bl.problems.opposed_slopes()
    alpha, beta, gamma = 0.1, 0.3, 0.05
    solver = bl.Tandem(alpha, beta, weighting=SimplexAscent(gamma), upper_rule=optax.sgd)
    state, step = solver.init(known.problem, known.x, key=jax.random.key(0), steps=10), jax.jit(solver.step)
    a, slope, target = np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, -1.0])
    x, y, v, weights = 1.5, np.zeros(2), np.zeros(2), np.full(2, 0.5)
    for k in range(4):
        state, info = step(known.problem, state, jax.random.key(k))
        y = y - beta * a * (y - slope * x)
        direction = weights @ (a * slope * v)  # f_x = 0 and J = -a slope
        residual = (y - target) - a * v
        moved = x - alpha * direction
        v = (1 - min(abs(moved - x) / abs(moved), 0.5)) * v + beta * residual
        weights = weights + gamma * ((y - target) ** 2 / 2)
        weights, x = weights - (weights.sum() - 1) / 2, moved
        np.testing.assert_allclose(info.losses, (y - target) ** 2 / 2)
        for found, expected in (
            (state.x, x),
            (state.y.groups[0], y),
            (state.v.groups[0].v, v),
            (state.weights, weights),
        ):
            np.testing.assert_allclose(found, expected, atol=1e-12)


def ill_conditioned(**batches):
    """min over x of |y*(x) - p|^2 / 2, g = (y - x b)' A (y - x b) / 2 with a condition of 10^4, rows b + noise."""
    rng = np.random.default_rng(0)
    A, b, p = np.diag([1e-2, 1.0, 1e2]), np.array([1.0, -2.0, 0.5]), np.array([2.0, -3.0, 1.0])
    rows = b + (0.1 * rng.normal(size=(64, 3)) if batches else 0 * rng.normal(size=(64, 3)))

    def upper(x, y, batch):
        return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) / 2

    def lower(x, y, batch):
        away = y[None] - x * batch
        return jnp.mean(jnp.sum((away @ A) * away, axis=1)) / 2

    tasks = [bl.Task(train=rows, validation=np.broadcast_to(p, (8, 3)), y=np.zeros(3))]
    mean = rows.mean(axis=0)
    return bl.Problem(upper, lower, tasks, **batches), (mean @ p) / (mean @ mean)


@pytest.mark.parametrize("batches", [{}, {"lower_batch": 8, "upper_batch": 8}], ids=["all rows", "batches"])
def test_an_ill_conditioned_lower_problem_holds_x_back_no_more(batches):
    problem, best = ill_conditioned(**batches)
    run = lambda solver: bl.solve(problem, solver, jnp.array(0.5), steps=600, progress=False, fitted=False)  # noqa: E731
    newton, gradient = run(bl.Tandem()), run(bl.Tandem(lower=bl.lower.Gradient()))
    assert abs(newton.x - best) < 0.01
    assert abs(gradient.x - best) > 0.1


def test_a_step_along_newtons_direction_is_what_the_equations_say():
    """One task, all rows."""
    problem, _ = ill_conditioned()
    solver = bl.Tandem(0.1, 0.5, upper_rule=optax.sgd, lower=bl.lower.RunningHessian())
    state, step = solver.init(problem, jnp.array(0.5), key=jax.random.key(0), steps=10), jax.jit(solver.step)
    A, b, p = np.diag([1e-2, 1.0, 1e2]), np.array([1.0, -2.0, 0.5]), np.array([2.0, -3.0, 1.0])
    x, y, v = 0.5, np.zeros(3), np.zeros(3)
    for k in range(4):
        state, _ = step(problem, state, jax.random.key(k))
        y = y - 0.5 * (y - x * b)
        residual = (y - p) - A @ v
        moved = x - 0.1 * (b @ A @ v)  # f_x = 0 and J = -b'A
        v = (1 - min(abs(moved - x) / abs(moved), 0.5)) * v + 0.5 * np.linalg.solve(A, residual)
        x = moved
        for found, expected in ((state.x, x), (state.y.groups[0][0], y), (state.v.groups[0].v[0], v)):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_how_y_moves_is_chosen_by_its_size_and_by_what_is_given():
    known = bl.problems.random_quadratics(0, tasks=2, x_size=2, y_size=30)
    small = bl.problems.random_quadratics(0, tasks=2, x_size=2, y_size=3)

    def keeps(solver, problem=small):
        state = solver.outline(problem.problem, jnp.ones(2), key=jax.random.key(0), steps=10)
        return bool(jax.tree.leaves(state.memory.known))

    assert keeps(bl.Tandem())
    assert not keeps(bl.Tandem(), known)
    assert keeps(bl.Tandem(lower=bl.lower.RunningHessian()), known)
    assert not keeps(bl.Tandem(lower_lr=0.1))
    assert not keeps(bl.Tandem(v_lr=0.1))
    assert not keeps(bl.Tandem(rates=bl.rates.Measured(), upper_rule=optax.sgd))
    assert not keeps(bl.Tandem(sampling=bl.sampling.Uniform(1)))
    endless = bl.problems.sinusoid_regression(bl.datasets.sinusoids(2))
    state = bl.Tandem().outline(endless.problem, endless.x, key=jax.random.key(0), steps=10)
    assert not jax.tree.leaves(state.memory.known)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampling": bl.sampling.Uniform(1)}, "Hessians of tasks not seen are of long ago"),
        ({"rates": bl.rates.Measured()}, "these rates are for steps along the gradient"),
        ({"lower": bl.lower.Newton()}, r"Tandem\(lower=...\) got Newton"),
    ],
)
def test_a_move_of_y_that_does_not_fit_is_refused(options, said):
    known = bl.problems.opposed_slopes()
    solver = bl.Tandem(**({"lower": bl.lower.RunningHessian()} | options))
    with pytest.raises((ValueError, TypeError), match=said):
        bl.solve(known.problem, solver, known.x, steps=5, progress=False)


def test_the_unit_of_the_losses_does_not_matter(padded_ball):
    known = padded_ball()
    (group,) = known.problem.groups

    # The factor is data, so that both units are one program.
    upper, lower = (lambda x, y, b, f=f: jnp.mean(b["factor"]) * f(x, y, b) for f in (group.upper, group.lower))

    def run(factor):
        rows = {"factor": jnp.full(1, factor)}
        tasks = [task_of(known.problem, group, i) for i in range(4)]
        tasks = [bl.Task(task.train | rows, task.validation | rows, y=task.y) for task in tasks]
        return bl.solve(bl.Problem(upper, lower, tasks), bl.Tandem(), known.x, steps=100, progress=False)

    one, other = run(1.0), run(1000.0)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-4)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-4)


@pytest.mark.parametrize(
    "known",
    [bl.problems.opposed_slopes(), bl.problems.shrinkage(0.0), bl.problems.shrinkage(-1.0)],
    ids=["crosses much of its size", "starts at zero", "changes its sign"],
)
def test_no_rate_is_needed(known):
    result = bl.solve(known.problem, bl.Tandem(), known.x, steps=2000, progress=False)
    assert result.worst <= 1.01 * known.value
    np.testing.assert_allclose(result.x, known.solution, atol=0.02)


def test_noisy_batches_end_near_the_solution_without_averaging(run, padded_ball):
    known = padded_ball(ball=bl.problems.noisy_ball())
    away = lambda solver: np.linalg.norm(run(solver, known, 2000).x - known.solution)  # noqa: E731
    tandem = away(bl.Tandem())
    assert tandem < 0.2
    assert tandem < away(bl.SOBA(0.1, 0.4, weighting=SimplexAscent(0.02)))


def test_sizes_of_leaves_that_start_at_zero():
    x = {"w": jnp.full((2, 2), 3.0), "b": jnp.zeros(4)}
    first = relative.first_sizes(x)
    assert first["w"] == 3.0
    assert first["b"] == pytest.approx(3 / np.sqrt(2))
    assert relative.first_sizes(jnp.zeros(3)) == 1.0


def test_a_step_is_a_share_of_the_size_of_every_leaf_of_which_a_quarter_of_the_largest_is_the_least():
    problem, x = bl.problems.random_quadratics(0, tasks=2, x_size=2, y_size=3).problem, {"w": jnp.full((2, 2), 3.0)}
    x |= {"b": jnp.full(4, 2.0)}
    rates, needs = bl.rates.Relative(), Needs(upper=True, lower=False, weights=False, curvature=False)
    point = Point(x, PerTask((jnp.zeros((2, 3)),)), jnp.ones(2) / 2, PerTask(((),)))
    state = rates.init(problem, point, needs, jax.random.key(0), jnp.array(100))
    now = {"w": jnp.zeros((2, 2)), "b": jnp.full(4, 5.0)}
    assert rates.upper(state, now, x, jnp.array(0)).units == {"w": 0.75, "b": 5.0}


def test_how_far_x_moved():
    assert relative.share_moved(jnp.ones(4), 1.1 * jnp.ones(4)) == pytest.approx(0.1 / 1.1)
    assert relative.share_moved(jnp.ones(4), jnp.zeros(4)) == 0.5
    assert relative.share_moved(jnp.zeros(4), jnp.zeros(4)) == 0.0


def test_what_is_recommended():
    noisy = bl.problems.noisy_ball().problem.rebatched(lambda size: 1)  # of 32 rows
    assert isinstance(bl.recommended(noisy), bl.Tandem)
    assert isinstance(bl.recommended(noisy, steps=100), bl.MORBiT)
    assert isinstance(bl.recommended(noisy, steps=100_000), bl.Descent)  # all rows cost no more
    assert isinstance(bl.recommended(bl.problems.enclosing_ball().problem), bl.Descent)
    huge = np.broadcast_to(0.0, 2**26)  # a gradient for each of four tasks would be too much
    assert isinstance(bl.recommended(bl.problems.enclosing_ball().problem, x=huge), bl.MORBiT)
    with pytest.raises(ValueError, match="steps='many'"):
        bl.recommended(bl.problems.noisy_ball().problem, "many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"recommended\(problem=...\) got str"):
        bl.recommended("letter")  # type: ignore[arg-type]


def test_a_rate_for_another_rule_must_be_given():
    known = bl.problems.opposed_slopes()
    with pytest.raises(ValueError, match=r"Tandem\(upper_lr=None\) is chosen for optax.adam only"):
        bl.solve(known.problem, bl.Tandem(upper_rule=optax.sgd), known.x, steps=5, progress=False)
