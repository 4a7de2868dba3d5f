"""The steps of the paper's public scripts against an independent numpy reference, from the same start and batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.lower.steps import draw_steps
from bilevel.studies.paper import experiments
from bilevel.studies.paper.published import (
    Falling,
    FourierHeads,
    Hyperparameters,
    NetworkHeads,
    RepeatedRows,
    ScriptDescent,
    lengths,
    squared_weights,
    with_heads,
)
from bilevel.studies.problems.networks import MLP, softmax_cross_entropy_twice, squared_error
from studies.paper.reference import Fashion, Letter, Sinusoids

STEPS, TASKS, LOWER, UPPER, PATIENCE, EVERY = 50, 3, 4, 6, 1, 2


def rows(generator, count, width):
    """Points and labels with something to learn and something that cannot be learned."""
    points = generator.normal(size=(count, width))
    return points, (points[:, 0] + generator.normal(size=count) > 0).astype(np.int32)


def labelled_tasks(width):
    generator = np.random.default_rng(3)
    return [bl.Task(*(rows(generator, count, width) for count in (20, 15, 12)), name=f"{i}") for i in range(TASKS)]


def taken(source, sample):
    """The rows that a sample of row numbers stands for, of every task."""
    return [np.asarray(a) for a in jax.vmap(type(source).take, in_axes=(source.axes, 0))(source, sample)]


def close(ours, reference):
    np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10)


def walk(problem, solver, x, reference, compare):
    """50 steps of both, compared after every one; the rates that ours had."""
    state = solver.init(problem, x, key=jax.random.key(0), steps=STEPS)
    [group], rates, step = problem.groups, [], jax.jit(solver.step)
    for k in range(STEPS):
        key = jax.random.fold_in(jax.random.key(1), k)
        lower_key, upper_key = jax.random.split(key)
        lower, upper = draw_steps(problem, lower_key, solver.lower_steps), problem.draw_upper(upper_key)
        batches = [
            taken(group.train, jax.tree.map(lambda s, t=t: s[:, t], lower.groups[0])) for t in range(solver.lower_steps)
        ]
        state, info = step(problem, state, key)
        reference.step(batches, taken(group.validation, upper.groups[0].upper))
        compare(state)
        close(state.weights, reference.weights)
        rates.append([float(info.upper_rate), float(info.weights_rate), *np.asarray(info.lower_rate).tolist()])
    return np.array(rates)


def held_out_of(problem):
    """The test points of every task, and their labels."""
    own = [problem.groups[0].test.task(i) for i in range(TASKS)]
    return tuple([np.asarray(rows[kind]) for rows in own] for kind in range(2))


def fell(rates):
    """How often each rate fell."""
    return (np.diff(rates, axis=0) < 0).sum(axis=0)


@pytest.mark.parametrize("robust", [False, True], ids=["min-avg", "min-max"])
def test_fashion(robust):
    network = MLP((5, 4))
    losses = NetworkHeads(network, softmax_cross_entropy_twice, 0.01, squared_weights)
    tasks = with_heads(labelled_tasks(5), 4, 2, 7)
    problem = bl.Problem(losses.upper, losses.lower, tasks, lower_batch=LOWER, upper_batch=UPPER)
    x = network.init(1, jnp.float64)
    options = {"lower_steps": 2, "decay": 0.01, "upper_penalty": 0.02, "patience": PATIENCE, "every": EVERY}
    solver = ScriptDescent(0.05, 0.1, 0.05 if robust else None, **options)
    heads = problem.groups[0].y
    reference = Fashion(
        *(np.asarray(a) for a in (x[0], heads.w, heads.b)),
        *(robust, 0.05, 0.1, 0.05, 0.01, 0.02),
        **{"decay": 0.01, "every": EVERY, "patience": PATIENCE, "factor": 0.5, "test": held_out_of(problem)},
    )

    def compare(state):
        close(state.x[0], reference.W)
        close(state.y.groups[0].w, reference.w)
        close(state.y.groups[0].b, reference.b)

    falls = fell(walk(problem, solver, x, reference, compare))
    assert (np.delete(falls, 1) >= 2).all(), "the plateau rule fires for x and every head"
    assert (falls[1] >= 2) == robust


@pytest.mark.parametrize("robust", [False, True], ids=["min-avg", "min-max"])
def test_letter(robust):
    generator = np.random.default_rng(5)
    losses = FourierHeads(jnp.asarray(generator.normal(size=(5, 3))))
    tasks = with_heads(labelled_tasks(5), 6, 2, 7)
    problem = bl.Problem(losses.upper, losses.lower, tasks, bl.constraints.NonNegative(), LOWER, UPPER)
    # Penalties and bandwidths so near to 0 that some end there.
    x = Hyperparameters(jnp.asarray(generator.uniform(0, 0.1, 6)), jnp.asarray(generator.uniform(0, 0.1, 5)))
    options = {"lower_steps": 2, "pull": 0.05, "floor": 0.4, "patience": PATIENCE, "every": EVERY}
    solver = ScriptDescent(0.05, 0.1, 0.4 if robust else None, **options)
    heads = problem.groups[0].y
    reference = Letter(
        *(np.asarray(a) for a in (x.penalty, x.bandwidth, losses.R, heads.w, heads.b)),
        *(robust, 0.05, 0.1, 0.4, 0.05, 0.4),
        **{"every": EVERY, "patience": PATIENCE, "factor": 0.5, "test": held_out_of(problem)},
    )

    lightest = []

    def compare(state):
        lightest.append(float(state.weights.min()))
        close(state.x.penalty, reference.C)
        close(state.x.bandwidth, reference.G)
        close(state.y.groups[0].w, reference.w)
        close(state.y.groups[0].b, reference.b)

    falls = fell(walk(problem, solver, x, reference, compare))
    assert (np.delete(falls, 1) >= 2).all()
    assert (falls[1] >= 2) == robust
    assert np.any(reference.C == 0), "x is at its bound"
    assert not robust or np.isclose(min(lightest), 0.4 / TASKS), "a weight was at its floor"


@pytest.mark.parametrize("robust", [False, True], ids=["min-avg", "min-max"])
def test_sinusoids(robust):
    network = MLP((1, 6, 5, 4), active=False, bias=True)
    losses = NetworkHeads(network, squared_error, 0.01, lengths)
    tasks = with_heads(bl.datasets.sinusoids(TASKS), 4, 1, 7)
    problem = bl.Problem(losses.upper, losses.lower, tasks, lower_batch=LOWER, upper_batch=UPPER)
    x = network.init(1, jnp.float64)
    ascent = bl.weightings.SimplexAscent(0.003, pull=1.5) if robust else bl.weightings.Average()
    solver = RepeatedRows(0.007, 0.005, bl.hypergradients.Direct(), ascent, lower_rule=optax.adam)
    heads = problem.groups[0].y
    layers = [(np.asarray(layer["w"]), np.asarray(layer["b"])) for layer in x]
    reference = Sinusoids(layers, np.asarray(heads.w[:, :, 0]), np.asarray(heads.b[:, 0]), robust, 0.007, 0.005, 0.003)
    state, step = solver.init(problem, x, key=jax.random.key(0), steps=STEPS), jax.jit(solver.step)
    for k in range(STEPS):
        key = jax.random.fold_in(jax.random.key(1), k)
        lower_key, upper_key = jax.random.split(key)
        lower, upper = draw_steps(problem, lower_key, 1), problem.draw_upper(upper_key)
        state, _ = step(problem, state, key)
        batches = [a[:, 0] for a in lower.groups[0].batch], upper.groups[0].upper.batch
        reference.step(*jax.tree.map(np.asarray, batches))
        for layer, (w, b) in zip(state.x, reference.x, strict=True):
            close(layer["w"], w)
            close(layer["b"], b)
        close(state.y.groups[0].w[:, :, 0], reference.w)
        close(state.y.groups[0].b[:, 0], reference.b)
        close(state.weights, reference.weights)
    assert np.ptp(reference.weights) > 1e-3 or not robust


def test_a_rate_falls_after_more_than_patience_looks_and_never_by_less_than_the_least():
    falling, rates = Falling.start(jnp.asarray(1.0)), []
    for metric in [3.0, 2.0, 2.0 * (1 - 0.9e-4), 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]:
        falling = falling.after(jnp.asarray(metric), 2, 0.5)
        rates.append(float(falling.rate))
    assert rates == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]
    small = Falling(jnp.asarray(1.5e-8), jnp.asarray(0.0), jnp.asarray(5))
    assert float(small.after(jnp.asarray(1.0), 2, 0.5).rate) == 1.5e-8


def test_the_script_s_own_draw_of_sinusoids():
    """Its amplitudes come first, then its frequencies, then its phases, from one generator."""
    tasks = experiments.script_tasks(0)
    waves = [task.train.parameters for task in tasks]
    numpy = np.random.RandomState(123)
    np.testing.assert_allclose([w.amplitude for w in waves], 0.1 + 4.9 * numpy.random_sample(30))
    np.testing.assert_allclose([w.frequency for w in waves], 1 + 2 * numpy.random_sample(30))
    np.testing.assert_allclose([w.phase for w in waves], np.pi * numpy.random_sample(30))


def test_letter_s_rows_are_the_script_s():
    [task] = bl.datasets.letter_pairs(1, rows=100)
    points, labels = experiments.as_in_the_script(task).train
    assert set(np.unique(labels)) == {0, 1}
    assert points.min() >= 0
    assert points.max() <= 15
    np.testing.assert_allclose(points, np.round(points), atol=1e-5)
