"""The theorem's rates and bounds, against values by hand, their exponents, and runs; the generalisation bounds."""

import dataclasses
import math
import re
from itertools import product
from operator import attrgetter

import numpy as np
import pytest

import bilevel as bl
from bilevel import theory

# opposed_slopes with curvatures 1 and 1, for x in [-1, 2]: l_1 = (x - 2)^2 / 2, l_2 = (2x + 1)^2 / 2.
SLOPES = theory.Constants(
    upper_lipschitz=5.0,
    upper_slope=5.0,
    upper_y_smoothness=1.0,
    loss_bound=12.5,
    loss_slope=10.0,
    lower_smoothness=1.0,
    strong_convexity=1.0,
    cross_bound=2.0,
    bias=0.0,
)
BENT = theory.Constants(
    upper_lipschitz=1.5,
    upper_slope=2.0,
    upper_x_smoothness=0.5,
    upper_y_smoothness=3.0,
    upper_cross_smoothness=0.75,
    weak_convexity=1.0,
    loss_bound=4.0,
    loss_slope=6.0,
    lower_smoothness=8.0,
    strong_convexity=2.0,
    cross_bound=4.0,
    cross_lipschitz=1.0,
    hessian_lipschitz=3.0,
    cross_lipschitz_in_x=0.5,
    hessian_lipschitz_in_x=0.25,
    lower_noise=0.5,
    upper_noise=2.0,
)
START = theory.Start(lower_gap=3.0, envelope=7.0, rho=6.0)
K = 2**15  # K^{-1/5} = 1/8


def slope(function, at, factor=10):
    return math.log(function(at * factor) / function(at)) / math.log(factor)


def test_derived_constants_by_hand():
    assert (SLOPES.response, SLOPES.direction_lipschitz, SLOPES.gradient_lipschitz, SLOPES.lower_limit) == (2, 2, 4, 1)
    assert BENT.response == 2
    assert BENT.direction_lipschitz == 0.5 + 3 * 2 + 2 * (1 / 2 + 3 * 4 / 4)
    assert BENT.gradient_lipschitz == 0.5 + (0.75 + BENT.direction_lipschitz) * 2 + 2 * (0.5 / 2 + 0.25 * 4 / 4)
    assert BENT.lower_limit == 2 / (64 * 1.25)
    assert BENT.upper_second_moment == 4 + 3 * 36


def test_the_lemma_is_tight_on_opposed_slopes():
    # The steepest y* is 2x and the most bent loss (2x + 1)^2 / 2.
    assert SLOPES.response == 2
    assert SLOPES.gradient_lipschitz == 4


def test_rates_by_hand():
    rates = theory.step_sizes(SLOPES, 4, K)
    np.testing.assert_allclose(rates, (1 / 512 / 16, 4 / 64, 2 / 512 / 25), rtol=1e-12)
    np.testing.assert_allclose(theory.step_sizes(SLOPES, 4, 1)[:2], (1 / 64, 1))  # the other terms of the minima


@pytest.mark.parametrize("constants", [SLOPES, BENT])
@pytest.mark.parametrize("steps", [1, 7, 100, 10**4, 10**9])
def test_x_is_slow_against_y(constants, steps):
    rates = theory.step_sizes(constants, 3, steps)
    limit = constants.strong_convexity / (16 * constants.response * constants.direction_lipschitz)
    assert rates.upper / rates.lower <= limit * (1 + 1e-12)


def test_claimed_bounds_by_hand():
    noisy = dataclasses.replace(SLOPES, lower_noise=0.5, upper_noise=2.0, weak_convexity=1.0)
    seen = theory.bounds(noisy, 4, K, START)
    A = 3 / 512 + 4 * 2**-21 + 1 / 4096 + 50 / 64 + 0.5 / 64 + 4 / 64
    weights = math.sqrt(2) * 25 / 64 + 5 * A
    x = 16 * 7 * 4 / (5 * 6 * 64) + 8 * 4 * A / 25 + 2 / 8192 * (304 + 12 * A) / 5
    np.testing.assert_allclose(seen, (A, weights, x), rtol=1e-12)


