"""Intervals over trials."""

import numpy as np
import pytest
import scipy.stats

from bilevel.studies.paper import claims
from bilevel.studies.statistics import Interval, interval, slope, variance_ratio


def test_the_interval_is_student_s():
    values = np.random.default_rng(0).normal(2.0, 1.0, 10)
    expected = scipy.stats.t.interval(0.95, 9, values.mean(), scipy.stats.sem(values))
    found = interval(values)
    np.testing.assert_allclose([found.low, found.high], expected)
    assert found.trials == 10
    np.testing.assert_allclose(interval(np.append(values, np.nan)), found)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-2, -1, "holds"), (-1, 1, "inconclusive"), (1, 2, "does not hold")]
)
def test_the_whole_interval_decides(low, high, verdict):
    assert Interval((low + high) / 2, low, high, 5).within(-np.inf, 0) == verdict
    assert Interval((low + high) / 2, low, high, 5).within(-3, 0) == verdict


def test_one_trial_decides_nothing():
    assert interval(np.array([-5.0])).within(-np.inf, 0) == "inconclusive"


def test_the_exponent_of_a_power_law():
    x = np.arange(1.0, 50.0)
    assert slope(x, 3 * x**-0.4) == pytest.approx(-0.4)


def test_how_many_trials_would_decide():
    """An interval shrinks like 1 / sqrt(trials)."""
    found = Interval(-0.5, -1.5, 0.5, 10)  # it reaches 1 to either side; half of that would leave 0 out
    assert found.trials_to(0.5) == 40
    assert found.trials_to(0.0) is None
    assert claims._within("", found, -0.75, 5.0, 10).needed == 160


def test_the_ratio_of_variances_is_1_where_sums_and_differences_are_uncorrelated():
    """Pitman's and Morgan's test: the interval excludes 1 exactly where that correlation is significant."""
    generator = np.random.default_rng(0)
    verdicts = []
    for _ in range(200):
        first = generator.normal(size=12)
        second = 0.7 * first + 0.4 * generator.normal(size=12)
        found = variance_ratio(first, second)
        significant = scipy.stats.pearsonr(first + second, first - second).pvalue < 0.05
        verdicts.append(significant)
        assert significant == (not found.low <= 1 <= found.high)
        assert found.mean == pytest.approx(second.var(ddof=1) / first.var(ddof=1))
    assert 0 < sum(verdicts) < 200
