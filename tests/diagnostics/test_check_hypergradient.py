"""Estimators against the truth: biases and variances that the theory predicts, and wrong estimators caught."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._core.module import leaf, part
from bilevel.hypergradients import ConjugateGradient, Direct, Exact, Neumann, RandomNeumann, Tracked, Unrolled
from bilevel.hypergradients.hypergradient import Implicit
from bilevel.hypergradients.neumann import Series, start_series, sum_series

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)

# ---------------------------------------------------------------- the truth itself


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_the_exact_hypergradient_is_the_slope_of_the_loss(x):
    known = bl.problems.shrinkage()
    report = bl.check_hypergradient(known.problem, jnp.array(x), hypergradient=Exact(), samples=2)
    s, c, t = 1 / (1 + np.exp(x)), np.array([1, 2]), np.array([1, 0])
    slope = -c * s * (1 - s) * (c * s - t)
    assert_close(report.tasks.exact[:, 0], slope, atol=1e-12)
    assert_close(report.tasks.mean[:, 0], slope, atol=1e-12)
    assert_close(report.differences.measured[:, 0], slope, atol=1e-8)
    assert np.all(report.differences.relative_error < 1e-8)
    assert_close(report.average.exact, slope.mean(), atol=1e-12)
    assert report.ok
    assert "No bias" in str(report)


# ---------------------------------------------------------------- quadratics with chosen Hessians

B = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 1.0]])  # x has 3 numbers, y has 2
TARGETS = np.array([[1.0, -2.0], [0.5, 3.0]])
X = jnp.array([0.5, -1.0, 2.0])
Y_SOLVED = B @ np.asarray(X)


def upper(x, y, batch):
    return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) / 2


def lower(x, y, batch):
    gap = y - jnp.array(B) @ x
    return jnp.mean(batch @ gap**2) / 2


@functools.cache
def quadratics(*curvatures):
    """Two tasks with g = (y - B x)' diag(a) (y - B x) / 2 and f = |y - t|^2 / 2; J = -B' A."""
    stack = bl.Task.stack(train=jnp.array(curvatures)[:, None], validation=jnp.array(TARGETS)[:, None])
    return bl.Problem(upper, lower, [stack])


def check(problem, hypergradient, **options):
    return bl.check_hypergradient(problem, X, jnp.zeros(2), hypergradient, **options)


PLAIN = ((1.0, 2.0), (0.5, 4.0))


def test_the_bias_of_a_series_is_what_is_left_of_it():
    """v misses A^-1 (I - lr A)^Q f_y, so the estimate f_x - J v is off by J times that."""
    terms, lr = 5, 0.2
    report = check(quadratics(*PLAIN), Neumann(terms, lr=lr), samples=3)
    for i, a in enumerate(np.array(PLAIN)):
        left = (1 - lr * a) ** terms / a * (Y_SOLVED - TARGETS[i])
        assert_close(report.tasks.mean[i] - report.tasks.exact[i], -B.T @ (a * left), atol=1e-12)
        assert_close(report.tasks.exact[i], B.T @ (Y_SOLVED - TARGETS[i]), atol=1e-12)
    assert_close(report.tasks.variance, 0, atol=0)
    assert_close(report.tasks.bias, np.linalg.norm(report.tasks.mean - report.tasks.exact, axis=1), atol=0)
    assert not report.ok
    assert "Biased for 2 of 2" in report.verdict


@pytest.mark.parametrize("lr", [0.2, 0.5], ids=["slow", "at once"])
def test_the_variance_of_a_random_term(lr):
    """With A = a I: E |z|^2 = Q lr^2 (1 - r^2Q) / (1 - r^2) |f_y|^2 and E z = (1 - r^Q) / a f_y, r = 1 - lr a."""
    terms, a, samples = 6, 2.0, 20_000
    report = check(quadratics((a, a), (a, a)), RandomNeumann(terms, lr=lr), samples=samples)
    r = 1 - lr * a
    second, mean = terms * lr**2 * (1 - r ** (2 * terms)) / (1 - r**2), (1 - r**terms) / a
    for i in range(2):
        through = np.sum((a * B.T @ (Y_SOLVED - TARGETS[i])) ** 2)  # |J f_y|^2
        assert_close(report.tasks.variance[i], (second - mean**2) * through, rtol=0.05)
        wrong = np.linalg.norm(report.tasks.mean[i] - mean * a * report.tasks.exact[i])
        assert wrong < 4 * report.tasks.standard_error[i]
        assert_close(report.tasks.standard_error[i] ** 2 * samples, report.tasks.variance[i], rtol=0.1)


@part
class Wrong(Implicit):
    """A series with something wrong about it."""

    terms: int = 4
    lr: float = leaf(default=0.4)

    def check(self):
        pass

    def init(self, task, x, y, sample):
        return start_series(task, x, y, sample)

    def one_term(self, task, x, y, sample, p, factor):
        keep = lambda q: jnp.where(q == p, factor, 0.0)  # noqa: E731
        return sum_series(task, x, y, jnp.ones(()), sample, self.terms + 1, self.lr, keep)

    def draw(self, sample, first, last):
        return jax.random.randint(jax.random.fold_in(sample.key, 99), (), first, last + 1)


@part
class WithoutFactor(Wrong):
    def prepare(self, task, x, y, state, sample):
        return self.one_term(task, x, y, sample, self.draw(sample, 0, self.terms - 1), 1.0)


@part
class FromOne(Wrong):
    def prepare(self, task, x, y, state, sample):
        return self.one_term(task, x, y, sample, self.draw(sample, 1, self.terms), float(self.terms))


@part
class WithoutScale(Wrong):
    """Sum of r_1 to r_Q, neither scaled nor with r_0."""

    def prepare(self, task, x, y, state, sample):
        keep = lambda q: jnp.where(q > 0, 1 / self.lr, 0.0)  # noqa: E731
        summed = sum_series(task, x, y, jnp.ones(()), sample, self.terms + 1, self.lr, keep)
        return Series(summed.v, state.curvature)


@pytest.mark.parametrize("wrong", [WithoutFactor(), FromOne(), WithoutScale()], ids=lambda h: type(h).__name__)
def test_wrong_estimators_are_caught(wrong):
    report = check(quadratics((2.0, 2.0), (2.0, 2.0)), wrong, samples=2000)
    assert not report.ok
    assert np.all(report.biased)
    assert "Biased" in report.verdict


@pytest.mark.parametrize("right", [RandomNeumann(4, lr=0.4), Neumann(4, lr=0.4)], ids=repr)
def test_the_right_ones_are_not(right):
    report = check(quadratics((2.0, 2.0), (2.0, 2.0)), right, samples=2000)  # (1 - 0.8)^4: a bias of 0.2 %
    assert report.ok, report.verdict


def test_a_missing_factor_is_told_from_a_wrong_direction():
    report = check(quadratics((2.0, 2.0), (2.0, 2.0)), WithoutFactor(), samples=2000)
    assert "direction is right, its length 0.2" in report.verdict


# ---------------------------------------------------------------- estimators that carry a state


@pytest.mark.parametrize("carrying", [Tracked(), Tracked(0.02), ConjugateGradient(1)], ids=repr)
def test_a_state_is_settled_before_it_is_measured(carrying):
    """From v = 0, as the first sample has it, all three are far off."""
    report = check(quadratics(*PLAIN), carrying, samples=5)
    assert report.ok, report.verdict
    assert np.all(report.tasks.relative_error < 1e-7)


def test_unrolled_replays_as_many_steps_as_it_is_told():
    """Three steps of 1/L from y* are three terms of the series."""
    report = check(quadratics(*PLAIN), Unrolled(), samples=3, lower_steps=3)
    for i, a in enumerate(np.array(PLAIN)):
        left = (1 - a / a.max()) ** 3 * (Y_SOLVED - TARGETS[i])
        assert_close(report.tasks.mean[i] - report.tasks.exact[i], -B.T @ left, atol=1e-9)


@part
class Drifting(Direct):
    """Never comes to rest."""

    def init(self, task, x, y, sample):
        return jnp.zeros(())

    def prepare(self, task, x, y, state, sample):
        return state + 1.0

    def surrogate(self, task, x, y, state, sample):
        return state * jnp.sum(x)


def test_an_estimator_that_never_settles_is_told():
    report = check(quadratics(*PLAIN), Drifting(), samples=2)
    assert not report.ok
    assert "had not settled" in report.verdict


@part
class Exploding(Drifting):
    def init(self, task, x, y, sample):
        return jnp.ones(())

    def prepare(self, task, x, y, state, sample):
        return state * 1e30


def test_an_estimator_that_explodes_is_told():
    with np.errstate(all="ignore"):
        report = check(quadratics(*PLAIN), Exploding(), samples=2)
        assert not report.ok
        assert "infinite or NaN" in str(report)


# ---------------------------------------------------------------- batches


def along(x, y, batch):
    return jnp.mean(batch) * x + 0 * y


def around(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


def test_the_variance_of_a_batch_is_that_of_the_data_over_its_size():
    rows = jnp.array(np.random.default_rng(0).normal(size=(1, 40)))
    stack = bl.Task.stack(train=rows, validation=rows, y=jnp.zeros(1))
    problem = bl.Problem(along, around, [stack], lower_batch=5, upper_batch=5)
    report = bl.check_hypergradient(problem, jnp.array(1.0), hypergradient=Direct(), samples=20_000)
    assert_close(report.tasks.exact[0], [float(jnp.mean(rows))], atol=1e-12)
    assert_close(report.tasks.variance[0], float(jnp.var(rows)) / 5, rtol=0.05)
    assert report.tasks.bias[0] < 4 * report.tasks.standard_error[0]
    few = bl.check_hypergradient(problem, jnp.array(1.0), hypergradient=Direct(), samples=20)
    assert not few.ok
    assert "Too noisy to tell" in few.verdict


def test_many_numbers_and_borders_in_x():
    """Differences along random directions, between points of X; x lies on a corner of it."""
    points = jnp.array(np.random.default_rng(0).normal(size=(1, 3, 30)))

    def far(x, y, batch):
        return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1))

    def shrunk(x, y, batch):
        return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) + jnp.sum(jnp.exp(x) * y**2)

    stack = bl.Task.stack(train=points, validation=points[:, :2], y=jnp.zeros((1, 30)))
    problem = bl.Problem(far, shrunk, [stack], constraint=bl.constraints.NonNegative())
    report = bl.check_hypergradient(problem, jnp.zeros(30), hypergradient=Exact(), samples=2)
    assert report.differences.measured.shape == (1, 20)
    assert report.differences.relative_error[0] < 1e-4
    assert report.ok, report.verdict


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("samples", [0, 1, -3, 2.5, True])
def test_too_few_samples(samples):
    with pytest.raises(ValueError, match=r"check_hypergradient\(samples\)?=.*or more"):
        check(quadratics(*PLAIN), Exact(), samples=samples)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, ValueError, r"check_hypergradient\(seed=-1\).*0 or more"),
        ({"lower_steps": 0}, ValueError, r"check_hypergradient\(lower_steps=0\).*1 or more"),
        ({"tolerance": -0.1}, ValueError, r"check_hypergradient\(tolerance=-0.1\).*0 or more"),
        ({"hypergradient": Exact}, TypeError, r"check_hypergradient\(hypergradient=.*estimator object"),
        ({"hypergradient": Neumann(0)}, ValueError, r"Neumann\(terms=0\)"),
        ({"x": jnp.zeros(4)}, ValueError, r"(?s)task 'task 0' fails with x = float64\[4\]"),
        ({"y": None}, ValueError, r"y is missing: task 'task 0'"),
        ({"problem": None}, TypeError, r"check_hypergradient\(problem=.*NoneType.*bl\.Problem"),
    ],
    ids=lambda a: next(iter(a)) if isinstance(a, dict) else "",
)
def test_arguments_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        bl.check_hypergradient(**{"problem": quadratics(*PLAIN), "x": X, "y": jnp.zeros(2), **options})