def test_mended_bounds_by_hand():
    noisy = dataclasses.replace(SLOPES, lower_noise=0.5, upper_noise=2.0, weak_convexity=1.0)
    seen = theory.mended_bounds(noisy, 4, K, START)
    A = 3 / 512 + 4 * 2**-21 + 2 * 12.5 / 4096 + 50 / 64 + 0.5 / 64 + 4 / 64
    weights = 25 / 512 + 12.5 / 64 + 10 * math.sqrt(A)
    drift = 4 * (2 / 512 / 25) * 12.5**2
    first = 4 / 5 * ((7 + 12.5) / K + drift) / (6 / 8192)
    x = first + 8 * 4 * A / 25 + 2 / 8192 * (304 + 12 * A) / 5
    np.testing.assert_allclose(seen, (A, weights, x), rtol=1e-12)


def test_where_the_claim_and_the_argument_differ():
    """Once K is large: Delta / mu_g against Delta, and how far the loss may fall, 2 B_l; b_0 in both."""
    claimed, mended = (b(BENT, 4, 1e12, START).y for b in (theory.bounds, theory.mended_bounds))
    lag = BENT.response / BENT.direction_lipschitz
    apart = 3 * (1 - 1 / 2) * 1e12**-0.6 + (2 * 4 - 1) * lag * 1e12**-0.8
    # The two differ by 1e-7 of themselves.
    assert mended - claimed == pytest.approx(apart, rel=1e-6)


def test_the_argument_is_silent_while_alpha_is_large():
    stiff = dataclasses.replace(SLOPES, upper_cross_smoothness=100.0)
    assert theory.mended_bounds(stiff, 4, 10, START) == (math.inf,) * 3
    assert theory.mended_bounds(stiff, 4, 10**6, START).y < math.inf


@pytest.mark.parametrize("constants", [SLOPES, BENT])
def test_exponents(constants):
    for k in range(3):
        claimed = lambda steps, n=5, k=k: theory.bounds(constants, n, steps, START)[k]  # noqa: E731
        assert slope(claimed, 1e30) == pytest.approx(-0.4, abs=0.01)
        assert slope(lambda n: theory.bounds(constants, n, 1e20, START)[k], 10**12) == pytest.approx(0.5, abs=0.01)  # noqa: B023
        assert all(claimed(10.0**j) >= claimed(10.0 ** (j + 1)) for j in range(12))
        assert claimed(1e4, 5) <= claimed(1e4, 6)
    mended = lambda steps, n=5: theory.mended_bounds(constants, n, steps, START)  # noqa: E731
    assert slope(lambda steps: mended(steps).y, 1e30) == pytest.approx(-0.4, abs=0.01)
    assert slope(lambda steps: mended(steps).weights, 1e40) == pytest.approx(-0.2, abs=0.01)
    # In n the noise, which does not grow with it, must be outweighed first, and not yet the sqrt(n) terms outweigh all.
    assert slope(lambda n: mended(1e60, n).weights, 10**10) == pytest.approx(0.25, abs=0.01)


def test_moving_weights_leave_a_floor_under_the_argument_for_x():
    floor = 32 * math.sqrt(4) * 12.5 * 2 * 2 / (6 * 6)
    assert theory.mended_bounds(SLOPES, 4, 1e60, START).x == pytest.approx(floor, rel=1e-6)
    assert theory.steps_for(SLOPES, 4, 1.0, START, theory.mended_bounds) == math.inf


@pytest.mark.parametrize("eps", [1.0, 1e-2])
def test_the_number_of_steps_is_the_smallest(eps):
    for bound, gap in ((theory.bounds, max), (theory.mended_bounds, attrgetter("y"))):
        steps = theory.steps_for(BENT, 3, eps, START, bound, gap)
        assert gap(bound(BENT, 3, steps, START)) <= eps < gap(bound(BENT, 3, steps - 1, START))


