"""Ranks: by losses, with intervals over the seeds, those that diverge last."""

import itertools

import numpy as np

from bilevel.studies.comparison.candidates import CONFIDENCE, places, ranks, typical


def test_a_run_that_diverged_is_infinite_and_the_median_stands_for_the_mean():
    assert typical(np.array([1.0, 2.0, 6.0])) == 3.0
    assert typical(np.array([1.0, 2.0, np.inf])) == 2.0
    assert np.isinf(typical(np.array([1.0, np.inf, np.inf])))


def test_places_are_by_divergence_first_and_equal_ones_share_theirs():
    losses = np.array([[3.0, 3.0], [0.1, np.inf], [1.0, 2.0], [2.0, 1.0], [np.inf, np.inf]])
    assert places(losses).tolist() == [3, 4, 1, 1, 5]


def test_what_rounding_makes_of_equal_losses_is_a_tie():
    """Where every step sees all the data, seeds make no difference, and intervals cannot show a tie."""
    losses = np.array([[1.0, 1.0], [1.0 + 3e-7, 1.0 + 3e-7], [1.0 + 1e-5, 1.0 + 1e-5]])
    assert [(r.place, r.low, r.high) for r in ranks(losses)] == [(1, 1, 1), (1, 1, 1), (3, 3, 3)]


def test_a_solver_that_is_better_on_every_seed_has_a_sure_rank():
    noise = np.random.default_rng(0).normal(size=12)
    found = ranks(np.stack([noise + 0.1, noise, noise + 0.2]))  # the seeds differ far more than the solvers
    assert [(r.place, r.low, r.high) for r in found] == [(2, 2, 2), (1, 1, 1), (3, 3, 3)]


def test_the_interval_is_the_bootstrap_s():
    """Two solvers and three seeds have 27 resamples of equal chance, which can be enumerated."""
    losses = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, -1.9]])  # the second is ahead where the last seed weighs enough
    every = np.array([places(losses[:, list(drawn)]) for drawn in itertools.product(range(3), repeat=3)])
    ahead = float((every[:, 1] == 1).mean())
    assert (1 - CONFIDENCE) / 2 < ahead < 1 - (1 - CONFIDENCE) / 2
    assert [(r.low, r.high) for r in ranks(losses)] == [(1, 2), (1, 2)]


def test_one_seed_has_no_interval_and_rows_of_unequal_length_their_common_seeds():
    (one,) = ranks(np.array([[1.0]]))
    assert (one.place, np.isnan(one.low), np.isnan(one.high)) == (1, True, True)
    assert [r.place for r in ranks([[2.0, 2.0, -9.0], [1.0, 1.0]])] == [2, 1]
    assert ranks([]) == []
