"""Every solver reaches the solutions that are known in closed form, and is the recursion its paper has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._core import pytrees
from bilevel.hypergradients import Exact, Tracked
from bilevel.hypergradients.trackers import Storm
from bilevel.hypergradients.upper import Upper
from bilevel.lower.steps import lower_gradients
from bilevel.problem import initial_point
from bilevel.problem.constraints import Box
from bilevel.problem.per_task import PerTask
from bilevel.studies.problems import noisy_ball
from bilevel.weightings import Average, SimplexAscent
from closed_form_solvers import SERIES, SETTINGS

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
KEY = jax.random.key(0)

BALLS = {  # the bound of x_1, x*, weights*
    "enclosing ball": (np.inf, [2.0, 1.0], [1 / 4, 5 / 12, 1 / 3, 0]),
    "bounded ball": (1.5, [1.5, 0.5], [0, 5 / 6, 1 / 6, 0]),
}


@pytest.fixture(scope="module")
def ball(padded_ball):
    """The ball with x_1 bounded, of one group: both bounds compile once."""
    known = padded_ball()

    def make(bound=np.inf):
        box = Box(-jnp.inf, jnp.array([bound, jnp.inf]))
        return known._replace(problem=known.problem.replace(constraint=box))

    return make


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("which", BALLS)
def test_every_solver_reaches_the_min_max_solution(run, ball, name, which):
    (solver, steps), (bound, x, weights) = SETTINGS[name], BALLS[which]
    state = run(solver, ball(bound), steps)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


def test_every_bilevel_solver_is_among_them():
    bilevel = {name for name in bl.solvers.__all__ if getattr(bl, name).card.problem == "bilevel"}
    assert bilevel - {"F2SA", "Descent"} == {name.partition(",")[0] for name in SETTINGS}


@pytest.mark.parametrize(
    ("strength", "x", "weights"),
    [
        (10.0, [2.0081480512, 1.0508875372], [0.2449484304, 0.4185825420, 0.3364690276, 0]),
        (100.0, [2.0009494150, 1.0054035351], [0.2494738620, 0.4168386448, 0.3336874932, 0]),
    ],
)
def test_f2sa_reaches_the_saddle_point_of_the_penalised_problem(run, ball, strength, x, weights):
    solver = bl.F2SA(0.1, 0.4, 0.4 / strength, SimplexAscent(0.03), strength=strength, lower_steps=10)
    state = run(solver, ball(), 1000)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


@pytest.mark.parametrize(
    ("solver", "batch", "steps"),
    [
        (bl.SABA(0.05, 0.2, weighting=SimplexAscent(0.01)), 1, 4000),
        (bl.SPABA(0.05, 0.3, weighting=SimplexAscent(0.01)), 1, 2000),
        (bl.SRBA(0.03, 0.2, weighting=SimplexAscent(0.01)), 1, 4000),
        (bl.VRBO(0.1, 0.4, SERIES, SimplexAscent(0.02)), 4, 800),
    ],
    ids=lambda value: type(value).__name__,
)
def test_variance_reduction_is_exact_at_constant_rates_on_noisy_batches(run, padded_ball, solver, batch, steps):
    known = padded_ball(ball=noisy_ball(lower_batch=batch, upper_batch=batch))
    state = run(solver, known, steps)
    assert_close(state.x, known.solution, atol=1e-6)
    assert_close(state.weights, known.weights, atol=1e-6)


def test_soba_stalls_at_its_noise_floor_there(run, padded_ball):
    known = padded_ball(ball=noisy_ball(lower_batch=1, upper_batch=1))
    state = run(bl.SOBA(0.05, 0.2, weighting=SimplexAscent(0.01)), known, 4000)
    assert np.max(np.abs(state.x - known.solution)) > 1e-2


# ---------------------------------------------------------------- what is tracked is exact, with exact oracles


def follow(solver, known, steps):
    """The states of a run, one by one."""
    key = jax.random.key(0)
    y = initial_point.lower_points(known.problem, None, key)

    def one(state, k):
        state = solver.step(known.problem, state, jax.random.fold_in(key, k))[0]
        return state, state

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # it runs faster than compiles
    def go(x, y):
        return jax.lax.scan(one, solver.start(known.problem, x, y, key, steps), jnp.arange(steps))[1]

    return go(known.x, y)


@pytest.mark.parametrize(("period", "per_task"), [(1, False), (3, True), (7, False)])
def test_vrbo_tracks_exactly_at_every_step_and_period(padded_ball, period, per_task):
    known = padded_ball()
    tracker = Storm(per_task=per_task)
    solver = bl.VRBO(0.1, 0.3, Exact(), SimplexAscent(0.02), period=period, lower_steps=2, tracker=tracker)
    states = follow(solver, known, 15)

    @jax.jit
    def at_state(state):
        samples, upper, point = known.problem.draw_upper(KEY), Upper(known.problem, Exact()), solver.point(state)
        seen = upper.directions(point, samples) if per_task else upper.direction(point, samples)
        return lower_gradients(known.problem, state.x, state.y, None), seen

    for k in range(15):
        state = pytrees.index(states, k)
        u, (direction, losses) = state.memory.value
        gradients, exact = at_state(state)
        assert_close(u.groups[0], gradients.groups[0], atol=1e-12)
        assert_close(direction.value if per_task else direction, exact.direction, atol=1e-12)
        assert_close(losses.value, exact.losses, atol=1e-12)


@pytest.mark.parametrize(
    "solver", [bl.SPABA(0.05, 0.2, probability=0.2), bl.SRBA(0.05, 0.2, period=4)], ids=["SPABA", "SRBA"]
)
def test_the_recursive_ones_equal_soba_with_exact_oracles(padded_ball, solver):
    known = padded_ball()
    recursive = follow(solver.replace(weighting=SimplexAscent(0.02)), known, 30)
    plain = follow(bl.SOBA(0.05, 0.2, weighting=SimplexAscent(0.02)), known, 30)
    assert_close(recursive.x, plain.x, atol=1e-12)
    assert_close(recursive.weights, plain.weights, atol=1e-12)


@pytest.mark.parametrize(
    ("solver", "plain"),
    [
        (bl.MRBO(0.05, 0.2, Exact(), momentum=0.3), bl.MRBO(0.05, 0.2, Exact(), momentum=1.0)),
        (bl.FSLA(0.05, 0.2, momentum=0.3), bl.FSLA(0.05, 0.2, momentum=1.0)),
        (bl.STABLE(0.05, 0.2, momentum=0.3), bl.STABLE(0.05, 0.2, momentum=1.0)),
        (bl.SABA(0.05, 0.2), bl.SOBA(0.05, 0.2)),
    ],
    ids=["MRBO", "FSLA", "STABLE", "SABA"],
)
def test_with_exact_oracles_nothing_is_left_to_reduce(padded_ball, solver, plain):
    known = padded_ball()
    ends = [follow(s.replace(weighting=SimplexAscent(0.02)), known, 30) for s in (solver, plain)]
    assert_close(ends[0].x, ends[1].x, atol=1e-12)
    assert_close(ends[0].weights, ends[1].weights, atol=1e-12)


def test_stable_has_no_tracking_lag():
    """On quadratics y - y*(x) shrinks by 1 - beta a whatever x does."""
    a, beta = 2.0, 0.2

    def upper(x, y, batch):
        return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) + jnp.sum(jnp.cos(3 * y))

    def lower(x, y, batch):
        return a * jnp.sum((y - jnp.array([[1.0, 2.0], [0.5, -1.0]]) @ x) ** 2) / 2 + 0 * jnp.mean(batch)

    task = bl.Task(jnp.zeros((1, 2)), jnp.ones((1, 2)), y=jnp.array([3.0, -2.0]))
    known = bl.problems.Known(bl.Problem(upper, lower, [task]), jnp.array([0.3, 0.4]), None, None, 0.0)
    states = follow(bl.STABLE(0.05, beta), known, 20)
    B = np.array([[1.0, 2.0], [0.5, -1.0]])
    gaps = np.asarray(states.y.groups[0])[:, 0] - np.asarray(states.x) @ B.T
    first = np.array([3.0, -2.0]) - B @ np.array([0.3, 0.4])
    assert np.ptp(np.asarray(states.x), axis=0).max() > 0.1
    assert_close(gaps, (1 - beta * a) ** np.arange(1, 21)[:, None] * first, atol=1e-12)


def ragged(batch):
    """One task with 10 rows, another with 7: blocks of 4 leave short ones."""

    def upper(x, y, batch):
        features, target = batch
        return jnp.mean((features @ y - target) ** 2)

    def lower(x, y, batch):
        return upper(x, y, batch) + jnp.sum((y - x) ** 2)

    generator = np.random.default_rng(0)
    rows = lambda n: (jnp.array(generator.normal(size=(n, 2))), jnp.array(generator.normal(size=n)))  # noqa: E731
    tasks = [bl.Task(rows(n), rows(n + 1)) for n in (10, 7)]
    return bl.Problem(upper, lower, tasks, lower_batch=batch, upper_batch=batch)


def test_saba_counts_short_blocks_by_their_rows(run):
    """Its limit is the solution on all the data, where SOBA with all the data ends."""
    x, y = jnp.zeros(2), PerTask((jnp.zeros((2, 2)),))
    known = bl.problems.Known(ragged(4), x, None, None, 0.0)
    options = {"weighting": Average()}

    def go(solver, problem, steps):
        move = lambda k, state: solver.step(problem, state, jax.random.fold_in(jax.random.key(1), k))[0]  # noqa: E731
        start = lambda: solver.start(problem, x, y, jax.random.key(0), steps)  # noqa: E731
        return jax.jit(lambda: jax.lax.fori_loop(0, steps, move, start()))()

    blocks = go(bl.SABA(0.02, 0.02, **options), known.problem, 12000)
    whole = go(bl.SOBA(0.02, 0.02, **options), ragged(None), 12000)
    assert_close(blocks.x, whole.x, atol=1e-6)


# ---------------------------------------------------------------- the published recursions, by hand


@pytest.fixture(scope="module")
def quadratic():
    """One task: g = (y - Bx)'A(y - Bx)/2, f = |y - t|^2/2 + |x|^2/4, all the data in every step."""
    A, B, t = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([1.0, -1.0])

    def upper(x, y, batch):
        return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) / 2 + jnp.sum(x**2) / 4

    def lower(x, y, batch):
        gap = y - jnp.array(B) @ x
        return gap @ jnp.array(A) @ gap / 2 + 0 * jnp.mean(batch)

    task = bl.Task(jnp.zeros((1, 1)), jnp.array(t)[None], y=jnp.zeros(2))
    known = bl.problems.Known(bl.Problem(upper, lower, [task]), jnp.array([1.0, -0.5]), None, None, 0.0)
    g_y = lambda x, y: A @ (y - B @ x)  # noqa: E731
    f_y = lambda x, y: y - t  # noqa: E731
    D = lambda x, y, v: x / 2 + B.T @ A @ v  # noqa: E731  (J = -B'A)
    return known, A, g_y, f_y, D


