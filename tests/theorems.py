"""Properties over generated cases: few of them in the usual suite, many where slow tests run."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings


def over(few, many):
    """A test with an argument `examples`, run with few and, as a slow test, with many."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def holds(check, examples, *strategies):
    """Calls `check` with so many generated cases, one from each strategy."""
    profile = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    profile(given(*strategies)(check))()
