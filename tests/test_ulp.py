"""The comparison that many tests rest on can fail."""

import numpy as np
import pytest

from ulp import assert_ulp, within_ulp

ONE = np.array([1.0, 1e-9])
EPS = np.finfo(float).eps


def test_rounding_is_forgiven_and_more_is_not():
    assert_ulp(ONE, ONE + np.array([4 * EPS, -4 * EPS]), ulps=8)
    with pytest.raises(AssertionError, match="differs by 16"):
        assert_ulp(ONE, ONE + np.array([16 * EPS, 0]), ulps=8)


def test_every_leaf_has_its_own_scale():
    assert within_ulp({"large": 1e9 * ONE, "small": ONE}, {"large": 1e9 * ONE + 1e-6, "small": ONE})
    with pytest.raises(AssertionError, match="small"):
        assert_ulp({"large": 1e9 * ONE, "small": ONE}, {"large": 1e9 * ONE, "small": ONE + 1e-6})


@pytest.mark.parametrize("other", [ONE * np.nan, ONE.astype(np.float32), ONE[:1], np.zeros(2)])
def test_what_is_not_a_number_of_that_kind_near_it_is_refused(other):
    with pytest.raises(AssertionError):
        assert_ulp(ONE, other)
