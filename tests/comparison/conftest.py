import pytest

import bilevel as bl
from bilevel.problems import Ready


@pytest.fixture
def slopes():
    """A small bilevel problem and where it starts."""
    known = bl.problems.opposed_slopes()
    return Ready(known.problem, known.x)
