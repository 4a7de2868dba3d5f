"""Noise that a best iterate owes its loss to."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import bilevel as bl
from bilevel.results.findings.convergence import lucky_best, unsteady_end
from bilevel.results.findings.finding import end_of
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


def exact(values, stochastic=False):
    """A run of min-avg whose steps see all the data, or batches."""
    problem = SimpleNamespace(is_stochastic=stochastic, comparable_losses=True, groups=())
    return dataclasses.replace(made(two(values), solver=AVERAGE), problem=problem, stored=None)


def test_a_jump_without_noise_is_told_with_where_it_was_lowest():
    jumped = np.concatenate([np.linspace(5, 1, 26), np.full(5, 1.0), np.full(20, 1.5)])
    found = unsteady_end(exact(jumped))
    assert (found.kind, found.numbers["lowest"], found.numbers["step"]) == ("unsteady end", 1.0, 250)
    assert unsteady_end(exact(jumped, stochastic=True)) is None  # there it may be noise
    assert unsteady_end(exact(np.concatenate([np.linspace(5, 1, 31), np.full(20, 1.1)]))) is None
    assert unsteady_end(exact(np.concatenate([np.linspace(5, 1, 31), np.linspace(1, 1.5, 20)]))) is None  # no jump
    assert unsteady_end(exact(np.concatenate([[5.0, 1.0], np.full(49, 1.5)]))) is None  # y was on its way


def test_a_loss_that_goes_up_and_down_without_noise_is_not_luck():
    swings = np.concatenate([np.linspace(5, 1, 11), np.full(40, 2.0) + 0.3 * (-1.0) ** np.arange(40)])
    assert unsteady_end(exact(swings)).kind == "unsteady end"
    assert lucky_best(exact(swings)) is None