def test_sample_complexity_has_the_order_of_the_corollary():
    seen = [theory.sample_complexity(BENT, n, eps, START) for n, eps in ((4, 1e-7), (4, 1e-8))]
    assert math.log10(seen[1].steps / seen[0].steps) == pytest.approx(2.5, abs=0.02)
    # In n once its terms outweigh the noise, which does not grow with it.
    assert slope(lambda n: theory.steps_for(BENT, n, 1e-7, START), 10**10) == pytest.approx(1.25, abs=0.01)
    assert seen[1].terms > seen[0].terms  # the logarithm
    assert seen[0].queries == seen[0].steps * (seen[0].terms + 3)
    assert seen[0].order == pytest.approx(4**1.25 * 1e-7**-2.5 * math.log(1e7))
    mended = [theory.steps_for(BENT, 4, e, START, theory.mended_bounds, attrgetter("weights")) for e in (1e-4, 1e-5)]
    assert math.log10(mended[1] / mended[0]) == pytest.approx(5, abs=0.02)


def test_the_series_is_just_long_enough():
    for bias in (1.0, 1e-2, 1e-5):
        terms = theory.series_terms(BENT, bias)
        left = [BENT.response * BENT.upper_slope * (1 - 1 / BENT.condition) ** q for q in (terms, terms - 1)]
        assert left[0] <= bias < left[1]
    assert theory.series_terms(SLOPES, 1e-9) == 1  # A = L I: one term is all


def test_a_solver_with_the_theorem_s_rates():
    solver, rates = theory.morbit(BENT, 3, 1000), theory.step_sizes(BENT, 3, 1000)
    assert (solver.upper_lr, solver.lower_lr, solver.weighting.lr) == rates
    assert solver.hypergradient.terms == theory.series_terms(BENT, rates.upper**0.5)
    assert solver.hypergradient.lr == 1 / 8


@pytest.mark.parametrize("curvatures", [(1.0, 1.0), (1.0, 2.0)])
def test_runs_keep_within_the_bounds(curvatures):
    known, steps = bl.problems.opposed_slopes(curvatures), 2000
    constants = SLOPES
    if curvatures[1] == 2:
        # J_2 = -4; v of RandomNeumann is at most terms / L_g times as long as f_y.
        constants = dataclasses.replace(SLOPES, lower_smoothness=2.0, cross_bound=4.0, bias=None)
        terms = theory.morbit(constants, 2, steps).hypergradient.terms
        assert terms > 1
        constants = dataclasses.replace(constants, upper_noise=4 * 5 * terms / 2)
    start = theory.Start(lower_gap=9.0, rho=8.0)  # y = 0 and y* = 3/2, 3
    claimed, mended = (b(constants, 2, steps, start) for b in (theory.bounds, theory.mended_bounds))
    solver = theory.morbit(constants, 2, steps)
    gaps = []
    for seed in range(3):
        result = bl.solve(known.problem, solver, known.x, steps=steps, seed=seed, progress=False)
        assert -1 < float(result.x) < 2
        seen = bl.certify(known.problem, result.random, rho=8.0, descent=0)
        gaps.append((seen.y_gap, seen.weights_gap, seen.x_gap))
    gaps = np.mean(gaps, axis=0)
    assert np.all(gaps < np.array(claimed)), (gaps, claimed)
    assert np.all(gaps < np.array(mended)), (gaps, mended)


def test_constants_are_recovered_on_opposed_slopes():
    known = bl.problems.opposed_slopes((1.0, 2.0))
    seen = theory.estimate_constants(known.problem, known.x)
    exact = {"lower_smoothness": 2, "strong_convexity": 1, "cross_bound": 4, "response": 4, "upper_y_smoothness": 1}
    for name, value in exact.items():
        assert getattr(seen, name) == pytest.approx(value, rel=1e-6), name
    for name in ("cross_lipschitz", "hessian_lipschitz", "cross_lipschitz_in_x", "hessian_lipschitz_in_x"):
        assert getattr(seen, name) == pytest.approx(0, abs=1e-9), name
    assert (seen.upper_x_smoothness, seen.lower_noise, seen.bias) == (0, 0, None)
    assert seen.weak_convexity == 0
    # On [1/2, 5/2] the second loss is the larger: (2x + 1)^2 / 2, of slope 2 (2x + 1).
    assert 4**2 / 2 <= seen.loss_bound <= 6**2 / 2
    assert 8 <= seen.loss_slope <= 12


