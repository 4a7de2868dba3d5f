"""The certificate: zero at solutions, and the closed form away from them."""

import dataclasses
import functools
from types import SimpleNamespace as Point

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.problem import initial_point
from bilevel.problem.constraints import Box
from bilevel.problem.per_task import PerTask
from bilevel.studies.problems.closed_form import CENTRES, MAPS
from bilevel.weightings import Ratio, Regret, SimplexAscent, UpperBound

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
INF = float("inf")

# Constraints of one kind, so that both compile once.
BALL = bl.problems.enclosing_ball(Box(-INF, jnp.array([INF, INF])))
BALLS = {"free": BALL, "bounded": bl.problems.bounded_ball()}
SIZE = 5  # of every y, beyond 2 + i entries for task i padded: all tasks are one group then, which compiles faster


@pytest.fixture(scope="module", params=BALLS)
def known(request, padded_ball):
    ball = BALLS[request.param]
    padded = padded_ball(ball=ball)
    return padded._replace(problem=padded.problem.replace(constraint=ball.problem.constraint))


def ball_responses(x):
    """y_i* = B_i x."""
    return np.stack([np.pad(np.array(B, float) @ np.asarray(x), (0, SIZE - len(B))) for B in MAPS])


# ---------------------------------------------------------------- closed forms


def test_at_the_solution_all_gaps_are_zero(known):
    y = PerTask((jnp.array(ball_responses(known.solution)),))
    point = Point(x=jnp.array(known.solution), y=y, weights=known.weights)
    found = bl.certify(known.problem, point)
    assert found.converged
    assert max(found.x_gap, found.y_gap, found.weights_gap, found.residual) < 1e-10
    assert_close(found.losses.max(), known.value, atol=1e-12)
    assert_close(found.rho, 2, atol=1e-6)  # F is quadratic with identity Hessian
    assert "All inner solves converged." in str(found)
    assert found.stationary
    assert_close(found.gain, 0, atol=1e-9)
    assert "x is stationary" in str(found)


@pytest.mark.parametrize("rho", [None, 0.7])
def test_away_from_it_the_gaps_are_those_of_a_quadratic(known, rho):
    """F(u, w) = |u - m|^2 / 2 + constant with m = sum_i w_i p_i, so x_hat = proj((rho x + m) / (rho + 1))."""
    x, weights = np.array([0.5, -1.5]), np.array([0.1, 0.5, 0.3, 0.1])
    away = np.array([[0.1 * (i + 1) * (k < 2 + i) for k in range(SIZE)] for i in range(4)])
    y = PerTask((jnp.array(ball_responses(x) + away),))
    found = bl.certify(known.problem, Point(x=jnp.array(x), y=y, weights=weights), rho)

    p = np.array(CENTRES)
    m, losses = weights @ p, np.sum((x - p) ** 2, axis=1) / 2
    bound = np.asarray(known.problem.constraint.upper)
    rho = 2.0 if rho is None else rho
    x_hat = np.minimum((rho * x + m) / (rho + 1), bound)
    assert found.converged
    assert_close(found.rho, rho, atol=1e-6)
    assert_close(found.proximal_point, x_hat, atol=1e-6 if rho == 2 else 1e-10)
    assert_close(found.x_gap, np.sum((x_hat - x) ** 2), atol=1e-6 if rho == 2 else 1e-9)
    assert_close(found.y_gaps, [np.sum(move**2) for move in away], atol=1e-10)
    assert_close(found.y_gap, 5 * 0.4**2, atol=1e-10)
    assert found.worst_task == "task 3"
    assert_close(found.losses, losses, atol=1e-12)
    assert_close(found.weights_gap, losses.max() - weights @ losses, atol=1e-12)
    assert_close(found.residual, np.linalg.norm(x - np.minimum(m, bound)), atol=1e-12)
    assert_close(found.gain, 1 - known.value / losses.max(), atol=1e-4)  # a descent arrives
    assert not found.stationary
    assert "x is not stationary" in str(found)
    untried = bl.certify(known.problem, Point(x=jnp.array(x), y=y, weights=weights), rho, descent=0)
    assert np.isnan(untried.gain)
    assert "stationary" not in str(untried)


