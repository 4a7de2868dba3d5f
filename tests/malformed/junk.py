"""Values that are wrong, by what they are wrong for."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import bilevel as bl


class Thing:
    """An object that nobody knows."""

    def __repr__(self):
        return "Thing()"


class Raising:
    """An object whose every use fails but its text."""

    def __len__(self):
        raise RuntimeError("no length")

    def __iter__(self):
        raise RuntimeError("no items")

    def __repr__(self):
        return "Raising()"


SCALARS = [
    True,
    "3",
    "",
    "süd",
    b"3",
    float("nan"),
    float("inf"),
    -float("inf"),
    1j,
    decimal.Decimal(1),
    np.True_,
    np.str_("a"),
]
CONTAINERS = [[], [1], (), (1, 2), {}, {"a": 1}, set(), {1}, range(3), [None], [[1], [1, 2]], "text", iter(())]
ARRAYS = [np.ones(2), jnp.ones((2, 2)), np.array("a"), np.array(None), np.array([1, "a"], object), np.zeros(0)]
OBJECTS = [Thing(), Raising(), int, bl.MORBiT, bl.Task, np, NotImplemented, ..., slice(1), jax.random.key(0)]
anything = st.sampled_from([*SCALARS, *CONTAINERS, *ARRAYS, *OBJECTS]) | st.text(max_size=3) | st.binary(max_size=3)
not_callable = anything.filter(lambda v: not callable(v)) | st.integers() | st.floats()
with_none = anything | st.none()

# Never numbers; see `bilevel._core.values`.
never_number = anything
not_number = never_number | st.none()
not_whole = not_number | st.floats() | st.integers(max_value=0)
not_whole_or_none = never_number | st.floats() | st.integers(max_value=0)
not_count = not_number | st.floats() | st.integers(max_value=-1)
not_positive = not_number | st.floats(max_value=0) | st.integers(max_value=0)
not_positive_or_none = never_number | st.floats(max_value=0) | st.integers(max_value=0)
not_rate = not_positive_or_none.filter(lambda v: not callable(v))
not_share = (not_number | st.floats(max_value=0) | st.floats(min_value=1, exclude_min=True)).filter(
    lambda v: not callable(v)
)
not_fraction = not_number | st.floats(max_value=0, exclude_max=True) | st.floats(min_value=1)
not_path = (anything | st.integers() | st.floats()).filter(lambda v: not isinstance(v, str) or not v)
not_object = anything | st.integers() | st.floats()  # no part of any kind

# Data of a role: pytrees of arrays with a leading axis of rows are right.
not_rows = st.sampled_from(
    [
        "data.csv",
        Thing(),
        3.0,
        np.float32(1),
        np.ones((0, 2)),
        {"input": np.ones((4, 2)), "target": np.ones(3)},
        {"input": np.ones((4, 2)), "target": 1.0},
        {"input": "a", "target": np.ones(4)},
        {"input": np.array([["a", "b"]] * 4), "target": np.ones(4)},
        {"input": np.array([[None, 1]] * 4), "target": np.ones(4)},
        {"input": np.ones((4, 2)), "target": np.full(4, np.nan)},
        {"input": np.full((4, 2), np.inf), "target": np.ones(4)},
        {"input": np.ones((4, 3)), "target": np.ones(4)},
        {"input": np.ones((4, 2))},
        {"inputs": np.ones((4, 2)), "target": np.ones(4)},
        {"input": [[1.0, 2.0], [1.0]], "target": np.ones(2)},
        {"input": np.ones((4, 2)), "target": np.array(["2020-01-01"] * 4, "datetime64[D]")},
        [np.ones((4, 2)), np.ones(4)],
        lambda: 0,
    ]
)
# Where x or y starts, for variables of shape (2,).
not_point = st.sampled_from(
    [
        "x",
        Thing(),
        3,
        [],
        {},
        (),
        np.arange(2),
        np.ones(2, complex),
        np.ones(2, bool),
        np.array(["a", "b"]),
        np.array([1.0, None], object),
        np.array([1.0, np.nan]),
        np.array([np.inf, 1.0]),
        np.ones(3),
        np.ones((2, 2)),
        {"a": np.ones(2)},
        [np.ones(2), np.ones(2)],
        [np.ones(2), "a"],
        {1: np.ones(2), "a": np.ones(2)},
        b"bytes",
        jax.random.key(0),
        np.array("a"),
        1j,
        True,
    ]
)


def raises(*_):
    """A loss that fails."""
    raise ZeroDivisionError("division by zero in a loss")


def functions(arguments):
    """Losses of so many arguments that are wrong."""
    wrong = {
        "fewer arguments": lambda a: jnp.zeros(()),
        "more arguments": lambda a, b, c, d, e, f: jnp.zeros(()),
        "nothing": lambda *_: None,
        "text": lambda *_: "loss",
        "vector": lambda *_: jnp.ones(2),
        "tree": lambda *_: {"loss": jnp.zeros(())},
        "pair": lambda *_: (jnp.zeros(()), jnp.zeros(())),
        "integer": lambda *_: jnp.zeros((), int),
        "complex": lambda *_: jnp.zeros((), complex),
        "not a number": lambda *_: jnp.array(jnp.nan),
        "infinite": lambda *_: jnp.array(jnp.inf),
        "thing": lambda *_: Thing(),
        "raises": raises,
        "asks for a value": lambda *given: 1.0 if jnp.sum(jax.tree.leaves(given)[0]) > 0 else 0.0,
        "wrong shapes": lambda *given: jnp.ones((3, 2)) @ jnp.ones((3, 2)),
        "missing key": lambda *given: given[-1]["nowhere"],
        "no such index": lambda *given: given[arguments + 3],
    }
    return st.sampled_from(list(wrong.values()))
