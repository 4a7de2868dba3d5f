"""Noise that a best iterate owes its loss to."""

import numpy as np
import pytest

import bilevel as bl
from bilevel.results.findings.curve import end_of
from bilevel.weightings import Average
from made_runs import kinds, made

AVERAGE = bl.MORBiT(weighting=Average())


def two(values):
    return np.stack([values, values], axis=1)


def test_the_lowest_of_many_noisy_losses_is_luck():
    noisy = 1 + 0.2 * (-1.0) ** np.arange(51)
    noisy[31] = 0.6
    (found,) = made(two(noisy), solver=AVERAGE).findings
    assert found.kind == "lucky best"
    assert found.numbers["best"] == noisy.min()
    assert found.numbers["noise"] == pytest.approx(0.4 / 0.6745 / 1.5**0.5)  # a value and its neighbours are 0.4 apart


def test_a_smooth_curve_has_no_noise():
    """Exponential decay: a hundredth of what its neighbours differ by."""
    level, noise = end_of(np.exp(-3 * np.linspace(0, 1, 51)))
    assert noise < 0.01 * level


def test_independent_noise_is_measured():
    _, noise = end_of(np.random.default_rng(0).normal(size=40_000))
    assert abs(noise - 1) < 0.03


def test_a_best_that_others_are_far_from_is_none():
    steady = np.full(51, 1.0) + 0.01 * np.random.default_rng(0).normal(size=51)
    steady[40] = 0.5
    assert "lucky best" not in kinds(made(two(steady), solver=AVERAGE))


def test_a_little_noise_is_not_worth_a_word():
    little = 1 + 0.02 * np.random.default_rng(0).normal(size=51)
    assert kinds(made(two(little), solver=AVERAGE)) == []