# ---------------------------------------------------------------- other objectives than the worst loss

UNITS, BASELINE = np.array([1.0, 2.0, 0.8, 1.25]), np.array([1.3, 0.0, 0.4, 0.2])
COMPARED = {  # c, b and the weighting that compares the tasks by l_i / c_i - b_i
    "regret": (np.ones(4), BASELINE, Regret(BASELINE)),
    "ratio": (UNITS, np.zeros(4), Ratio(UNITS)),
    "regret of ratios": (UNITS, BASELINE, Ratio(UNITS, Regret(BASELINE))),
    "upper bound": (np.ones(4), -2 * BASELINE, UpperBound(BASELINE, 2.0)),
}


@pytest.mark.parametrize("name", COMPARED)
def test_the_gaps_are_of_the_objective_that_was_minimised(known, name):
    """F(u, w) = a |u - m|^2 / 2 + constant with a = sum_i w_i / c_i and a m = sum_i (w_i / c_i) p_i."""
    units, shift, weighting = COMPARED[name]
    x, weights, rho = np.array([0.5, -1.5]), np.array([0.1, 0.5, 0.3, 0.1]), 0.7
    y = PerTask((jnp.array(ball_responses(x)),))
    point = Point(x=jnp.array(x), y=y, weights=weights)
    found = bl.certify(known.problem, point, rho, weighting=weighting, descent=0)

    p, counted = np.array(CENTRES), weights / units
    a, pulled, losses = counted.sum(), counted @ p, np.sum((x - p) ** 2, axis=1) / 2
    compared = losses / units - shift
    bound = np.asarray(known.problem.constraint.upper)
    x_hat = np.minimum((rho * x + pulled) / (rho + a), bound)
    assert found.converged
    assert found.compares == name
    assert_close(found.compared, compared, atol=1e-12)
    assert_close(found.losses, losses, atol=1e-12)
    assert_close(found.weights_gap, compared.max() - weights @ compared, atol=1e-12)
    assert_close(found.proximal_point, x_hat, atol=1e-9)
    assert_close(found.x_gap, np.sum((x_hat - x) ** 2), atol=1e-9)
    assert_close(found.residual, np.linalg.norm(x - np.minimum(x - (a * x - pulled), bound)), atol=1e-12)
    assert f"worst {name} {found.compared.max():.5g}" in str(found)


@pytest.mark.parametrize("name", ["regret", "ratio"])
def test_a_run_is_certified_by_what_it_compared(padded_ball, name, tmp_path):
    """All gaps vanish where the regrets or ratios were minimised; as a certificate of the losses they do not."""
    ball, weighting = padded_ball(), dataclasses.replace(COMPARED[name][2], weighting=SimplexAscent(0.02))
    solver = bl.MORBiT(0.1, 0.4, Exact(), weighting)
    result = bl.solve(ball.problem, solver, ball.x, steps=2500, progress=False)
    found = bl.certify(ball.problem, result)
    assert max(found.x_gap, found.y_gap, found.weights_gap, found.residual) < 1e-5
    again = bl.certify(ball.problem, result.last, weighting=weighting, descent=0)
    assert again.weights_gap == found.weights_gap
    plain = bl.certify(ball.problem, result.last, descent=0)
    assert (plain.compares, found.compares) == ("loss", name)
    assert plain.weights_gap > 0.1
    result.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"weighting=None\): the result was loaded.* {name.capitalize()}: give"):
        bl.certify(ball.problem, loaded)
    again = bl.certify(ball.problem, loaded, weighting=weighting, descent=0)
    assert again.weights_gap == found.weights_gap


def test_a_weighting_of_another_number_of_tasks_is_refused(padded_ball):
    ball = padded_ball()
    point = Point(x=ball.x, y=PerTask((jnp.zeros((4, SIZE)),)), weights=np.full(4, 0.25))
    with pytest.raises(ValueError, match=r"Regret.*4 numbers, one for each task"):
        bl.certify(ball.problem, point, weighting=Regret([1.0]))
    with pytest.raises(TypeError, match=r"certify\(weighting='Regret'\): it needs a weighting object"):
        bl.certify(ball.problem, point, weighting="Regret")


