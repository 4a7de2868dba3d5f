"""Identities that hold for every step, every term or every draw, and not only in the limit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.hypergradients import ConjugateGradient, Direct, Exact, Neumann, RandomNeumann, Tracked
from bilevel.hypergradients.neumann import Series, sum_series
from bilevel.hypergradients.trackers import Storm
from bilevel.hypergradients.upper import Point, Upper
from bilevel.problem import initial_point
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask
from bilevel.weightings import SimplexAscent
from ulp import assert_ulp

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
KEY = jax.random.key(0)

# Compiling these runs takes longer than running them.
unoptimised = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def matrices(problem):
    """A, B, C and p of every task of a ball in one group: g = |y - B x|_A^2 / 2, f = |C y - p|^2 / 2."""
    data = problem.groups[0].train.data | problem.groups[0].validation.data
    return [np.asarray(data[name][:, 0]) for name in "ABCp"]


def nearest_on_simplex(values, total=1.0):
    """The projection onto {w >= 0, sum w = total}, by trying all supports."""
    ranked = np.sort(values)[::-1]
    shifts = [(ranked[:k].sum() - total) / k for k in range(1, len(values) + 1)]
    return min((np.maximum(values - s, 0) for s in shifts), key=lambda w: abs(w.sum() - total))


# ---------------------------------------------------------------- the Neumann series, term by term

TERMS = 5
FULL = np.array([[2, 0.5, 0], [0.5, 1.5, 0], [0, 0, 1]])  # a lower Hessian
Y = np.array([1.0, -2.0, 0.5])


def quadratic(A):
    """One task with f_y = y and the lower Hessian A, its y."""

    def upper(x, y, batch):
        return jnp.sum(y**2) / 2

    def lower(x, y, batch):
        return (y - x) @ jnp.asarray(A) @ (y - x) / 2

    return bl.Problem(upper, lower, [bl.Task((), (), y=jnp.array(Y))])


def solutions(A, estimate, arguments):
    """v = estimate(task, argument) for each of the arguments."""
    group = quadratic(A).groups[0]
    return jax.jit(lambda: group.each(lambda task: jax.vmap(lambda a: estimate(task, a))(arguments)))()[0]


def each_term(A, lr, terms=TERMS):
    """What the random series gives for p = 0, ..., terms - 1."""

    def term(task, p):
        def coefficient(q):
            return jnp.where(q == p, float(terms), 0.0)

        sample = UpperSample(None, None, KEY)
        return sum_series(task, jnp.zeros(3), jnp.array(Y), jnp.ones(()), sample, terms, lr, coefficient).v

    return solutions(A, term, jnp.arange(terms))


def draws(A, estimator, keys):
    """What an estimator gives for each of the keys."""

    def draw(task, key):
        state = Series(jnp.zeros(3), jnp.ones(()))
        return estimator.prepare(task, jnp.zeros(3), jnp.array(Y), state, UpperSample(None, None, key)).v

    return solutions(A, draw, keys)


def test_with_the_best_scale_one_random_term_is_everything_and_the_others_nothing():
    values = each_term(2.5 * np.eye(3), 1 / 2.5)
    assert_close(values[0], TERMS * Y / 2.5, atol=1e-14)
    assert_close(values[1:], 0, atol=1e-14)
    assert_close(values.mean(axis=0), Y / 2.5, atol=1e-14)


def test_the_mean_over_the_random_terms_is_the_series():
    lr, mean = 0.4, each_term(FULL, 0.4).mean(axis=0)
    tail = np.linalg.matrix_power(np.eye(3) - lr * FULL, TERMS)
    assert_close(mean, np.linalg.solve(FULL, (np.eye(3) - tail) @ Y), atol=1e-14)
    assert_close(mean, draws(FULL, Neumann(TERMS, lr), KEY[None])[0], atol=1e-14)


def test_random_draws_are_exactly_the_terms_from_zero_to_the_last_but_one():
    values = each_term(FULL, 0.4)
    drawn = draws(FULL, RandomNeumann(TERMS, 0.4), jax.random.split(KEY, 200))
    distance = np.abs(drawn[:, None] - values[None]).max(axis=2)
    assert distance.min(axis=1).max() < 1e-13
    assert set(distance.argmin(axis=1)) == set(range(TERMS))
    beyond = TERMS * 0.4 * np.linalg.matrix_power(np.eye(3) - 0.4 * FULL, TERMS) @ Y
    assert np.abs(values - beyond[None]).max(axis=1).min() > 1e-3  # p = TERMS would have been seen


@pytest.mark.parametrize("terms", [1, 3, 8])
def test_the_series_of_a_multiple_of_the_identity_is_geometric(terms):
    a, lr = 2.5, 0.1
    v = draws(a * np.eye(3), Neumann(terms, lr), KEY[None])[0]
    assert_close(v, (1 - (1 - lr * a) ** terms) / a * Y, atol=1e-14)


# ---------------------------------------------------------------- recursive momentum


@unoptimised
def _path(solver, problem, x, y):
    def step(state, k):
        state, _ = solver.step(problem, state, jax.random.fold_in(KEY, k))
        return state, state

    return jax.lax.scan(step, solver.start(problem, x, y, KEY, 60), jnp.arange(60))[1]


@pytest.mark.parametrize("per_task", [False, True], ids=["joint", "per task"])
@pytest.mark.parametrize("hypergradient", [Exact(), ConjugateGradient(), Neumann(40), Tracked()], ids=repr)
def test_with_exact_oracles_recursive_momentum_is_exact_at_every_step(padded_ball, hypergradient, per_task):
    ball = padded_ball()
    A, B, C, p = matrices(ball.problem)
    y0 = initial_point.lower_points(ball.problem, None, KEY)
    solver = bl.MRBO(0.1, 0.4, hypergradient, SimplexAscent(0.02), tracker=Storm(per_task))
    paths = {m: _path(solver.replace(momentum=m), ball.problem, ball.x, y0) for m in (0.1, 0.5, 1.0)}
    assert np.ptp(paths[1.0].weights, axis=0).min() > 0.05  # the weights do move

    for path in paths.values():
        point, (direction, losses) = path.memory.upper.point, path.memory.upper.value
        x, y, weights, v = point.x, point.y.groups[0], point.weights.value, path.v.groups[0].v
        gap = np.einsum("nij,knj->kni", C, y) - p[None]  # f_y = C' (C y - p)
        solved = np.linalg.solve(A[None], np.einsum("nij,kni->knj", C, gap)[..., None])[..., 0]
        directions = np.einsum("nji,njl,knl->kni", B, A, v)  # f_x - J v with f_x = 0, J = -B' A
        gradients = np.einsum("nij,knj->kni", A, y - np.einsum("nij,kj->kni", B, x))
        expected = directions if per_task else np.einsum("kn,kni->ki", weights, directions)
        assert_close(path.memory.lower.value.groups[0], gradients, atol=1e-11)
        assert_close(direction.value if per_task else direction, expected, atol=1e-11)
        assert_close(losses.value, (gap**2).sum(axis=2) / 2, atol=1e-11)
        if hypergradient != Tracked():
            assert_close(v, solved, atol=1e-8)
        assert_close(path.x, paths[1.0].x, atol=1e-11)
        assert_close(path.weights, paths[1.0].weights, atol=1e-11)


# ---------------------------------------------------------------- hypergradients


def test_the_tracked_solution_settles_on_the_linear_system_and_its_gradient_has_the_right_sign(padded_ball):
    problem = padded_ball().problem
    A, B, C, p = matrices(problem)
    samples, x = problem.draw_upper(KEY), jnp.array([-1.0, 3.0])
    point = Point(x, PerTask((B @ x,)), jnp.ones(4), PerTask(((),)))  # at y*
    upper = Upper(problem, Tracked(lr=0.4))

    @jax.jit
    def settle():
        move = lambda _, v: upper.prepare(point._replace(v=v), samples)  # noqa: E731
        v = jax.lax.fori_loop(0, 200, move, upper.init(point, samples))
        return upper.directions(point._replace(v=v), samples)

    seen = settle()
    right = np.einsum("nij,ni->nj", C, x[None] - p)  # f_y at y*, where C y = x
    assert_close(seen.v.groups[0].v, np.linalg.solve(A, right[..., None])[..., 0], atol=1e-12)
    assert_close(seen.direction, x[None] - p, atol=1e-12)


def test_the_hypergradient_is_the_slope_of_the_loss_where_the_lower_hessian_depends_on_x():
    problem, c, t = bl.problems.shrinkage().problem, np.array([1.0, 2.0]), np.array([1.0, 0.0])
    grid = np.linspace(-2, 2, 9)

    def loss(x):
        return (c / (1 + np.exp(x)) - t) ** 2 / 2

    def gradients(x):
        y, samples = PerTask((jnp.array(c) / (1 + jnp.exp(x)),)), problem.draw_upper(KEY)
        point, upper = Point(x, y, jnp.ones(2), PerTask(((),))), Upper(problem, Exact())
        return upper.directions(point._replace(v=upper.init(point, samples)), samples).direction

    h = 1e-5
    slopes = [(loss(x + h) - loss(x - h)) / (2 * h) for x in grid]
    assert_close(jax.jit(jax.vmap(gradients))(jnp.array(grid)), slopes, atol=1e-8)


# ---------------------------------------------------------------- one task


def one_noisy_task():
    noisy = bl.problems.noisy_ball(rows=16)
    task = initial_point.task_of(noisy.problem, noisy.problem.groups[1], 0)
    problem = bl.Problem(task.upper, task.lower, [task], lower_batch=2, upper_batch=2)
    return noisy._replace(problem=problem)


def test_min_max_over_one_task_is_ttsa(run):
    known = one_noisy_task()
    solvers = bl.MORBiT(0.05, 0.2, Exact(), SimplexAscent(0.02)), bl.TTSA(0.05, 0.2, Exact())
    states = [run(solver, known, 500) for solver in solvers]
    assert not np.allclose(states[0].x, known.x, atol=0.1)
    assert_ulp(*[(state.x, state.y, state.weights) for state in states])


@unoptimised
def _remeasured(solver, problem, x, y):
    def step(_, state):
        return solver.step(problem, state, jax.random.fold_in(KEY, state.step))[0]

    def chunk(_, state):
        state = jax.lax.fori_loop(0, 100, step, state)
        return solver.refresh(problem, state, jax.random.fold_in(KEY, -state.step))

    return jax.lax.fori_loop(0, 3, chunk, solver.start(problem, x, y, KEY, 300))


def test_min_max_over_one_task_is_ttsa_with_automatic_rates():
    def upper(x, y, t):
        return jnp.mean((y - t) ** 2) / 2

    def lower(x, y, c):
        return jnp.mean((y - c) ** 2 + jnp.exp(x) * y**2) / 2

    c, t = np.random.default_rng(0).normal(size=(2, 16))
    task = bl.Task(jnp.array(2 + c), jnp.array(t))
    problem = bl.Problem(upper, lower, [task], lower_batch=2, upper_batch=2)
    solvers = bl.MORBiT(), bl.TTSA()
    states = [_remeasured(solver, problem, jnp.zeros(()), PerTask((jnp.zeros(1),))) for solver in solvers]
    assert abs(states[0].x) > 0.1
    assert_ulp(*[(state.x, state.y, state.weights) for state in states])


# ---------------------------------------------------------------- steps, and how tasks are arranged

SOLVER = bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.02))


def test_a_step_moves_y_first_then_x_and_the_weights_at_the_new_y_and_the_old_x(run, padded_ball):
    ball = padded_ball()
    A, B, C, p = matrices(ball.problem)
    x, y, weights = np.asarray(ball.x), np.zeros((4, 5)), np.full(4, 1 / 4)
    for _ in range(20):
        y = y - 0.4 * np.einsum("nij,nj->ni", A, y - B @ x)
        gap = np.einsum("nij,nj->ni", C, y) - p
        directions = np.einsum("nji,nkj,nk->ni", B, C, gap)  # B' C' (C y - p)
        x = x - 0.1 * weights @ directions
        weights = nearest_on_simplex(weights + 0.02 * (gap**2).sum(axis=1) / 2)
    state = run(SOLVER, ball, 20)
    assert_close(state.x, x, atol=1e-13)
    assert_close(state.y.groups[0], y, atol=1e-13)
    assert_close(state.weights, weights, atol=1e-13)


def test_the_lower_steps_are_those_of_the_optax_rule_which_keeps_its_moments(run):
    known, c = bl.problems.shrinkage(), jnp.array([1.0, 2.0])
    # f does not depend on x, so that Direct leaves x where it is.
    solver = bl.MORBiT(0.1, 0.1, Direct(), SimplexAscent(0.1), lower_rule=optax.adam, lower_steps=3)
    state = run(solver, known, 2)
    assert state.x == known.x
    adam, y = optax.adam(0.1), jnp.zeros(2)
    moments = adam.init(y)
    for _ in range(6):
        updates, moments = adam.update((y - c) + jnp.exp(known.x) * y, moments)
        y = y + updates
    assert_close(state.y.groups[0], y, atol=1e-13)


def test_permuting_tasks_permutes_their_weights_and_leaves_x(run, padded_ball):
    order = np.array([3, 1, 0, 2])
    plain, permuted = run(SOLVER, padded_ball(), 100), run(SOLVER, padded_ball(order), 100)
    assert_close(permuted.x, plain.x, atol=1e-12)
    assert_close(permuted.weights, plain.weights[order], atol=1e-12)
    assert_close(permuted.y.groups[0], plain.y.groups[0][order], atol=1e-12)


def test_tasks_of_two_shapes_may_come_in_any_order(run, padded_ball):
    plain, mixed = run(SOLVER, padded_ball(), 100), padded_ball((0, 3, 1, 2), (3, 5, 3, 5))
    assert [group.ids.tolist() for group in mixed.problem.groups] == [[0, 2], [1, 3]]
    state = run(SOLVER, mixed, 100)
    assert_close(state.x, plain.x, atol=1e-12)
    assert_close(state.weights, plain.weights[np.array([0, 3, 1, 2])], atol=1e-12)


def test_padding_the_lower_variables_changes_nothing(run, padded_ball):
    ball = bl.problems.enclosing_ball()
    apart, together = run(SOLVER, ball, 100), run(SOLVER, padded_ball(), 100)
    assert_close(together.x, apart.x, atol=1e-12)
    assert_close(together.weights, apart.weights, atol=1e-12)
    for i, y in enumerate(apart.y):
        assert_close(together.y.groups[0][i], np.pad(y[0], (0, 3 - i)), atol=1e-12)


def test_a_clone_of_a_task_leaves_the_solution_and_shares_its_weight(run, padded_ball):
    ball = padded_ball((0, 1, 2, 3, 2), (5, 5, 5, 5, 5))
    state = run(SOLVER, ball, 1000)
    assert_close(state.x, ball.solution, atol=1e-6)
    merged = state.weights[:4].at[2].add(state.weights[4])
    assert_close(merged, [1 / 4, 5 / 12, 1 / 3, 0], atol=1e-6)


# ---------------------------------------------------------------- the pull to uniform weights


@pytest.mark.parametrize(("pull", "floor"), [(0.5, 0.0), (3.0, 0.0), (1.0, 0.2)])
def test_the_pull_settles_on_the_best_response(pull, floor):
    losses = jnp.array([2.5, 2.0, 2.4, 0.5, 1.0])
    ascent = SimplexAscent(pull=pull, floor=floor)
    weights, state = ascent.init(5, losses.dtype)
    move = lambda _, weights: ascent.update(weights, losses, state, 0.1 / pull)[0]  # noqa: E731
    weights = jax.lax.fori_loop(0, 500, move, weights)
    best = floor / 5 + nearest_on_simplex(1 / 5 + np.asarray(losses) / (2 * pull), 1 - floor)
    assert_close(weights, best, atol=1e-12)