def test_constants_are_recovered_on_the_ball(padded_ball):
    known = padded_ball(sizes=(5, 5, 5, 5))
    seen = theory.estimate_constants(known.problem, known.x, samples=2)
    tasks = [known.problem.groups[0].train.task(k) for k in range(4)]
    A, B = (np.stack([np.asarray(task[name][0]) for task in tasks]) for name in "AB")
    curvatures = np.linalg.eigvalsh(A)
    assert seen.lower_smoothness == pytest.approx(curvatures.max(), rel=1e-6)
    assert seen.strong_convexity == pytest.approx(curvatures.min(), rel=1e-6)
    assert seen.cross_bound == pytest.approx(np.linalg.norm(A @ B, ord=2, axis=(1, 2)).max(), rel=1e-6)


def test_constants_that_vary_are_seen_from_below():
    known = bl.problems.shrinkage()  # A = 1 + e^x, J = e^x y
    seen = theory.estimate_constants(known.problem, known.x, samples=5, radius=0.5)
    top = math.exp(1.0)  # a neighbour of a point may be twice the radius away
    assert 1 + math.exp(-0.5) <= seen.strong_convexity <= 2 <= seen.lower_smoothness <= 1 + math.exp(0.5)
    assert 1 <= seen.cross_lipschitz <= math.exp(0.5) * (1 + 1e-9)
    assert 0.5 <= seen.hessian_lipschitz_in_x <= top
    assert seen.hessian_lipschitz == pytest.approx(0, abs=1e-9)