def shrinkage_losses(x):
    s = 1 / (1 + np.exp(x))
    return np.array([(s - 1) ** 2, (2 * s) ** 2]) / 2


SHRINKAGE = bl.problems.shrinkage().problem
ZEROS = PerTask((jnp.zeros(2),))  # both y


@pytest.mark.parametrize(("x", "share"), [(0.0, 0.3), (1.5, 0.95)], ids=["bends up", "bends down"])
def test_the_proximal_map_where_nothing_is_quadratic(x, share):
    """Against a scan of the closed form."""
    weights = np.array([share, 1 - share])
    found = bl.certify(SHRINKAGE, Point(x=jnp.array(x), y=ZEROS, weights=weights), descent=0)
    h = 1e-4
    bend = weights @ (shrinkage_losses(x + h) - 2 * shrinkage_losses(x) + shrinkage_losses(x - h)) / h**2
    assert found.converged
    assert (bend > 0) == (x == 0)
    assert_close(found.rho, 2 * abs(bend), atol=1e-6)
    u = x + np.linspace(-3, 3, 600_001)
    x_hat = u[np.argmin(found.rho / 2 * (u - x) ** 2 + weights @ shrinkage_losses(u))]
    assert_close(found.proximal_point, x_hat, atol=2e-5)
    assert_close(found.y_gap, max((np.array([1, 2]) / (1 + np.exp(x))) ** 2), atol=1e-9)
    assert found.worst_task == "task 1"


def test_a_rho_below_the_weak_convexity_is_told():
    point = Point(x=jnp.array(2.0), y=ZEROS, weights=np.array([1.0, 0.0]))  # l_1'' = -0.06 here
    found = bl.certify(SHRINKAGE, point, rho=1e-3, descent=0)
    assert not found.converged
    assert not found.x_converged
    assert "larger rho" in str(found)


# ---------------------------------------------------------------- all that a problem may be made of


def predict(x, y, batch):
    return batch["input"] @ (x["scale"] * y["slope"]) + y["offset"]


def square(x, y, batch):
    return jnp.mean((predict(x, y, batch) - batch["target"]) ** 2)


def smooth_absolute(x, y, batch):
    return jnp.mean(jnp.sqrt((predict(x, y, batch) - batch["target"]) ** 2 + 0.1))


def ridge(x, y, batch):
    return square(x, y, batch) + jnp.exp(x["penalty"]) * (jnp.sum(y["slope"] ** 2) + y["offset"] ** 2)


def rows(seed, count):
    table = jnp.array(np.random.default_rng(seed).normal(size=(count, 3)))
    return {"input": table[:, :2], "target": table[:, 2] + table[:, 0]}


def mixed():
    """Ragged sizes, two kinds of tasks that interleave, pytrees, a constraint of parts, batches."""
    tasks = [
        bl.Task(rows(i, 5 + i), rows(9 + i, 4 + i), upper=smooth_absolute if i == 1 else None, name=name)
        for i, name in enumerate(["a", "b", "c"])
    ]
    box = bl.constraints.Product({"scale": Box(0.5, 1.2), "penalty": bl.constraints.Unconstrained()})
    problem = bl.Problem(square, ridge, tasks, constraint=box, lower_batch=2, upper_batch=2)
    x = {"scale": jnp.array([0.5, 1.0]), "penalty": jnp.array(-1.0)}
    return problem, x, PerTask(tuple({"slope": jnp.zeros((n, 2)), "offset": jnp.zeros(n)} for n in (2, 1)))


def by_hand(x, weights):
    """F and every y_i* (ridge regressions), by dense solves that JAX differentiates."""
    ys, total = [], 0.0
    for i, (upper, weight) in enumerate(zip([square, smooth_absolute, square], weights, strict=True)):
        train, validation = rows(i, 5 + i), rows(9 + i, 4 + i)
        A = jnp.concatenate([train["input"] * x["scale"], jnp.ones((len(train["target"]), 1))], axis=1)
        gram = A.T @ A / len(A) + jnp.exp(x["penalty"]) * jnp.eye(3)
        y = jnp.linalg.solve(gram, A.T @ train["target"] / len(A))
        y = {"slope": y[:2], "offset": y[2]}
        ys.append(y)
        total = total + weight * upper(x, y, validation)
    return total, ys


