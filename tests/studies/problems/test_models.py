"""Flax NNX and Equinox models as x, as they are: no splitting, no filtering."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bilevel as bl
from bilevel import hypergradients, weightings
from bilevel.studies.problems.networks import squared_error

SCALES = 0.5 + jnp.arange(3.0)  # one parabola a task


class Net(nnx.Module):
    """1 -> 8 -> 4; an attribute that is a function is no leaf in NNX."""

    def __init__(self, rngs):
        self.first = nnx.Linear(1, 8, param_dtype=float, rngs=rngs)
        self.second = nnx.Linear(8, 4, param_dtype=float, rngs=rngs)
        self.activation = nnx.gelu

    def __call__(self, inputs):
        return self.second(self.activation(self.first(inputs)))


def flax_model():
    return Net(nnx.Rngs(0))


def equinox_model():
    return equinox.nn.MLP(1, 4, 8, 1, activation=jax.nn.gelu, key=jax.random.key(0))  # activations are leaves


def flax_features(x, inputs):
    return x(inputs)


def equinox_features(x, inputs):
    return jax.vmap(x)(inputs)


def tasks():
    t = jnp.linspace(-1.0, 1.0, 20)[:, None]
    rows = [(t, scale * t[:, 0] ** 2) for scale in SCALES]
    return [bl.Task(row, row) for row in rows]


def run(x, features):
    """50 steps with given rates."""

    def upper(x, y, batch):
        return jnp.mean((features(x, batch[0]) @ y - batch[1]) ** 2)

    def lower(x, y, batch):
        return upper(x, y, batch) + 0.01 * jnp.sum(y**2)

    solver = bl.MORBiT(0.1, 0.2, hypergradients.Unrolled(), weightings.SimplexAscent(0.1))
    return bl.solve(bl.Problem(upper, lower, tasks()), solver, x, jnp.full(4, 0.5), steps=50, progress=False)


def arrays_of(model):
    return [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array)]


KINDS = pytest.mark.parametrize(
    ("make", "features"),
    [(flax_model, flax_features), (equinox_model, equinox_features)],
    ids=["flax", "equinox"],
)


@KINDS
def test_a_model_is_trained_as_its_arrays_are(make, features, tmp_path):
    model = make()
    result = run(model, features)
    assert result.worst < result.history.worst[0] / 2
    assert type(result.x) is type(model)

    losses = [
        jnp.mean((features(result.x, task.validation[0]) @ result.y[f"task {i}"] - task.validation[1]) ** 2)
        for i, task in enumerate(tasks())
    ]
    np.testing.assert_allclose(losses, result.losses, rtol=1e-6)

    leaves, structure = jax.tree.flatten(model)

    def from_arrays(x, inputs):
        rest = iter(x)
        return features(structure.unflatten([next(rest) if isinstance(a, jax.Array) else a for a in leaves]), inputs)

    plain = run(arrays_of(model), from_arrays)
    for a, b, first in zip(arrays_of(result.x), plain.x, arrays_of(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert np.any(a != first)

    result.save(tmp_path / "run.safetensors")
    again = bl.load(tmp_path / "run.safetensors", x=model).x
    inputs = tasks()[0].train[0]
    np.testing.assert_array_equal(features(again, inputs), features(result.x, inputs))


@KINDS
def test_a_ready_problem_takes_a_model_or_a_function(make, features):
    options = {"outputs": 1, "loss": squared_error, "lower_batch": None, "upper_batch": None}
    model = make()
    by_model = bl.problems.representation(tasks(), network=model, **options)
    by_function = bl.problems.representation(tasks(), network=features, x=model, **options)
    solver = bl.MORBiT(0.1, 0.2, hypergradients.Unrolled())
    ends = [
        bl.solve(ready.problem, solver, ready.x, steps=5, progress=False, fitted=False)
        for ready in (by_model, by_function)
    ]
    assert ends[0].worst < ends[0].history.worst[0]
    np.testing.assert_allclose(ends[0].losses, ends[1].losses, rtol=1e-6)
    assert ends[0].x(tasks()[0].train[0][0]).shape == (4,)


def test_heads_may_be_models_too():
    head = equinox.nn.Linear(1, 1, key=jax.random.key(1))

    def upper(x, y, batch):
        return jnp.mean((x * jax.vmap(y)(batch[0])[:, 0] - batch[1]) ** 2)

    solver = bl.MORBiT(0.01, 0.1, hypergradients.Unrolled())
    result = bl.solve(bl.Problem(upper, upper, tasks()), solver, jnp.ones(()), head, steps=2, progress=False)
    assert result.y["task 0"](jnp.ones(1)).shape == (1,)


def test_a_network_that_is_neither_model_nor_function():
    with pytest.raises(TypeError, match=r"network='resnet'.*a model, or a function of \(x, inputs\) and `x`"):
        bl.problems.representation(tasks(), network="resnet")
    with pytest.raises(TypeError, match=r"network=<function.*a model, or a function of \(x, inputs\) and `x`"):
        bl.problems.representation(tasks(), network=flax_features)


def test_what_is_no_parameter_is_still_refused():
    class Odd(equinox.Module):
        weight: jax.Array
        rank: object

    for rank, said in ((jnp.arange(3), r"x\.rank has dtype int64"), ("high", r"x\.rank got str")):
        with pytest.raises(TypeError, match=said):
            run(Odd(jnp.ones(1), rank), equinox_features)
    with pytest.raises(TypeError, match="x got function: it needs floating-point arrays"):
        run(flax_features, flax_features)


# ------------------------------------------------------------------ layers with a state of their own


class Normed(nnx.Module):
    """With BatchNorm and Dropout."""

    def __init__(self, rngs):
        self.first = nnx.Linear(1, 4, param_dtype=float, rngs=rngs)
        self.norm = nnx.BatchNorm(4, param_dtype=float, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, inputs):
        return self.dropout(self.norm(self.first(inputs)))


def equinox_dropout():
    layers = [equinox.nn.Linear(1, 4, dtype=float, key=jax.random.key(0)), equinox.nn.Dropout(0.5)]
    return equinox.nn.Sequential(layers)


@pytest.mark.parametrize(
    ("make", "leaf"),
    [(lambda: Normed(nnx.Rngs(0)), "dropout.rngs.count is a RngCount"), (equinox_dropout, r"inference has dtype bool")],
    ids=["flax", "equinox"],
)
def test_state_that_is_not_trained_is_refused_with_what_to_do(make, leaf):
    said = rf"{leaf}.*evaluation mode.*nnx\.split.*eqx\.partition"
    with pytest.raises(TypeError, match=said):
        run(make(), flax_features)
    with pytest.raises(TypeError, match=said):
        bl.problems.representation(tasks(), outputs=1, loss=squared_error, network=make())


def test_numbers_of_batch_norm_are_not_moved_as_if_they_were_weights():
    with pytest.raises(TypeError, match=r"x\.mean is a BatchStat, which is not trained"):
        run(nnx.BatchNorm(1, param_dtype=float, rngs=nnx.Rngs(0)), flax_features)


def test_split_off_as_the_error_says_such_a_model_of_flax_is_trained():
    model = Normed(nnx.Rngs(0))
    model.eval()
    graph, x, state = nnx.split(model, nnx.Param, ...)
    result = run(x, lambda x, inputs: nnx.merge(graph, x, state)(inputs))
    assert result.worst < result.history.worst[0]
    # In evaluation mode Dropout does nothing and BatchNorm, at its start, divides by sqrt(1 + 1e-5).
    own = jax.tree.map(jnp.asarray, {"first": x["first"], "norm": x["norm"]})

    def by_hand(x, inputs):
        first, norm = x["first"], x["norm"]
        linear = inputs @ first["kernel"][...] + first["bias"][...][None]
        return norm["scale"][...][None] * linear / (1 + 1e-5) ** 0.5 + norm["bias"][...][None]

    np.testing.assert_allclose(run(own, by_hand).worst, result.worst, rtol=1e-6)


def test_split_off_as_the_error_says_such_a_model_of_equinox_is_trained():
    x, state = equinox.partition(equinox.nn.inference_mode(equinox_dropout()), equinox.is_inexact_array)
    result = run(x, lambda x, inputs: jax.vmap(equinox.combine(x, state))(inputs))
    without = equinox.nn.Sequential(equinox_dropout().layers[:1])
    np.testing.assert_allclose(run(without, equinox_features).worst, result.worst, rtol=1e-9)
