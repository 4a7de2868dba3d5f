"""Means of losses that are close to the largest number."""

import dataclasses

import numpy as np
import pytest

from bilevel._core.averages import mean
from bilevel._run.loggers import Evaluation
from bilevel.studies.records import Record
from bilevel.studies.statistics import final
from kept_runs import solve


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_it_is_the_mean_of_numpy_bit_for_bit(dtype, axis):
    values = np.random.default_rng(0).normal(size=(7, 5)).astype(dtype) * dtype(1e30)
    for found in (values, np.where(values > 1e30, dtype(np.inf), values)):
        np.testing.assert_array_equal(mean(found, axis), np.mean(found, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_beyond_the_largest_number_have_a_mean_without_a_warning(dtype, axis):
    values = np.full((3, 5), 0.9 * np.finfo(dtype).max, dtype)
    found = mean(values, axis)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 0.9 * np.finfo(dtype).max, rtol=1e-5)


def test_what_is_infinite_or_nan_stays_so():
    values = np.array([[3e38, np.inf], [3e38, np.nan], [3e38, 3e38]], np.float32)
    np.testing.assert_allclose(mean(values, 1), np.array([np.inf, np.nan, 3e38], np.float32), rtol=1e-6)


def test_results_and_records_of_losses_that_are_huge_have_means():
    result = solve(steps=2, every=1)
    huge = np.full(result.history.validation.shape, 3e38, np.float32)
    history = dataclasses.replace(result.history, validation=huge, test=huge)
    last = dataclasses.replace(result.last, losses=huge[-1], test_losses=huge[-1])
    record = Record.of(dataclasses.replace(result, history=history), None)
    columns = [record[name] for name in ("mean_validation", "mean_test")]
    np.testing.assert_allclose([history.mean, *columns], 3e38, rtol=1e-6)
    np.testing.assert_allclose([last.mean, last.test_mean, final(record, "mean_test")], 3e38, rtol=1e-6)


def test_loggers_get_means_of_huge_losses():
    huge = np.full(3, 3e38, np.float32)
    row = Evaluation(1, 0.1, ("a", "b", "c"), huge, huge, huge, 1.0, 0.1, huge, 0.1, 1.0, {"test accuracy": huge}, huge)
    means = [number for name, number in row.summary().items() if name.endswith("mean")]
    assert len(means) == 4
    np.testing.assert_allclose([row.mean, *means], 3e38, rtol=1e-6)