def test_ragged_and_unlike_tasks_pytrees_constraints_and_batches():
    problem, x, y = mixed()
    weights = np.array([0.2, 0.5, 0.3])
    found = bl.certify(problem, Point(x=x, y=y, weights=weights))
    assert found.converged, str(found)

    with jax.numpy_rank_promotion("allow"):
        gradients = jax.jit(jax.grad(lambda x: by_hand(x, weights), has_aux=True))
        (gradient, ys), (there, _) = gradients(x), gradients(found.proximal_point)
    assert_close(found.y_gaps, [np.sum(ravel_pytree(y)[0] ** 2) for y in ys], atol=1e-9)
    project = problem.constraint.project
    moved = project(jax.tree.map(jnp.subtract, x, gradient))
    flat = lambda tree: np.asarray(ravel_pytree(tree)[0])  # noqa: E731
    assert_close(found.residual, np.linalg.norm(flat(x) - flat(moved)), atol=1e-9)
    # x_hat is where a projected gradient step of the proximal objective leads nowhere.
    slope = jax.tree.map(lambda g, u, x: g + found.rho * (u - x), there, found.proximal_point, x)
    stays = project(jax.tree.map(jnp.subtract, found.proximal_point, slope))
    assert_close(flat(stays), flat(found.proximal_point), atol=1e-7)
    assert found.x_gap > 1e-4


def test_single_precision_stays_single():
    point = Point(x=jnp.array(0.5), y=ZEROS, weights=np.array([0.3, 0.7]))
    single = jax.tree.map(lambda a: a.astype(np.float32) if a.dtype == float else a, (SHRINKAGE, vars(point)))
    found = bl.certify(single[0], Point(**single[1]), rho=3.0)
    fine = bl.certify(SHRINKAGE, point, rho=3.0, descent=0)
    assert found.converged, str(found)
    assert found.proximal_point.dtype == found.losses.dtype == np.float32
    for name in ("x_gap", "y_gap", "weights_gap", "residual"):
        assert_close(getattr(found, name), getattr(fine, name), atol=1e-5)


def centre(parameters, key, size):
    return parameters + jax.random.normal(key, (size,))


