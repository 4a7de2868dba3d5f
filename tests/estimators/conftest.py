import numpy as np
import pytest

from bilevel.estimators.networks import dense


@pytest.fixture
def clinics():
    """Rows of three clinics of unequal size, of which the last has its labels turned around."""
    rng = np.random.default_rng(0)
    task = np.repeat(["north", "south", "west"], [50, 40, 30])
    X = rng.normal(size=(120, 3)) * [1.0, 5.0, 0.2] + [0.0, 7.0, 0.0]
    value = (X[:, 0] + 5 * X[:, 2]) * np.where(task == "west", -1, 1)
    return X, value, task


@pytest.fixture
def shared():
    """A network of five features on three columns."""
    start = dense(3, (5,), seed=0)
    return start._replace(centre=np.array([0.0, 1.0, 2.0]), scale=np.array([1.0, 2.0, 0.5]))
