"""Any result comes back from its file, every bit of it."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import bilevel as bl
from bilevel.problem.per_task import Names, TaskValues
from bilevel.results.findings.finding import Finding
from bilevel.results.history import COLUMNS, History, Iterate
from bilevel.results.result import Result
from bilevel.results.storage import BEST_BY, HELD_OUT, ITERATES, PER_TASK
from theorems import holds, over

dtypes = st.sampled_from([np.float32, np.float64, np.float16, jnp.bfloat16, jnp.float8_e4m3fn])
shapes = st.sampled_from([(), (1,), (2, 3), (0,)])
nodes = st.recursive(
    st.tuples(st.just("leaf"), dtypes, shapes),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.tuples(inner, inner).map(lambda pair: ("pair", *pair))
        | st.none()
    ),
    max_leaves=4,
)


def built(node, random, rows=None):
    """A tree of random bits; with an axis of tasks in front, if there are rows."""
    if node is None:
        return None
    if isinstance(node, dict):
        return {key: built(child, random, rows) for key, child in node.items()}
    if isinstance(node, list):
        return [built(child, random, rows) for child in node]
    if node[0] == "pair":
        return tuple(built(child, random, rows) for child in node[1:])
    _, dtype, shape = node
    shape, dtype = shape if rows is None else (rows, *shape), np.dtype(dtype)
    raw = random.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return jnp.asarray(np.ascontiguousarray(raw).view(dtype).reshape(shape))


def found():
    numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
    short = st.text(max_size=3)
    return st.builds(Finding, short, short, st.dictionaries(short, numbers, max_size=2))


@st.composite
def results(draw):
    random = np.random.default_rng(draw(st.integers(0, 99)))
    names = draw(st.lists(st.text(max_size=4), min_size=1, max_size=5, unique=True))
    n, evaluations = len(names), draw(st.integers(1, 3))
    order = draw(st.permutations(range(n)))
    cut = draw(st.integers(0, n))
    groups = [np.array(ids) for ids in (order[:cut], order[cut:]) if ids]
    x, ys = draw(nodes), [draw(nodes) for _ in groups]
    held_out = {role for role in HELD_OUT if draw(st.booleans())}
    metrics = draw(st.lists(st.text(max_size=3), max_size=2, unique=True))

    def iterate():
        stacked = tuple(built(y, random, len(ids)) for y, ids in zip(ys, groups, strict=True))
        weights, losses = random.normal(size=(2, n))
        others = {f"{role}_losses": random.normal(size=n) if role in held_out else None for role in HELD_OUT}
        values = TaskValues(Names(names), groups, stacked)
        measured = {name: random.normal(size=n) for name in metrics}
        return Iterate(built(x, random), values, weights, losses, metrics=measured, **others)

    def column(field):
        if field in HELD_OUT and field not in held_out:
            return None
        values = random.normal(size=(evaluations, n) if field in PER_TASK else evaluations)
        return values > 0 if field == "fitted" else values

    measured = {name: random.normal(size=(evaluations, n)) for name in metrics}
    history = History(**{name: column(name) for name in COLUMNS}, metrics=measured)
    return Result(
        problem=None,
        solver=draw(st.text(max_size=8)),
        **{name: iterate() for name in ITERATES},
        history=history,
        status=draw(st.sampled_from(["finished", "diverged"])),
        message=draw(st.text(max_size=8)),
        steps=draw(st.integers(0, 2**40)),
        seconds=draw(st.floats(0, 1e9)),
        seed=draw(st.integers(0, 2**63 - 1)),
        stored=bl.results.result.Stored(
            draw(st.none() | st.text(max_size=3)), tuple(draw(st.lists(found()))), draw(st.booleans()), draw(st.text())
        ),
        best_by=draw(st.sampled_from(BEST_BY)),
    )


def identical(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@over(40, 1500)
def test_any_result_comes_back_as_it_was(tmp_path, examples):
    def check(result):
        result.save(tmp_path / "f")
        loaded = bl.load(tmp_path / "f")
        for name in ITERATES:
            one, other = getattr(loaded, name), getattr(result, name)
            identical(
                (one.x, one.y.stacked, one.weights, one.losses), (other.x, other.y.stacked, other.weights, other.losses)
            )
            identical(
                (one.selection_losses, one.test_losses, one.metrics),
                (other.selection_losses, other.test_losses, other.metrics),
            )
            assert one.y.names == other.y.names
            assert [list(ids) for ids in one.y.ids] == [list(ids) for ids in other.y.ids]
        identical(dict(loaded.history), dict(result.history))
        for field in (
            "solver",
            "status",
            "message",
            "steps",
            "seconds",
            "seed",
            "best_by",
            "fits_validation",
            "verdict",
        ):
            assert getattr(loaded, field) == getattr(result, field)
        assert loaded.findings == result.stored.findings

    holds(check, examples, results())
