"""What the number of tasks costs in memory: a step must never hold one copy of x per task.

x is an embedding table of a million numbers; a task looks up the rows of its batch and has a linear head of
its own. For 10 and for 100 tasks, the temporary memory that XLA plans for a compiled step is read off, for
every hypergradient estimator, with given and with automatic rates, and likewise for the measurements that
automatic rates rest on. The growth is in percent of one copy of x per added task, for temporary memory alone
and with the results: a program that builds such copies shows 100 % or more in one of them, as the last row
does by choice. Nothing is run, only compiled.

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
COUNT = jax.ShapeDtypeStruct((), jnp.int32)
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


def planned_bytes(function: Callable, *arguments: Any) -> tuple[int, int]:
    """Temporary memory alone, and with the results, which XLA also uses as working space."""
    plan = jax.jit(function).lower(*arguments).compile().memory_analysis()
    return plan.temp_size_in_bytes, plan.temp_size_in_bytes + plan.output_size_in_bytes


def start(tasks: int) -> tuple:
    """x, y, key and the number of steps, as `solver.start` takes them: shapes only."""
    x = jax.ShapeDtypeStruct((WORDS, WIDTH), jnp.float32)
    y = jax.ShapeDtypeStruct((tasks, WIDTH), jnp.float32)
    return x, (y,), jax.random.key(0), COUNT


def of_start(solver: Any, tasks: int) -> tuple[int, int]:
    return planned_bytes(solver.start, embedding_problem(tasks), *start(tasks))


def of_step(solver: Any, tasks: int) -> tuple[int, int]:
    problem = embedding_problem(tasks)
    state = jax.eval_shape(solver.start, problem, *start(tasks))
    return planned_bytes(solver.step, problem, state, jax.random.key(0))


def of_refresh(solver: Any, tasks: int) -> tuple[int, int]:
    problem = embedding_problem(tasks)
    state = jax.eval_shape(solver.start, problem, *start(tasks))
    return planned_bytes(solver.refresh, problem, state, jax.random.key(0), COUNT)


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
        ("step, MRBO with a direction per task", of_step, bl.MRBO(tracker=bl.trackers.Storm(per_task=True))),
    ]


def main() -> None:
    copies = (MANY - FEW) * WORDS * WIDTH * 4
    columns = f"n = {FEW}", f"n = {MANY}", "growth", "with results"
    header = [f"{name:>{width}}" for name, width in zip(columns, (10, 10, 9, 13), strict=True)]
    print(f"{'temporary memory':40} " + " ".join(header), flush=True)
    for name, measure, solver in rows():
        few, many = measure(solver, FEW), measure(solver, MANY)
        alone, together = (100 * (b - a) / copies for a, b in zip(few, many, strict=True))
        sizes = f"{few[0] / 1e6:7.2f} MB {many[0] / 1e6:7.2f} MB"
        above = f"   above {GOAL:g} %" if max(alone, together) >= GOAL else ""
        print(f"{name:40} {sizes} {alone:7.2f} % {together:11.2f} %{above}", flush=True)


if __name__ == "__main__":
    main()
