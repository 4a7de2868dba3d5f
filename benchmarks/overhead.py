"""What the library costs: `bl.solve` against a `lax.scan` of the same mathematics, written by hand.

Three shapes, with synthetic data: sinusoid regression, kernel logistic regression whose penalties and
bandwidths are tuned, and a shared layer for image classifiers. Both sides draw the same samples and must end
at the same x. `solve` does all it does for a user (checks, evaluates 50 times, averages, keeps a random
iterate, watches for divergence); the scan by hand does nothing but step. Both are compiled first, then run in
turn, so that whatever else the machine does slows both. Times are of whole calls; the ratio is the median
over pairs of neighbouring runs. The column "unwatched" has the ratio for a `solve` that evaluates at the end
only: evaluations cost the same however long the run, so this is what a long run tends to.

    python benchmarks/overhead.py                 # all cases
    python benchmarks/overhead.py letter          # those whose name contains "letter"
    python benchmarks/overhead.py --repeats 15
    NPROC=1 python benchmarks/overhead.py --cpu   # CPU time on one thread: steadier on a busy machine
    python benchmarks/overhead.py --ours          # for versions.py: `solve` alone, a line `name<TAB>CPU seconds` a case
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl


class Shape(NamedTuple):
    """A problem, as both sides get it."""

    upper: Callable  # f(x, y, batch) of one task
    lower: Callable  # g(x, y, batch) of one task
    train: Any  # arrays of shape (tasks, rows, ...), or parameters of `sample`
    validation: Any
    lower_batch: int
    upper_batch: int
    x: Any
    y: jax.Array  # one task's
    tasks: int
    nonnegative: bool = False
    sample: Callable | None = None  # makes a batch of (parameters, key, size)


class Rates(NamedTuple):
    """Fixed ones."""

    upper: float
    lower: float
    weights: float
    v: float = 0.0  # of the estimator


# ---------------------------------------------------------------------------------------------- three shapes


def dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    return {"w": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, "b": jnp.zeros(outputs)}


def forward(layer: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
    return jax.nn.relu(inputs @ layer["w"] + layer["b"])


def sinusoids(tasks: int = 20, batch: int = 10) -> Shape:
    def sample(parameters, key, size):
        t = jax.random.uniform(key, (size,), minval=-5.0, maxval=5.0)
        return t, parameters["amplitude"] * jnp.sin(t - parameters["phase"])

    def upper(x, y, batch):
        t, target = batch
        features = t[:, None]
        for layer in x:
            features = forward(layer, features)
        return jnp.mean((features @ y - target) ** 2)

    def lower(x, y, batch):
        return upper(x, y, batch) + 0.01 * jnp.sum(y**2)

    rng = np.random.default_rng(0)
    parameters = {
        "amplitude": jnp.asarray(rng.uniform(0.1, 5.0, tasks), jnp.float32),
        "phase": jnp.asarray(rng.uniform(0.0, np.pi, tasks), jnp.float32),
    }
    keys = jax.random.split(jax.random.key(1), 3)
    x = [dense(k, a, b) for k, a, b in zip(keys, (1, 80, 80), (80, 80, 10), strict=True)]
    return Shape(upper, lower, parameters, parameters, batch, batch, x, jnp.zeros(10), tasks, sample=sample)


def letter(tasks: int = 16, batch: int = 8, frequencies: int = 128) -> Shape:
    rng = np.random.default_rng(0)
    directions = jnp.asarray(rng.normal(size=(16, frequencies)), jnp.float32)

    def upper(x, y, batch):
        inputs, sign = batch
        angles = (inputs * x["bandwidth"]) @ directions
        features = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1) / frequencies**0.5
        return jnp.mean(jax.nn.softplus(-sign * (features @ y)))

    def lower(x, y, batch):
        return upper(x, y, batch) + jnp.sum((x["penalty"] * y) ** 2)

    def rows(count):
        inputs = rng.normal(size=(tasks, count, 16))
        sign = np.sign(np.einsum("trd,td->tr", inputs, slopes) + rng.normal(size=(tasks, count)))
        return jnp.asarray(inputs, jnp.float32), jnp.asarray(sign, jnp.float32)

    slopes = rng.normal(size=(tasks, 16))
    x = {"penalty": jnp.full(2 * frequencies, 0.2), "bandwidth": jnp.full(16, 0.3)}
    y = jnp.zeros(2 * frequencies)
    return Shape(upper, lower, rows(900), rows(300), batch, batch, x, y, tasks, nonnegative=True)


def fashion(tasks: int = 10, hidden: int = 100) -> Shape:
    def upper(x, y, batch):
        images, label = batch
        logits = forward(x, images) @ y
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, label))

    def lower(x, y, batch):
        return upper(x, y, batch) + 0.0005 * jnp.sum(y**2)

    def rows(count):
        label = rng.integers(2, size=(tasks, count))
        images = rng.uniform(size=(tasks, count, 784)) + 0.1 * label[..., None] * means[:, None]
        return jnp.asarray(np.clip(images, 0, 1), jnp.float32), jnp.asarray(label, jnp.int32)

    rng = np.random.default_rng(0)
    means = rng.normal(size=(tasks, 784))
    x = dense(jax.random.key(1), 784, hidden)
    y = 0.1 * jax.random.normal(jax.random.key(2), (hidden, 2))
    return Shape(upper, lower, rows(2000), rows(400), 8, 128, x, y, tasks)


# ---------------------------------------------------------------------------------------------- both sides


def by_library(
    shape: Shape, estimator: Any, rates: Rates, steps: int, every: int | None = None
) -> Callable[[int], Any]:
    train, validation = shape.train, shape.validation
    if shape.sample is not None:
        train, validation = bl.Generator(shape.sample, train), bl.Generator(shape.sample, validation)
    problem = bl.Problem(
        shape.upper,
        shape.lower,
        bl.Task.stack(train=train, validation=validation),
        constraint=bl.constraints.NonNegative() if shape.nonnegative else None,
        lower_batch=shape.lower_batch,
        upper_batch=shape.upper_batch,
    )
    solver = bl.MORBiT(
        upper_lr=rates.upper,
        lower_lr=rates.lower,
        hypergradient=estimator,
        weighting=bl.weightings.SimplexAscent(lr=rates.weights),
    )

    def run(seed: int) -> Any:
        options = {"steps": steps, "seed": seed, "every": every, "progress": False}
        return bl.solve(problem, solver, shape.x, shape.y, **options).x

    return run


def by_hand(shape: Shape, estimator: Any, rates: Rates, steps: int) -> Callable[[int], Any]:
    f, g, ids = shape.upper, shape.lower, jnp.arange(shape.tasks)
    each = lambda function: jax.vmap(function, in_axes=(None, 0, 0))  # noqa: E731  (x is shared)

    def draw(data, keys, size):
        if shape.sample is not None:
            return jax.vmap(lambda parameters, key: shape.sample(parameters, key, size))(data, keys)
        rows = jax.tree.leaves(data)[0].shape[1]
        take = lambda a, key: a[jax.random.randint(key, (size,), 0, rows)]  # noqa: E731
        return jax.tree.map(lambda a: jax.vmap(take)(a, keys), data)

    def task_keys(key):
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, ids)

    def hessian_product(x, y, v, batch):
        product = lambda x, yv, b: jax.jvp(lambda y: jax.grad(g, 1)(x, y, b), yv[:1], yv[1:])[1]  # noqa: E731
        return each(product)(x, (y, v), batch)

    def implicit_gradient(x, y, v, weights, batch, lower_batch):
        def surrogate(x):
            losses = each(f)(x, y, batch)
            slope = lambda x, yv, b: jax.jvp(lambda y: g(x, y, b), yv[:1], yv[1:])[1]  # noqa: E731
            return jnp.vdot(weights, losses - each(slope)(x, (y, v), lower_batch)), losses

        return jax.grad(surrogate, has_aux=True)(x)

    def step(carry, key):
        x, y, v, weights = carry
        lower_key, upper_key = jax.random.split(key)
        first = draw(shape.train, task_keys(jax.random.split(lower_key, 1)[0]), shape.lower_batch)
        descend = lambda x: y - rates.lower * each(jax.grad(g, 1))(x, y, first)  # noqa: E731
        keys = jax.vmap(lambda key: jax.random.split(key, 3))(task_keys(upper_key))
        batch = draw(shape.validation, keys[:, 0], shape.upper_batch)

        if isinstance(estimator, bl.hypergradients.Unrolled):

            def unrolled(x):
                new = descend(x)
                losses = each(f)(x, new, batch)
                return jnp.vdot(weights, losses), (losses, new)

            direction, (losses, y) = jax.grad(unrolled, has_aux=True)(x)
        elif isinstance(estimator, bl.hypergradients.Direct):
            y = descend(x)
            weighted = lambda x: (jnp.vdot(weights, losses := each(f)(x, y, batch)), losses)  # noqa: E731
            direction, losses = jax.grad(weighted, has_aux=True)(x)
        elif isinstance(estimator, bl.hypergradients.Tracked):
            y = descend(x)
            lower_batch = draw(shape.train, keys[:, 1], shape.lower_batch)
            v = v - rates.v * (hessian_product(x, y, v, lower_batch) - each(jax.grad(f, 1))(x, y, batch))
            direction, losses = implicit_gradient(x, y, v, weights, batch, lower_batch)
        elif isinstance(estimator, bl.hypergradients.Neumann):
            y = descend(x)
            lower_batch = draw(shape.train, keys[:, 1], shape.lower_batch)

            def term(q, sums):
                total, rest = sums
                fresh_keys = jax.vmap(lambda key: jax.random.fold_in(key, q))(keys[:, 2])
                fresh = draw(shape.train, fresh_keys, shape.lower_batch)
                return total + rates.v * rest, rest - rates.v * hessian_product(x, y, rest, fresh)

            right = each(jax.grad(f, 1))(x, y, batch)
            total, rest = jax.lax.fori_loop(0, estimator.terms - 1, term, (jnp.zeros_like(right), right))
            total = total + rates.v * rest
            direction, losses = implicit_gradient(x, y, total, weights, batch, lower_batch)

        x = jax.tree.map(lambda a, d: a - rates.upper * d, x, direction)
        if shape.nonnegative:
            x = jax.tree.map(lambda a: jnp.maximum(a, 0), x)
        weights = optax.projections.projection_simplex(weights + rates.weights * losses)
        return (x, y, v, weights), None

    @jax.jit
    def loop(x, y, key):
        start = (x, y, jnp.zeros_like(y), jnp.full(shape.tasks, 1 / shape.tasks))
        body = lambda carry, k: step(carry, jax.random.fold_in(key, k))  # noqa: E731
        return jax.lax.scan(body, start, jnp.arange(steps))[0][0]

    def run(seed: int) -> Any:
        y = jnp.broadcast_to(shape.y, (shape.tasks, *shape.y.shape))
        return loop(shape.x, y, jax.random.fold_in(jax.random.key(seed), 1))

    return run


# ---------------------------------------------------------------------------------------------- measuring


class Case(NamedTuple):
    """One row of the table."""

    name: str
    shape: Callable[[], Shape]
    estimator: Any
    rates: Rates
    steps: int


H = bl.hypergradients
CASES = [
    Case("sinusoids, Tracked", sinusoids, H.Tracked(lr=1e-3), Rates(2e-5, 1e-3, 1e-4, 1e-3), 10_000),
    Case("sinusoids, Unrolled", sinusoids, H.Unrolled(), Rates(2e-5, 1e-3, 1e-4), 10_000),
    Case("letter, Neumann(10)", letter, H.Neumann(10, lr=0.5), Rates(1e-2, 0.1, 1e-3, 0.5), 6_000),
    Case("fashion, Tracked", fashion, H.Tracked(lr=0.01), Rates(2e-4, 0.01, 1e-3, 0.01), 5_000),
    Case("fashion, Unrolled", fashion, H.Unrolled(), Rates(2e-4, 0.01, 1e-3), 5_000),
    Case("fashion, Direct", fashion, H.Direct(), Rates(2e-4, 0.01, 1e-3), 5_000),
]


def distance(x: Any, other: Any) -> float:
    """The largest difference, as a part of the largest entry."""
    size = max(float(jnp.max(jnp.abs(a))) for a in jax.tree.leaves(x))
    gaps = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), x, other)
    return max(jax.tree.leaves(gaps)) / size


def seconds(run: Callable[[int], Any], clock: Callable[[], float]) -> float:
    began = clock()
    jax.block_until_ready(run(0))
    return clock() - began


def measure(case: Case, repeats: int, clock: Callable[[], float]) -> str:
    shape = case.shape()
    arguments = (shape, case.estimator, case.rates, case.steps)
    sides = [by_library(*arguments), by_hand(*arguments), by_library(*arguments, every=case.steps)]
    x, other, _ = [run(0) for run in sides]  # compiles all
    moved, apart = distance(x, shape.x), distance(x, other)
    assert moved > 1e-3, f"{case.name}: x hardly moved ({moved:.1e}), so that equality would say nothing"
    assert apart <= 1e-5, f"{case.name}: the two sides end {apart:.1e} apart"
    times = np.array([[seconds(run, clock) for run in sides] for _ in range(repeats)]) / case.steps * 1e6
    ratio, bare = times[:, 0] / times[:, 1], times[:, 2] / times[:, 1]
    us = np.median(times, axis=0)
    return (
        f"{case.name:20} {case.steps:7} {us[0]:10.0f} {us[1]:10.0f} {np.median(ratio):8.2f} "
        f"{ratio.min():6.2f} {ratio.max():6.2f} {np.median(bare):9.2f} {apart:9.0e}"
    )


def ours(case: Case) -> float:
    """CPU seconds of one `solve` that is already compiled."""
    run = by_library(case.shape(), case.estimator, case.rates, case.steps)
    run(0)
    return seconds(run, time.process_time)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times bl.solve against a hand-written lax.scan.")
    parser.add_argument("only", nargs="?", default="", help="a part of the names of the cases to run")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="measure CPU time of the process, not time passed")
    parser.add_argument("--ours", action="store_true", help="print `name<TAB>CPU seconds` of `solve` alone")
    parser.add_argument("--steps", type=int, help="how many steps a run has; none = the case's own number")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    if options.steps is not None:
        cases = [case._replace(steps=options.steps) for case in cases]
    if options.ours:
        for case in cases:
            print(f"{case.name}\t{ours(case):.6f}", flush=True)
        return
    clock = time.process_time if options.cpu else time.perf_counter
    columns = ("steps", 7), ("us/step", 10), ("by hand", 10), ("ratio", 8), ("min", 6), ("max", 6)
    columns = (*columns, ("unwatched", 9), ("x apart", 9))
    print(f"{'case':20} " + " ".join(f"{name:>{width}}" for name, width in columns), flush=True)
    for case in cases:
        print(measure(case, options.repeats, clock), flush=True)


if __name__ == "__main__":
    main()