def test_noise_is_that_of_the_batches():
    def upper(x, y, batch):
        return (y - x) ** 2 / 2

    def lower(x, y, batch):
        return ((y - x - batch) ** 2).mean() / 2

    rows = np.array([-1.0, 1.0])  # so that h - grad_y g is +-1
    task = bl.Task(train=rows, validation=np.zeros(1), y=np.array(0.0))
    problem = bl.Problem(upper, lower, [task], lower_batch=1)
    exact = bl.hypergradients.Exact()
    seen = theory.estimate_constants(problem, np.array(0.5), samples=3, radius=0.1, hypergradient=exact)
    assert seen.lower_noise == pytest.approx(1, rel=0.02)  # divided by 1 + |grad_y g|^2
    assert seen.upper_noise == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"problem": 3}, TypeError, "estimate_constants(problem=...) got int: it needs a bl.Problem."),
        ({"samples": 0}, ValueError, "estimate_constants(samples=0): it needs a whole number, 1 or more."),
        ({"radius": 0}, ValueError, "estimate_constants(radius=0): it needs a positive number."),
        ({"hypergradient": 3}, TypeError, "estimate_constants(hypergradient=...) got 3: it needs an estimator object"),
        ({"hypergradient": bl.hypergradients.RandomNeumann(0)}, ValueError, "RandomNeumann(terms=0): it needs"),
    ],
)
def test_measurements_that_make_no_sense(change, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        theory.estimate_constants(**{"problem": bl.problems.opposed_slopes().problem, "x": 1.0} | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strong_convexity": 0.0}, "strong_convexity=0.0"),
        ({"strong_convexity": 3.0}, "at most lower_smoothness"),
        ({"cross_bound": 0.0}, "G_y L"),
        ({"loss_bound": math.inf}, "loss_bound=inf"),
        ({"loss_bound": 0.0}, "loss_bound=0.0"),
        ({"loss_slope": -1.0}, "loss_slope=-1.0"),
        ({"loss_slope": None}, "loss_slope=None"),
        ({"upper_slope": (1.0, 2.0)}, "upper_slope="),
    ],
)
def test_constants_that_are_none_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        theory.step_sizes(dataclasses.replace(SLOPES, **change), 2, 100)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rho": 0.5}, "Start(rho=0.5): it needs a finite number above 1, or None = twice"),
        ({"rho": math.inf}, "Start(rho=inf)"),
        ({"lower_gap": -1.0}, "Start(lower_gap=-1.0): it needs a finite number, 0 or more."),
        ({"lower_gap": None}, "Start(lower_gap=None)"),
        ({"envelope": math.nan}, "Start(envelope=nan)"),
        ({"envelope": -5.0}, "Start(envelope=-5.0): it needs a finite number, -4 or more, or None"),
    ],
)
def test_starts_that_are_none_are_refused(change, said):
    for bound in (theory.bounds, theory.mended_bounds):
        with pytest.raises(ValueError, match=re.escape(said)):
            bound(BENT, 2, 100, dataclasses.replace(START, **change))


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: theory.step_sizes({}, 2, 10), TypeError, "constants got dict: it needs a bl.theory.Constants."),
        (lambda: theory.step_sizes(BENT, 0, 10), ValueError, "n=0: it needs a whole number, 1 or more."),
        (lambda: theory.step_sizes(BENT, 2, 0), ValueError, "steps=0: it needs a finite number, 1 or more."),
        (lambda: theory.step_sizes(BENT, 2, None), ValueError, "steps=None: it needs"),
        (lambda: theory.mended_bounds(BENT, 2, math.inf, START), ValueError, "steps=inf: it needs"),
        (lambda: theory.bounds(BENT, 2, 10, 3.0), TypeError, "start got float: it needs a bl.theory.Start."),
        (lambda: theory.steps_for(BENT, 2, "1", START), ValueError, "steps_for(eps='1'): it needs a positive number."),
        (lambda: theory.series_terms(BENT, 0.0), ValueError, "series_terms(bias=0.0): it needs a positive number."),
        (
            lambda: theory.series_terms(dataclasses.replace(BENT, strong_convexity=0.0), 0.1),
            ValueError,
            "Constants(strong_convexity=0.0)",
        ),
        (lambda: theory.morbit(BENT, 2, 1.5), ValueError, "morbit(steps=1.5): it needs a whole number"),
    ],
)
def test_arguments_that_make_no_sense_are_named(call, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        call()


def test_the_order_of_the_corollary_is_for_small_eps():
    assert math.isnan(theory.sample_complexity(BENT, 4, 2.0, START).order)


def test_rademacher_complexity_of_one_and_of_both_signs():
    losses = np.random.default_rng(0).uniform(size=(1, 30))
    assert theory.rademacher_complexity(losses) == (0, 0)
    m = 12
    exact = math.comb(m, m // 2) / 2**m  # E |sum of m signs| / m
    seen = theory.rademacher_complexity(np.stack([np.ones(m), -np.ones(m)]), samples=4000)
    assert abs(seen.value - exact) < 4 * seen.error < 0.02


def test_generalisation_bounds_by_hand():
    one = theory.seen_task_bound(0.3, 0.05, 2.0, 50, risk=0.1)
    assert one == pytest.approx(0.3 + 0.1 + 2 * math.sqrt(math.log(10) / 100))
    losses, rows = [0.2, 0.4, 0.3], [50, 100, 25]
    deviation = [2 * math.sqrt(math.log(30) / (2 * m)) for m in rows]
    assert theory.worst_task_bound(losses, 0.05, 2.0, 50, 0.1) == pytest.approx(0.5 + deviation[0])
    assert theory.worst_task_bound(losses, 0.05, 2.0, rows, 0.1) == pytest.approx(0.4 + deviation[2])
    mixture = [0.5, 0.25, 0.25]
    unseen = theory.unseen_task_bound(losses, [0.1, 0.2, 0.0], 2.0, rows, mixture, 0.1)
    assert unseen == pytest.approx(0.4 + 2 * 0.1 + np.dot(mixture, deviation))
    with pytest.raises(ValueError, match="mixture"):
        theory.unseen_task_bound(losses, 0.1, 2.0, 50, [0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.seen_task_bound(0.3, 0.1, 1.0, 0), "rows=0: it needs a whole number, 1 or more."),
        (lambda: theory.seen_task_bound(math.nan, 0.1, 1.0, 9), "loss=nan: it needs a finite number."),
        (lambda: theory.seen_task_bound(0.3, -0.1, 1.0, 9), "complexity=-0.1: it needs a finite number, 0 or more."),
        (lambda: theory.seen_task_bound(0.3, 0.1, math.inf, 9), "width=inf: it needs a finite number, 0 or more"),
        # A third of it is a probability, it is not.
        (lambda: theory.worst_task_bound([0.3] * 3, 0.1, 1.0, 9, 1.5), "risk=1.5: it needs a number between 0 and 1."),
        (lambda: theory.unseen_task_bound([0.3] * 2, 0.1, 1.0, 9, [0.5] * 2, -0.1), "risk=-0.1: it needs"),
        (lambda: theory.worst_task_bound([0.3] * 2, 0.1, 1.0, [9] * 3), "rows got shape (3,): it needs one number, or"),
        (lambda: theory.worst_task_bound([0.3] * 2, [[0.1]], 1.0, 9), "complexities got shape (1, 1)"),
        (lambda: theory.worst_task_bound([0.3, math.nan], 0.1, 1.0, 9), "loss=nan"),
        (lambda: theory.rademacher_complexity([[0.3]], seed=-1), "rademacher_complexity(seed=-1)"),
    ],
)
def test_generalisation_of_nonsense(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


def test_half_signs_would_promise_too_much():
    """Candidates with any losses in {0, 1} on the rows, and 1 elsewhere: the best has mean 0, and in truth nearly 1."""
    m = 10
    complexity = theory.rademacher_complexity(np.array(list(product([0.0, 1.0], repeat=m))), samples=50).value
    assert complexity == pytest.approx(0.5)
    true = 1 - m / 10**6
    assert theory.seen_task_bound(0.0, complexity, 1.0, m, risk=0.5) >= true
    assert theory.seen_task_bound(0.0, complexity / 2, 1.0, m, risk=0.5) < true  # with signs +-1/2


def test_generalisation_bounds_hold_as_often_as_promised():
    generator = np.random.default_rng(0)
    candidates, tasks, rows, trials, risk = 30, 3, 40, 200, 0.1
    true = generator.uniform(0.1, 0.5, size=(tasks, candidates))  # losses are 0 or 1

    def draw():
        return (generator.uniform(size=(tasks, candidates, rows)) < true[:, :, None]).astype(float)

    mean = np.mean([[theory.rademacher_complexity(t, 20).value for t in draw()] for _ in range(20)], axis=0)
    mixture = np.array([0.2, 0.3, 0.5])
    held = np.zeros((trials, 5), bool)
    for k in range(trials):
        data = draw()
        seen, best = data.mean(axis=2), np.argmin(data.mean(axis=2).max(axis=0))  # the min-max candidate
        losses, now = seen[:, best], true[:, best]
        complexity = theory.rademacher_complexity(data[0], 50).value
        held[k] = (
            now[0] <= theory.seen_task_bound(losses[0], mean[0], 1.0, rows, risk),
            now[0] <= theory.seen_task_bound(losses[0], complexity, 1.0, rows, risk, observed=True),
            now.max() <= theory.worst_task_bound(losses, mean, 1.0, rows, risk),
            mixture @ now <= theory.unseen_task_bound(losses, mean, 1.0, rows, mixture, risk),
            now.max() <= losses.max(),
        )
    often = held.mean(axis=0)
    assert np.all(often[:4] >= 1 - risk)
    assert often[4] < 0.5  # what was seen, without a margin, is too good
