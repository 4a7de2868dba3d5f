"""What thousands of tasks cost before and after a run: building the problem, and drawing the result.

Tasks are given one by one, each with generators whose parameters are Python's numbers, numpy's, JAX's or random keys;
then one run, and five with as many seeds, are drawn to a file.

    python benchmarks/many_tasks.py
    python benchmarks/many_tasks.py --tasks 20000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

PARAMETERS: dict[str, Callable[[float], Any]] = {
    "Python's numbers": lambda number: {"level": number, "slope": -number},
    "numpy's": lambda number: {"level": np.float32(number), "slope": np.full(3, number)},
    "JAX's": lambda number: {"level": jnp.asarray(number), "slope": jnp.full(3, number)},
    "random keys": lambda number: {"level": jax.random.key(int(1000 * number)), "slope": number},
}

SOLVER = bl.MORBiT(
    0.1, 0.5, weighting=bl.weightings.SimplexAscent(1e-4)
)  # at this rate the weights differ, and are drawn


def sample(parameters: Any, key: jax.Array, size: int) -> jax.Array:
    """Rows around the task's own slope."""
    return jnp.mean(parameters["slope"]) + jax.random.normal(key, (size,))


def loss(x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
    """Least squares."""
    return jnp.mean((y - x - batch) ** 2)


def timed(what: str, function: Callable[[], Any]) -> Any:
    """Prints how long it takes."""
    began = time.perf_counter()
    value = function()
    print(f"{what:<40}{time.perf_counter() - began:8.2f} s")
    return value


def build(parameters: list[Any]) -> bl.Problem:
    """One task at a time."""
    sources = [bl.Generator(sample, own, evaluation=20) for own in parameters]
    return bl.Problem(loss, loss, [bl.Task(own, own, own) for own in sources], lower_batch=4, upper_batch=4)


def main() -> None:
    """Builds and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000)
    count = parser.parse_args().tasks
    numbers = np.random.default_rng(0).uniform(size=count).tolist()
    problem = build([PARAMETERS["Python's numbers"](0.0)])  # imports what is imported late
    for name, make in PARAMETERS.items():
        own = jax.block_until_ready([make(number) for number in numbers])
        problem = timed(f"a problem of {name}", lambda own=own: build(own))
    options: dict[str, Any] = {"x": jnp.array(0.0), "y": jnp.array(0.0), "steps": 50, "progress": False}
    results = bl.solve(problem, SOLVER, seeds=5, **options)
    with tempfile.TemporaryDirectory() as folder:
        bl.plot(bl.solve(build([{"level": 0.0, "slope": 0.0}]), SOLVER, **options), Path(folder) / "a.png")
        timed("a picture of a run", lambda: results[0].plot(Path(folder) / "b.png"))
        timed("a picture of five runs", lambda: results.plot(Path(folder) / "c.png"))


if __name__ == "__main__":
    main()
