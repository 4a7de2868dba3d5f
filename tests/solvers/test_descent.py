"""Descent: closed forms, a loss that never rises, and an end by itself."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.points import solve_lower
from every_solver import every


def clinics(seed=0, n=4, constraint=None):
    """README's example."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, 8)) * (rng.random((n, 8)) < 0.4)

    def patients(clinic, count):
        measured = rng.normal(size=(count, 8))
        return measured, measured @ truth[clinic] + 0.5 * rng.normal(size=count)

    tasks = [bl.Task(train=patients(i, 12 + i), validation=patients(i, 40)) for i in range(n)]
    return bl.Problem(validation_loss, training_loss, tasks, constraint=constraint)


def validation_loss(x, y, batch):
    measured, outcome = batch
    return jnp.mean((measured @ y - outcome) ** 2)


def training_loss(x, y, batch):
    return validation_loss(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def run(problem, solver=bl.Descent(), steps=2000, **options):  # noqa: B008
    return bl.solve(problem, solver, jnp.zeros(8), jnp.zeros(8), steps=steps, progress=False, **options)


def bounded(padded_ball):
    known = bl.problems.bounded_ball()
    padded = padded_ball(ball=known)
    return padded._replace(problem=padded.problem.replace(constraint=known.problem.constraint))


KNOWN = {  # of one group where nothing else is asked, as every group is compiled
    "opposed slopes": lambda _: bl.problems.opposed_slopes(),
    "two shapes": lambda padded_ball: padded_ball(sizes=(4, 4, 4, 5)),
    "active bound": bounded,
    "noisy rows": lambda padded_ball: padded_ball(ball=bl.problems.noisy_ball()),
    "hyperparameter": lambda _: bl.problems.shrinkage(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_it_ends_by_itself_at_the_solution(padded_ball, name):
    known = KNOWN[name](padded_ball)
    result = bl.solve(known.problem, bl.Descent(tolerance=1e-7), known.x, steps=2000, progress=False)
    assert result.status == "converged"
    assert result.steps < 500  # how many short moves come before rounding ends an attempt differs with the processor
    np.testing.assert_allclose(result.worst, known.value, rtol=1e-5)
    np.testing.assert_allclose(result.x, known.solution, atol=1e-3)
    np.testing.assert_allclose(result.weights, known.weights, atol=1e-2)


@pytest.mark.parametrize("seed", range(3))
def test_the_true_worst_loss_never_rises(seed):
    problem, seen = clinics(seed), []
    run(problem, steps=60, every=1, callback=lambda row: seen.append(row["x"]) and None)
    y = problem.starting_y(jnp.zeros(8), jax.random.key(0))
    worst = [float(np.max(solve_lower(problem, x, y).losses)) for x in seen]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(worst))
    assert worst[-1] < 0.75 * worst[0]


CONSTRAINTS = {
    "Box": bl.constraints.Box(-2.0, 1.0),
    "Ball": bl.constraints.Ball(3.0),
    "NonNegative": bl.constraints.NonNegative(),
    "Simplex": bl.constraints.Simplex(2.0),
}


@pytest.mark.parametrize("name", every(CONSTRAINTS, quick=("Box", "Simplex")))
def test_with_a_constraint_it_ends_at_a_stationary_point(name):
    constraint = CONSTRAINTS[name]
    problem = clinics(1, constraint=constraint)
    start = constraint.project(jnp.zeros(8))
    solver = bl.Descent(tolerance=1e-6)
    result = bl.solve(problem, solver, start, jnp.zeros(8), steps=2000, progress=False)
    assert result.status == "converged"
    np.testing.assert_allclose(result.x, constraint.project(result.x), atol=1e-9)
    certificate = bl.certify(problem, result, descent=0)
    assert certificate.residual < 1e-4
    assert certificate.weights_gap < 1e-4


def test_the_weights_are_multipliers():
    problem = clinics(2)
    result = run(problem, bl.Descent(tolerance=1e-6))
    certificate = bl.certify(problem, result, descent=0)
    assert certificate.residual < 1e-5
    assert certificate.weights_gap < 1e-5
    np.testing.assert_allclose(result.weights.sum(), 1, rtol=1e-6)


def mean_of(losses, fraction):
    """The mean over the worst fraction, of which there is a whole number here."""
    return np.sort(losses)[-round(fraction * len(losses)) :].mean()


BASELINE = [0.3, 0.2, 0.1, 0.4]
FIRST = [  # the largest, a mean, bounded weights, scores that are not losses, and fewer scores than tasks
    (bl.weightings.SimplexAscent(), np.max),
    (bl.weightings.Average(), np.mean),
    (bl.weightings.CVaR(0.5), lambda losses: mean_of(losses, 0.5)),
    (bl.weightings.Ratio(BASELINE), lambda losses: np.max(losses / BASELINE)),
    (bl.weightings.Folds(2), lambda losses: np.max(losses.reshape(2, 2).mean(axis=0))),
]
OTHERS = [
    (bl.weightings.Fixed((0.7, 0.1, 0.1, 0.1)), lambda losses: losses @ [0.7, 0.1, 0.1, 0.1]),
    (bl.weightings.Regret(BASELINE), lambda losses: np.max(losses - BASELINE)),
    (bl.weightings.Watched(2), lambda losses: np.max(losses[:2])),
]


@pytest.mark.parametrize("by", [FIRST, pytest.param(FIRST + OTHERS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_each_weighting_has_its_own_objective_lowest(by):
    """By the objective of each of them, its own solution is the best of all."""
    problem = clinics(3)
    found = [np.asarray(run(problem, bl.Descent(weighting=weighting)).losses) for weighting, _ in by]
    for i, (_, objective) in enumerate(by):
        reached = [float(objective(losses)) for losses in found]
        assert reached[i] <= min(reached) * 1.01


def test_a_kink_in_x_does_not_hold_it():
    """phi(x) = |x_1| + x_2^2 / 2 + ..., through a lower problem with a kink in x: x slides along it."""

    def lower(x, y, batch):
        return jnp.sum((y - jnp.array([10 * jax.nn.relu(x[0]) + jax.nn.relu(-x[0]), x[1]])) ** 2)

    def upper(x, y, batch):
        return y[0] + (y[1] - 3) ** 2 / 2 + 0.01 * jnp.sum(batch)

    problem = bl.Problem(upper, lower, [bl.Task(jnp.zeros(1), jnp.ones(1))])
    start = jnp.array([1.0, -1.0])
    result = bl.solve(problem, bl.Descent(), start, jnp.zeros(2), steps=2000, progress=False)
    np.testing.assert_allclose(result.x, [0.0, 3.0], atol=1e-2)


def test_large_y_is_solved_by_products():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(30, 600)) / 10, rng.normal(size=30)) for _ in range(4)]

    def loss(x, y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2)

    def penalised(x, y, batch):
        return loss(x, y, batch) + jnp.exp(x) * jnp.sum(y**2)

    tasks = [bl.Task(train=rows[i], validation=rows[i + 1]) for i in (0, 2)]
    problem = bl.Problem(loss, penalised, tasks)
    result = bl.solve(problem, x=jnp.zeros(()), y=jnp.zeros(600), steps=200, progress=False)
    assert result.status == "converged"
    assert "dense=512" in result.message
    assert "ConjugateGradient" in result.message
    exact = solve_lower(problem, result.x, problem.starting_y(jnp.zeros(600), jax.random.key(0)))
    np.testing.assert_allclose(result.losses, exact.losses, rtol=1e-4)


def test_lbfgs_ends_where_newton_does():
    problem = clinics(4)
    one, other = run(problem), run(problem, bl.Descent(lower=bl.lower.LBFGS()))
    np.testing.assert_allclose(one.worst, other.worst, rtol=1e-2)


def test_a_generator_is_refused():
    def sample(parameters, key, size):
        return jax.random.normal(key, (size,)) + parameters

    tasks = [bl.Task(bl.Generator(sample, 1.0), bl.Generator(sample, 2.0))]
    problem = bl.Problem(lambda x, y, b: jnp.mean((y - b) ** 2), lambda x, y, b: jnp.mean((y - x - b) ** 2), tasks,
                         lower_batch=4, upper_batch=4)  # fmt: skip
    with pytest.raises(ValueError, match="Generator"):
        bl.solve(problem, bl.Descent(), jnp.zeros(()), jnp.zeros(()), steps=10, progress=False)


@pytest.mark.parametrize(("option", "value"), [("tolerance", -1.0), ("lower", 3), ("hypergradient", bl.hypergradients)])
def test_wrong_options_are_named(option, value):
    with pytest.raises((TypeError, ValueError), match=option):
        run(clinics(), bl.Descent(**{option: value}), steps=5)


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path):
    problem = clinics(5)
    whole = run(problem, steps=40)

    def fail(row):
        assert row["step"] < 16

    with pytest.warns(RuntimeWarning, match="callback"):
        half = run(problem, steps=40, checkpoint=tmp_path, callback=fail)
    assert half.status == "callback failed"
    again = run(problem, steps=40, checkpoint=tmp_path, resume=True)
    assert again.steps == whole.steps
    np.testing.assert_array_equal(again.x, whole.x)


def test_an_x_that_runs_off_is_named_and_harmless():
    """y_2 is best at 0, and its penalty exp(x_2) has no optimum but infinity."""

    def lower(x, y, batch):
        return jnp.sum((y - 1) ** 2 + jnp.exp(x) * y**2) + 0.0 * jnp.sum(batch)

    def upper(x, y, batch):
        return (y[0] - 0.5) ** 2 + y[1] ** 2 + jnp.mean(batch)

    problem = bl.Problem(upper, lower, [bl.Task(jnp.zeros(1), jnp.ones(1))])
    result = bl.solve(problem, x=jnp.array([0.5, 0.0]), y=jnp.zeros(2), steps=2000, progress=False)
    assert result.status == "converged"
    assert "x ran off: x[1] from 0 to " in result.message
    assert "x[0]" not in result.message
    assert "bl.constraints.Box" in result.summary()
    np.testing.assert_allclose(result.worst, 1.0, rtol=1e-3)


def test_an_x_that_went_far_for_a_reason_is_not_said_to_run_off():
    """The only optimum is x = 10, four sizes and more from the start; there every slope is zero."""

    def lower(x, y, batch):
        return jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch)

    def upper(x, y, batch):
        return jnp.mean((y - batch) ** 2) + 1

    problem = bl.Problem(upper, lower, [bl.Task(jnp.zeros(1), jnp.full(1, b)) for b in (9.0, 11.0)])
    result = bl.solve(problem, x=jnp.zeros(1), y=jnp.zeros(1), steps=2000, progress=False)
    np.testing.assert_allclose(result.x, 10, atol=1e-2)
    assert "ran off" not in result.message


def test_a_weighting_without_a_set_of_weights_is_refused():
    @bl.part
    class Tempered(bl.weightings.Weighting):
        lr = 1.0

        def init(self, n, dtype):
            return jnp.full(n, 1 / n, dtype), ()

        def update(self, weights, losses, state, rate):
            return jax.nn.softmax(losses), state

    for weighting in (Tempered(), bl.weightings.Watched(3, Tempered())):
        with pytest.raises(ValueError, match=r"Descent\(weighting=.*Tempered.*`bounds`"):
            run(clinics(), bl.Descent(weighting=weighting))