def test_soba_moves_everything_at_the_old_point(quadratic):
    known, A, g_y, f_y, D = quadratic
    x, y, v = np.array(known.x), np.zeros(2), np.zeros(2)
    states = follow(bl.SOBA(0.05, 0.2), known, 12)
    for k in range(12):
        x, y, v = x - 0.05 * D(x, y, v), y - 0.2 * g_y(x, y), v - 0.2 * (A @ v - f_y(x, y))
        assert_close(states.x[k], x, atol=1e-13)
        assert_close(states.y.groups[0][k, 0], y, atol=1e-13)


def test_ma_soba_moves_x_along_the_average_before_this_step(quadratic):
    known, A, g_y, f_y, D = quadratic
    x, y, v = np.array(known.x), np.zeros(2), np.zeros(2)
    h = D(x, y, v)
    states = follow(bl.MASOBA(0.05, 0.2, momentum=0.3), known, 12)
    for k in range(12):
        fresh = D(x, y, v)
        x, y, v = x - 0.05 * h, y - 0.2 * g_y(x, y), v - 0.2 * (A @ v - f_y(x, y))
        h = 0.7 * h + 0.3 * fresh
        assert_close(states.x[k], x, atol=1e-13)


def test_damping_goes_a_part_of_the_way_to_the_projected_point(quadratic):
    known, *_ = quadratic
    bounded = bl.Problem(
        known.problem.groups[0].upper,
        known.problem.groups[0].lower,
        [initial_point.task_of(known.problem, known.problem.groups[0], 0)],
        constraint=Box(-0.5, 1.0),
    )
    known = known._replace(problem=bounded)
    solver = bl.MASOBA(0.2, 0.2, momentum=1.0, damping=0.25)
    states = follow(solver, known, 1)
    *_, D = quadratic
    x = np.array([1.0, -0.5])
    target = np.clip(x - 0.8 * D(x, np.zeros(2), np.zeros(2)), -0.5, 1.0)
    assert_close(states.x[0], x + 0.25 * (target - x), atol=1e-13)


