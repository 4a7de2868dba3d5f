"""The reference by itself: gradients against differences, the projection and the rules against their definitions."""

import copy
import itertools

import numpy as np
import pytest

from studies.paper.reference import Fashion, Letter, Sinusoids
from studies.paper.reference.common import SGD, Adam, Plateau, onto_simplex

N, ROWS = 3, 7


def numbers():
    return np.random.default_rng(0)


def layers(*sizes):
    made = numbers()
    return [(made.normal(size=(i, o)), made.normal(size=o)) for i, o in itertools.pairwise(sizes)]


def labelled(made, inputs):
    return made.normal(size=(N, ROWS, inputs)), made.integers(2, size=(N, ROWS))


def sinusoids():
    made = numbers()
    return Sinusoids(layers(1, 6, 5, 4), made.normal(size=(N, 4)), made.normal(size=N), True, 0.01, 0.01, 0.02)


def fashion(minmax=True, **given):
    made = numbers()
    how = {"every": 2, "patience": 0, "factor": 0.5, "test": labelled(made, 5)} | given
    heads = made.normal(size=(N, 4, 2)), made.normal(size=(N, 2))
    return Fashion(made.normal(size=(5, 4)), *heads, minmax, 0.1, 0.1, 0.1, 0.01, 0.02, **how)


def letter(minmax=True, gamma=0.1, **given):
    made = numbers()
    how = {"every": 2, "patience": 0, "factor": 0.5, "test": labelled(made, 5)} | given
    x = made.uniform(0.1, 1, size=8), made.uniform(0.1, 1, size=5), made.normal(size=(5, 4))
    heads = made.normal(size=(N, 8, 2)), made.normal(size=(N, 2))
    return Letter(*x, *heads, minmax, 0.1, 0.1, gamma, 0.3, 0.2, **how)


# ------------------------------------------------------------------ gradients


def by_differences(value, array, width=1e-6):
    """The gradient of value() in an array that it reads, which is moved in place."""
    gradient = np.zeros(array.shape)
    for at in np.ndindex(array.shape):
        old = array[at]
        array[at] = old + width
        above = value()
        array[at] = old - width
        gradient[at] = (above - value()) / (2 * width)
        array[at] = old
    return gradient


def test_sinusoids_gradients():
    problem, made = sinusoids(), numbers()
    a, t = made.uniform(-3, 3, size=ROWS), made.normal(size=ROWS)
    _, in_x, in_head = problem.loss(1, a, t)
    arrays = [array for layer in problem.x for array in layer] + [problem.w[1], problem.b[1:2]]
    for array, gradient in zip(arrays, in_x + in_head, strict=True):
        found = by_differences(lambda: problem.loss(1, a, t)[0], array)
        np.testing.assert_allclose(np.reshape(gradient, array.shape), found, atol=1e-7)


@pytest.mark.parametrize("level", ["loss", "lower"])
@pytest.mark.parametrize("made", [fashion, letter])
def test_classifiers_gradients(made, level):
    problem = made()
    a, c = (array[1] for array in labelled(numbers(), 5))
    loss = getattr(problem, level)
    _, in_x, in_head = loss(1, a, c)
    x = [problem.W] if isinstance(problem, Fashion) else [problem.C, problem.G]
    for array, gradient in zip([*x, problem.w[1], problem.b[1]], in_x + in_head, strict=True):
        np.testing.assert_allclose(gradient, by_differences(lambda: loss(1, a, c)[0], array), atol=1e-8)


def test_the_loss_is_cross_entropy_of_probabilities():
    """p = (1/2, 1/2) costs log 2; p = (1, 0) costs log(1 + 1/e) where it is right and log(1 + e) where it is wrong."""
    problem, a = fashion(), np.ones((2, 5))
    problem.w[:] = problem.b[:] = 0
    assert problem.loss(0, a, np.array([0, 1]))[0] == pytest.approx(np.log(2), abs=1e-15)
    problem.b[0] = [1000, 0]
    assert problem.loss(0, a, np.array([0, 0]))[0] == pytest.approx(np.log(1 + np.exp(-1)), abs=1e-15)
    assert problem.loss(0, a, np.array([1, 1]))[0] == pytest.approx(np.log(1 + np.e), abs=1e-15)


