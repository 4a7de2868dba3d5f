import pytest

import bilevel as bl
from bilevel.studies.problems import Ready


@pytest.fixture
def slopes():
    """A small bilevel problem and where it starts."""
    known = bl.problems.opposed_slopes()
    return Ready(known.problem, known.x)


@pytest.fixture(scope="package", autouse=True)
def time_steps_briefly():
    """A step is timed for a second so that the number can be trusted; none of these tests does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bilevel.studies.comparison.runner.TIMED_SECONDS", 1e-3)
        yield