def test_fsla_moves_v_at_the_new_y_and_x_with_the_new_v(quadratic):
    known, A, g_y, f_y, D = quadratic
    x, y, v = np.array(known.x), np.zeros(2), np.zeros(2)
    states = follow(bl.FSLA(0.05, 0.2, momentum=0.4), known, 12)
    for k in range(12):
        y = y - 0.2 * g_y(x, y)
        v = v - 0.2 * (A @ v - f_y(x, y))
        x = x - 0.05 * D(x, y, v)
        assert_close(states.x[k], x, atol=1e-13)


def test_amigo_takes_its_steps_on_v_with_one_upper_gradient(quadratic):
    known, A, g_y, f_y, D = quadratic
    x, y, v = np.array(known.x), np.zeros(2), np.zeros(2)
    states = follow(bl.AmIGO(0.05, 0.2, Tracked(0.3, steps=3), lower_steps=2), known, 8)
    for k in range(8):
        for _ in range(2):
            y = y - 0.2 * g_y(x, y)
        for _ in range(3):
            v = v - 0.3 * (A @ v - f_y(x, y))
        x = x - 0.05 * D(x, y, v)
        assert_close(states.x[k], x, atol=1e-13)


def test_bsa_takes_ever_more_lower_steps(quadratic):
    known, A, g_y, f_y, D = quadratic
    x, y = np.array(known.x), np.zeros(2)
    states = follow(bl.BSA(0.05, 0.2, Exact()), known, 10)
    for k in range(10):
        for _ in range(int(np.ceil(np.sqrt(k + 1)))):
            y = y - 0.2 * g_y(x, y)
        x = x - 0.05 * D(x, y, np.linalg.solve(A, f_y(x, y)))
        assert_close(states.y.groups[0][k, 0], y, atol=1e-13)
        assert_close(states.x[k], x, atol=1e-13)