def near(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def near_scaled(x, y, batch):
    return jnp.mean((y - x * batch) ** 2) / 2


def test_generators_are_looked_at_on_their_fixed_sample():
    tasks = [bl.Task(bl.Generator(centre, c), bl.Generator(centre, c), y=jnp.array(0.0)) for c in (1.0, 2.0)]
    problem = bl.Problem(near, near_scaled, tasks, lower_batch=3, upper_batch=3)
    found = bl.certify(problem, Point(x=jnp.array(0.5), y=ZEROS, weights=np.array([0.5, 0.5])))
    noise = [np.asarray(jax.random.normal(jax.random.key(seed), (1000,))) for seed in (0, 1)]  # of train, validation
    y = 0.5 * np.array([c + noise[0].mean() for c in (1.0, 2.0)])
    assert found.converged
    assert_close(found.y_gaps, y**2, atol=1e-10)
    assert_close(found.losses, [np.mean((y[i] - c - noise[1]) ** 2) / 2 for i, c in enumerate((1.0, 2.0))], atol=1e-10)


# ---------------------------------------------------------------- lower problems that have no solution, or many


def flat_in_one(x, y, batch):
    return jnp.mean((y[0] - x * batch) ** 2) + 0 * y[1]


def endless(x, y, batch):
    return jnp.mean(jax.nn.softplus(-(y - x) * batch))


@pytest.mark.parametrize(
    ("lower", "y", "said"),
    [
        (flat_in_one, jnp.zeros((1, 2)), r"(?s)'plain'.*not strongly convex.*smallest curvature 0"),
        (endless, jnp.zeros((1,)), r"(?s)'plain' was not solved"),
    ],
    ids=["many solutions", "none"],
)
def test_a_lower_problem_without_its_one_solution_is_told(lower, y, said):
    def upper(x, y, batch):
        return jnp.mean((jnp.sum(y) - batch) ** 2) + x**2

    problem = bl.Problem(upper, lower, [bl.Task(jnp.ones(3), jnp.ones(2), name="plain")])
    found = bl.certify(problem, Point(x=jnp.array(1.0), y=PerTask((y,)), weights=np.ones(1)), iterations=3)
    assert not found.converged
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(str(found))


# ---------------------------------------------------------------- what may be given


@pytest.fixture(scope="module")
def solved():
    solver = bl.MORBiT(0.5, 0.4, weighting=bl.weightings.SimplexAscent(0.05))
    return SHRINKAGE, bl.solve(SHRINKAGE, solver, jnp.array(0.0), steps=2000, progress=False)


def at(result, **changes):
    return Point(**{"x": result.x, "y": result.y, "weights": result.weights, **changes})


def test_a_result_is_its_last_iterate_and_nearly_solved(solved):
    problem, result = solved
    found, again, best = (bl.certify(problem, point, descent=0) for point in (result, result.last, result.best))
    assert (found.x_gap, found.y_gap, found.weights_gap) == (again.x_gap, again.y_gap, again.weights_gap)
    assert max(found.x_gap, found.y_gap, found.weights_gap) < 1e-2
    assert found.converged
    assert best.converged


def test_a_result_of_the_same_tasks_in_another_order(solved):
    problem, result = solved
    (group,) = problem.groups
    tasks = [initial_point.task_of(problem, group, k) for k in (1, 0)]
    other = bl.Problem(group.upper, group.lower, tasks)
    point = at(result, weights=result.weights[::-1])
    found, there = bl.certify(problem, result, descent=0), bl.certify(other, point, descent=0)
    assert_close(there.y_gaps, found.y_gaps[::-1], atol=1e-12)
    assert_close(there.x_gap, found.x_gap, atol=1e-12)


@pytest.mark.parametrize("rho", [0, -1.0, INF, float("nan"), "large", True])
def test_a_rho_that_is_not_positive(solved, rho):
    with pytest.raises(ValueError, match=r"certify\(rho=.*positive number"):
        bl.certify(*solved, rho=rho)


def test_no_iterations(solved):
    with pytest.raises(ValueError, match=r"certify\(iterations=0.*1 or more"):
        bl.certify(*solved, iterations=0)


def test_what_is_not_a_problem_or_a_result(solved):
    problem, result = solved
    with pytest.raises(TypeError, match=r"problem=.*Result.*bl\.Problem"):
        bl.certify(result, problem)
    with pytest.raises(TypeError, match=r"result=.*ArrayImpl.*what bl\.solve returns"):
        bl.certify(problem, result.x)


def test_a_result_of_another_problem(solved):
    problem, result = solved
    with pytest.raises(ValueError, match=r"result=.*does not fit this problem.*2 weights.*4 tasks"):
        bl.certify(BALL.problem, result)
    wide = PerTask(tuple(jnp.zeros((2, 5)) for _ in problem.groups))
    with pytest.raises(ValueError, match=r"does not fit this problem.*y of task 'task 0' is float64\[5\].*float64\[\]"):
        bl.certify(problem, at(result, y=wide))
    ys = PerTask(tuple(jnp.zeros((1, len(B))) for B in MAPS))
    with pytest.raises(ValueError, match=r"(?s)does not fit this problem.*does not fit x, which is float64\[3\]"):
        bl.certify(BALL.problem, Point(x=jnp.zeros(3), y=ys, weights=BALL.weights))
    with pytest.raises(ValueError, match=r"does not fit this problem.*other tasks.*'north'"):
        bl.certify(problem, at(result, y={"north": jnp.zeros(())}))
    with pytest.raises(ValueError, match=r"does not fit this problem.*no entry for task 'task 1'"):
        bl.certify(problem, at(result, y={"task 0": jnp.zeros(())}))
    with pytest.raises(ValueError, match=r"does not fit this problem.*x has NaN"):
        bl.certify(problem, at(result, x=jnp.array(jnp.nan)))