# ------------------------------------------------------------------ rules


def test_projection_is_the_nearest_of_all_faces():
    """On the face of a set S the nearest point is v_S - (sum v_S - total) / |S|; the nearest of those that are >= 0."""
    made = numbers()
    for total in (1.0, 0.7):
        for v in made.normal(size=(100, 4)):
            candidates = []
            for S in itertools.chain.from_iterable(itertools.combinations(range(4), k) for k in range(1, 5)):
                point = np.zeros(4)
                point[list(S)] = v[list(S)] - (v[list(S)].sum() - total) / len(S)
                if (point >= 0).all():
                    candidates.append(point)
            nearest = min(candidates, key=lambda point: np.sum((point - v) ** 2))
            np.testing.assert_allclose(onto_simplex(v, total), nearest, atol=1e-14)


def test_momentum_under_a_constant_gradient():
    """The buffer is g, g (1 + m), g (1 + m + m^2), ..., so p falls by rate g times their sum."""
    rule, p = SGD(0.1, momentum=0.5), np.zeros(1)
    for moved in (1, 2.5, 4.25, 6.125):
        (p,) = rule.step([p], [np.array([2.0])])
        assert p[0] == pytest.approx(-0.1 * 2 * moved)


def test_weight_decay_shrinks():
    rule, p = SGD(0.1, decay=0.5), np.ones(1)
    for k in range(1, 5):
        (p,) = rule.step([p], [np.zeros(1)])
        assert p[0] == pytest.approx(0.95**k)


def test_adam_under_a_constant_gradient_moves_by_the_rate():
    """Both means are unbiased from the start: m = g and v = g^2, whatever the size of g."""
    rule, p = Adam(0.1), np.zeros(2)
    for k in range(1, 6):
        (p,) = rule.step([p], [np.array([3.0, -200.0])])
        np.testing.assert_allclose(p, [-0.1 * k, 0.1 * k], rtol=1e-7)