def test_f2sa_moves_x_along_the_difference_of_first_derivatives(quadratic):
    known, A, g_y, f_y, _ = quadratic
    B, s = np.array([[1.0, 2.0], [0.0, 1.0]]), 5.0
    g_x = lambda x, y: -B.T @ A @ (y - B @ x)  # noqa: E731
    x, z, p = np.array(known.x), np.zeros(2), np.zeros(2)
    states = follow(bl.F2SA(0.05, 0.2, 0.04, strength=s, lower_steps=2), known, 8)
    for k in range(8):
        for _ in range(2):
            z = z - 0.2 * g_y(x, z)
        for _ in range(2):
            p = p - 0.04 * (f_y(x, p) + s * g_y(x, p))
        x = x - 0.05 * (x / 2 + s * (g_x(x, p) - g_x(x, z)))
        assert_close(states.x[k], x, atol=1e-12)


def test_mormasoba_moves_the_weights_a_part_of_the_way(padded_ball):
    known = padded_ball()
    states = follow(bl.MORMASOBA(0.05, 0.4, weighting=SimplexAscent(2.0), momentum=0.5, damping=0.25), known, 1)
    losses = known.problem.validation_losses(known.x, PerTask((jnp.zeros((4, 5)),)))
    target, _ = SimplexAscent().update(jnp.full(4, 0.25), losses, (), 8.0)
    assert_close(states.weights[0], 0.25 + 0.25 * (target - 0.25), atol=1e-13)
    assert np.min(states.weights[0]) > 0


# ---------------------------------------------------------------- what does not fit


def test_a_penalty_may_grow(run, ball):
    """Its error is about 0.5 / strength, and the strength ends at 10 * 1501^(1/7) = 28.4."""
    solver = bl.F2SA(0.1, 0.4, weighting=SimplexAscent(0.03))
    distance = np.max(np.abs(run(solver, ball(), 1500).x - np.array([2.0, 1.0])))
    assert 0.4 / 28.4 < distance < 0.6 / 28.4


