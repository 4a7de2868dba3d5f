"""Wrong arguments of every kind end in one of our errors, in words that name the argument."""

import pytest

from malformed import campaign
from malformed.cases import all_cases

CASES = all_cases()


@pytest.mark.parametrize("name", sorted(CASES)[::9])
def test_a_few_wrong_values(name):
    assert campaign.run(CASES[name], 2).wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_wrong_values(name):
    """10,000 in all."""
    assert campaign.run(CASES[name], -(-10_000 // len(CASES))).wrong == {}