def test_plateau():
    """Patience 1: the second metric in a row that does not improve lowers the rate, and the count begins again.

    3.9997 is not 1e-4 better than the best so far, 4; 3.9995 is.
    """
    rule = SGD(1.0)
    plateau = Plateau(rule, patience=1, factor=0.5)
    metrics = [5, 5, 4, 4, 3.9997, 4, 3.9995, 9, 3.9, 3.9, 3.9, 3.9, 3.9]
    rates = [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    for metric, rate in zip(metrics, rates, strict=True):
        plateau.step(metric)
        assert rule.rate == rate


def test_plateau_leaves_a_rate_that_would_fall_by_less_than_1e_8():
    rule = SGD(3e-8)
    plateau = Plateau(rule, patience=0, factor=0.5)
    for rate in (3e-8, 1.5e-8, 1.5e-8):
        plateau.step(1.0)
        assert rule.rate == rate


# ------------------------------------------------------------------ steps


WEIGHTS = np.array([0.5, 0.3, 0.2])


def stepped(problem, lower, upper):
    """The problem after its first step, from WEIGHTS, and the old x with the new heads."""
    problem.weights = WEIGHTS
    after = copy.deepcopy(problem)
    after.step(lower, upper)
    fitted = copy.deepcopy(problem)
    fitted.w, fitted.b = after.w, after.b
    return after, fitted


def losses(loss, batch):
    """Of every task, on its rows of a batch."""
    return np.array([loss(i, *rows)[0] for i, rows in enumerate(zip(*batch, strict=True))])


def test_fashion_step():
    """W goes down sum_i G_i (old heads, no weights) + sum_i lambda_i f_i (new heads) + r |W|^2, and decays."""
    problem, made = fashion(), numbers()
    lower, upper = labelled(made, 5), labelled(made, 5)
    after, fitted = stepped(problem, [lower], upper)
    fitted.W = problem.W  # moved by the differences

    def value():
        penalty = (0.02 + 1e-4 / 2) * np.sum(problem.W**2)
        return losses(problem.lower, lower).sum() + WEIGHTS @ losses(fitted.loss, upper) + penalty

    np.testing.assert_allclose((problem.W - after.W) / 0.1, by_differences(value, problem.W), atol=1e-8)
    moved = WEIGHTS + 0.1 * (losses(fitted.loss, upper) - 1e-4 * WEIGHTS)
    np.testing.assert_allclose(after.weights, onto_simplex(moved), atol=1e-15)


def test_letter_step():
    """C and G go down sum_i g_i (old heads, no weights) + sum_i lambda_i f_i (new heads)."""
    problem, made = letter(), numbers()
    problem.G *= 0.01
    lower, upper = labelled(made, 5), labelled(made, 5)
    after, fitted = stepped(problem, [lower], upper)
    fitted.C, fitted.G = problem.C, problem.G  # moved by the differences

    def value():
        return losses(problem.lower, lower).sum() + WEIGHTS @ losses(fitted.loss, upper)

    for array, found in ((problem.C, after.C), (problem.G, after.G)):
        moved = array - 0.1 * by_differences(value, array)
        assert (moved < 0).any()  # there is something to clamp
        np.testing.assert_allclose(found, np.maximum(moved, 0), atol=1e-8)
    moved = WEIGHTS + 0.1 * (losses(fitted.loss, upper) - 2 * 0.3 * (WEIGHTS - 1 / N))
    np.testing.assert_allclose(after.weights, onto_simplex(moved, 0.8) + 0.2 / N, atol=1e-15)


def test_sinusoids_step():
    """x goes down sum_i lambda_i f_i (new heads) alone; nothing of the lower level is left over."""
    problem, made = sinusoids(), numbers()
    lower, upper = made.normal(size=(2, 2, N, ROWS))
    after, fitted = stepped(problem, lower, upper)
    for old, new in zip(fitted.x, after.x, strict=True):
        for array, moved in zip(old, new, strict=True):
            found = by_differences(lambda: WEIGHTS @ losses(fitted.loss, upper), array)
            np.testing.assert_allclose((array - moved) / 0.01, found, atol=1e-6)
    moved = WEIGHTS + 0.02 * (losses(fitted.loss, upper) - 3 * (WEIGHTS - 1 / N))
    np.testing.assert_allclose(after.weights, onto_simplex(moved), atol=1e-15)


def test_every_letter_weight_keeps_its_share():
    """With so large a rate the worst task takes all that may be taken: 1 - delta, and the others delta / n."""
    problem, made = letter(gamma=1e6), numbers()
    problem.step([labelled(made, 5)], labelled(made, 5))
    np.testing.assert_allclose(np.sort(problem.weights), [0.2 / 3, 0.2 / 3, 0.8 + 0.2 / 3], atol=1e-9)


@pytest.mark.parametrize("made", [fashion, letter])
@pytest.mark.parametrize("minmax", [True, False])
def test_only_minmax_moves_the_weights_and_their_rate(made, minmax):
    """A test loss that is never finite never improves: with patience 0 every second step halves the rates."""
    rows, labels = labelled(numbers(), 5)
    problem = made(minmax, test=(np.full_like(rows, np.nan), labels))
    batches = numbers()
    for step in range(1, 6):
        problem.step([labelled(batches, 5)], labelled(batches, 5))
        rate = 0.1 * 0.5 ** (step // 2)
        x, heads, weights = problem.rates
        np.testing.assert_allclose([x, *heads, weights], [rate] * (1 + N) + [rate if minmax else 0.1])
        assert problem.weights.sum() == pytest.approx(1)
        assert (problem.weights == 1 / N).all() != minmax