@pytest.mark.parametrize(
    ("solver", "said"),
    [
        (bl.SOBA(v_lr=0.0), r"SOBA\(v_lr=0.0\).*a positive number, or None = that of y"),
        (bl.FSLA(v_lr=-1.0), r"FSLA\(v_lr=-1.0\).*a positive number, or None = that of y"),
        (bl.F2SA(penalty_lr=0.0), r"F2SA\(penalty_lr=0.0\).*a positive number, or None"),
        (bl.F2SA(strength=None), r"F2SA\(strength=None\).*a positive number"),
        (bl.ALSET(ratio=2.0), "give upper_lr and no lower_lr"),
        (bl.ALSET(0.1, 0.1, ratio=2.0), "give upper_lr and no lower_lr"),
        (bl.BSA(lower_steps=0), r"BSA\(lower_steps=0.*1 or more"),
        (bl.VRBO(period=0), r"VRBO\(period=0.*1 or more"),
        (bl.SRBA(period=0.5), r"SRBA\(period=0.5.*1 or more"),
        (bl.SPABA(probability=0.0), r"SPABA\(probability=0.0.*above 0, up to 1"),
        (bl.MASOBA(damping=2.0), r"MASOBA\(damping=2.0.*above 0, up to 1"),
        (bl.MASOBA(momentum=0.0), r"MASOBA\(momentum=0.0.*above 0, up to 1"),
        (bl.AmIGO(hypergradient=Tracked(steps=0)), r"Tracked\(steps=0\).*1 or more"),
        (bl.SPABA(refresh_batch=0), r"SPABA\(refresh_batch=0\).*1 or more"),
        (bl.VRBO(refresh_batch=4), r"VRBO\(refresh_batch=4\): it needs at least the rows of a step's batch"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_options_are_refused(padded_ball, solver, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        bl.solve(padded_ball().problem, solver, jnp.zeros(2), steps=5, progress=False)


@pytest.mark.parametrize("solver", [bl.VRBO(), bl.SPABA(), bl.SRBA(), bl.SABA()], ids=lambda s: type(s).__name__)
def test_data_without_an_end_cannot_be_gone_through(solver):
    generator = bl.Generator(lambda p, key, size: p + jax.random.normal(key, (size, 1)), jnp.zeros(()))
    task = bl.Task(generator, generator, y=jnp.zeros(1))
    f = lambda x, y, batch: jnp.mean((y - batch) ** 2) + jnp.sum(x**2)  # noqa: E731
    problem = bl.Problem(f, f, [task], lower_batch=2, upper_batch=2)
    with pytest.raises(ValueError, match="a Generator is infinite"):
        bl.solve(problem, solver, jnp.zeros(2), steps=5, progress=False)


def sum_of_squares(x, y, batch):
    return jnp.mean(batch) * (jnp.sum(y**2) + jnp.sum(x**2))


@pytest.mark.parametrize("solver", [bl.STABLE(), bl.MORBiT(hypergradient=Exact())], ids=["STABLE", "Exact"])
def test_matrices_that_would_not_fit_are_refused_before_anything_is_compiled(solver):
    task = bl.Task(jnp.ones((1, 1)), jnp.ones((1, 1)), y=jnp.zeros(60_000))
    problem = bl.Problem(sum_of_squares, sum_of_squares, [task])
    with pytest.raises(ValueError, match=r"GB.*use"):
        bl.solve(problem, solver, jnp.zeros(10), steps=5, progress=False)


def test_large_matrices_are_warned_of():
    task = bl.Task(jnp.ones((1, 1)), jnp.ones((1, 1)), y=jnp.zeros(10_000))
    problem = bl.Problem(sum_of_squares, sum_of_squares, [task])
    with pytest.warns(UserWarning, match=r"STABLE.*needs 3.2 GB: use bl.MORBiT"):
        bl.STABLE().check_size(problem, jnp.zeros(10), PerTask((jnp.zeros((1, 10_000)),)))


def test_tables_that_would_not_fit_are_refused():
    task = bl.Task(jnp.ones((4, 1)), jnp.ones((4, 1)), y=jnp.zeros(2))
    problem = bl.Problem(sum_of_squares, sum_of_squares, [task], lower_batch=1, upper_batch=1)
    x = np.broadcast_to(np.float32(0), 2_000_000_000)  # takes no memory itself
    with pytest.raises(ValueError, match=r"SABA.*GB.*SPABA"):
        bl.SABA().check_size(problem, x, PerTask((jnp.zeros((1, 2)),)))
