"""What the number of tasks costs in memory: a step must never hold one copy of x per task.

x is an embedding table of a million numbers; a task looks up the rows of its batch and has a linear head of its own.
For 10 and for 100 tasks, the temporary memory that XLA plans for a compiled step is read off, for every hypergradient
estimator, with given and with automatic rates, and likewise for the measurements that automatic rates rest on. The
growth is given in percent of one copy of x per added task; a program that builds such copies shows 100 % or more.
Nothing is run, only compiled.

    python benchmarks/memory.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

WORDS, WIDTH, ROWS, BATCH = 100_000, 10, 50, 8
FEW, MANY = 10, 100
GOAL = 1.0  # percent


def prediction_error(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
    words, target = batch
    return jnp.mean((x[words] @ y - target) ** 2)


def regularised_error(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
    return prediction_error(x, y, batch) + 0.01 * jnp.sum(y**2)


def embedding_problem(tasks: int) -> bl.Problem:
    rng = np.random.default_rng(0)

    def rows() -> tuple:
        words = jnp.asarray(rng.integers(WORDS, size=(tasks, ROWS)), jnp.int32)
        return words, jnp.asarray(rng.normal(size=(tasks, ROWS)), jnp.float32)

    stack = bl.Task.stack(train=rows(), validation=rows())
    return bl.Problem(prediction_error, regularised_error, stack, lower_batch=BATCH, upper_batch=BATCH)


def temporary_bytes(function: Callable, *arguments: Any) -> int:
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def of_start(solver: Any, tasks: int) -> int:
    return temporary_bytes(solver.start, embedding_problem(tasks), *start(tasks))


def of_step(solver: Any, tasks: int) -> int:
    problem = embedding_problem(tasks)
    state = jax.eval_shape(solver.start, problem, *start(tasks))
    return temporary_bytes(solver.step, problem, state, jax.random.key(0))


def of_refresh(solver: Any, tasks: int) -> int:
    problem = embedding_problem(tasks)
    state = jax.eval_shape(solver.start, problem, *start(tasks))
    return temporary_bytes(solver.refresh, problem, state, jax.random.key(0))


def start(tasks: int) -> tuple:
    """x, y, key and the number of steps, as `solver.start` takes them."""
    x, y = jax.ShapeDtypeStruct((WORDS, WIDTH), jnp.float32), jax.ShapeDtypeStruct((tasks, WIDTH), jnp.float32)
    return x, (y,), jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)


def given_rates(hypergradient: Any) -> bl.MORBiT:
    weighting = bl.weightings.SimplexAscent(lr=0.01)
    return bl.MORBiT(upper_lr=0.01, lower_lr=0.1, hypergradient=hypergradient, weighting=weighting)


def rows() -> list[tuple[str, Callable, Any]]:
    """The name, the measurement and the solver of every row of the table."""
    given = bl.hypergradients
    estimators = [
        given.Exact(),
        given.ConjugateGradient(),
        given.Neumann(lr=0.1),
        given.RandomNeumann(lr=0.1),
        given.Unrolled(),
        given.Direct(),
        given.Tracked(lr=0.1),
    ]
    automatic = [type(estimator)() for estimator in estimators]
    return [
        *((f"step, {type(e).__name__}, given rates", of_step, given_rates(e)) for e in estimators),
        *((f"step, {type(e).__name__}, automatic", of_step, bl.MORBiT(hypergradient=e)) for e in automatic),
        ("step, MRBO, automatic", of_step, bl.MRBO()),
        ("start, automatic", of_start, bl.MORBiT()),
        ("refresh, automatic", of_refresh, bl.MORBiT()),
    ]


def main() -> None:
    copies = (MANY - FEW) * WORDS * WIDTH * 4
    print(f"{'':40} {f'n = {FEW}':>10} {f'n = {MANY}':>10} {'growth':>8}", flush=True)
    for name, measure, solver in rows():
        few, many = measure(solver, FEW), measure(solver, MANY)
        growth = 100 * (many - few) / copies
        above = f"   above {GOAL:g} %" if growth >= GOAL else ""
        print(f"{name:40} {few / 1e6:7.2f} MB {many / 1e6:7.2f} MB {growth:6.2f} %{above}", flush=True)


if __name__ == "__main__":
    main()
