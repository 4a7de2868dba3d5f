"""How far the mean of every estimator is from the hypergradient, on batches.

Three tasks of 24 rows share a scale for each of three features; every task fits a ridge regression on the scaled
features. x and y stand still, y at the lower solution, while a solver takes steps whose rows are drawn anew; what its
estimator carries (v, p) moves, and has settled before anything is measured. A number is

    |mean direction of x - hypergradient on all the data|  /  |its implicit term J A^-1 f_y|

in percent, with a standard error from independent chains. Noise alone makes it about as large as that error. The last
column has all the data in every batch, and so what no batch can be blamed for: a series that ends, a penalty that is
finite, a term that is left out.

    python benchmarks/estimator_bias.py
    python benchmarks/estimator_bias.py --chains 512 --steps 4000
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl

TASKS, ROWS, FEATURES = 3, 24, 3
RATE = 0.4  # of v; of y where steps are replayed
TINY = 1e-6  # of x, which is put back after every step: only how far it went is of interest
STRENGTH = 20.0
SETTLE = 500  # steps before the first that is measured
BATCHES = {"2 / 4 rows": (2, 4), "8 / 8 rows": (8, 8), "all the data": (None, None)}  # of f / of g

jax.config.update("jax_enable_x64", True)


def error(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
    points, target = batch
    return jnp.mean(((points * x[None]) @ y - target) ** 2) / 2


def regularised_error(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
    return error(x, y, batch) + 0.15 * jnp.sum(y**2)


class Setting(NamedTuple):
    """A problem, the point where everything stands still, and the truth there."""

    problem: bl.Problem
    x: jax.Array
    y: bl.PerTask[jax.Array]
    gradient: jax.Array  # f_x - J A^-1 f_y on all the data, averaged over the tasks
    implicit: jax.Array  # |J A^-1 f_y|


def setting() -> Setting:
    rng = np.random.default_rng(0)

    def rows(truth: np.ndarray) -> tuple[jax.Array, jax.Array]:
        points = rng.uniform(-1.5, 1.5, size=(ROWS, FEATURES))
        return jnp.array(points), jnp.array(points @ truth + 0.5 * rng.normal(size=ROWS))

    truths = rng.normal(size=(TASKS, FEATURES))
    # Validation rows follow another truth, so that f_y is not small at the lower solution.
    tasks = [bl.Task(rows(truth), rows(truth + rng.normal(size=FEATURES))) for truth in truths]
    problem, x = bl.Problem(error, regularised_error, tasks), jnp.array([1.0, 0.7, 1.2])

    def solution(points: jax.Array, target: jax.Array) -> jax.Array:
        scaled = points * x[None]
        return jnp.linalg.solve(scaled.T @ scaled / ROWS + 0.3 * jnp.eye(FEATURES), scaled.T @ target / ROWS)

    y = bl.PerTask((jnp.stack([solution(*task.train) for task in tasks]),))

    def direction(estimator: Any) -> jax.Array:
        solver = with_estimator(estimator)
        state = solver.start(problem, x, y, jax.random.key(0), jnp.ones((), int))
        return (x - solver.step(problem, state, jax.random.key(0))[0].x) / TINY

    plain, exact = direction(bl.hypergradients.Direct()), direction(bl.hypergradients.Exact())
    return Setting(problem, x, y, exact, jnp.linalg.norm(exact - plain))


def with_estimator(estimator: Any, lower_lr: float = 0.0, lower_steps: int = 1) -> bl.MORBiT:
    """MORBiT with an estimator; y stands still unless it is given a rate."""
    return bl.MORBiT(TINY, lower_lr, estimator, bl.weightings.Average(), lower_steps=lower_steps)


def solvers() -> dict[str, Any]:
    """By name."""
    h, average = bl.hypergradients, bl.weightings.Average()
    slow = 0.1 / STRENGTH
    return {
        "Direct": with_estimator(h.Direct()),
        "Exact": with_estimator(h.Exact()),
        "ConjugateGradient": with_estimator(h.ConjugateGradient()),
        "Neumann(30)": with_estimator(h.Neumann(30, RATE)),
        "Neumann(30), automatic": with_estimator(h.Neumann(30)),
        "RandomNeumann(30)": with_estimator(h.RandomNeumann(30, RATE)),
        "Unrolled, 30 steps": with_estimator(h.Unrolled(), RATE, 30),
        "Tracked": with_estimator(h.Tracked(RATE)),
        "Tracked(steps=5)": with_estimator(h.Tracked(RATE, 5)),
        "Penalty": with_estimator(h.Penalty(STRENGTH, slow)),
        "Penalty(steps=5)": with_estimator(h.Penalty(STRENGTH, slow, 5)),
        "Penalty(steps=5), lr / 10": with_estimator(h.Penalty(STRENGTH, slow / 10, 5)),
        "SOBA": bl.SOBA(TINY, 0.0, RATE, average),
        "Tandem": bl.Tandem(TINY, 0.0, RATE, average, upper_rule=optax.sgd),
        "FSLA": bl.FSLA(TINY, 0.0, RATE, average, momentum=1.0),
        "F2SA": bl.F2SA(TINY, 0.0, slow, average, strength=STRENGTH),
    }


def mean_directions(solver: Any, at: Setting, chains: int, steps: int) -> jax.Array:
    """The mean direction of every chain."""

    def stay(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        after, _ = solver.step(at.problem, state, key)
        return after._replace(x=at.x, y=at.y), (at.x - after.x) / TINY

    def chain(key: jax.Array) -> jax.Array:
        first, settling, measured = jax.random.split(key, 3)
        state = solver.start(at.problem, at.x, at.y, first, jnp.asarray(steps))
        state, _ = jax.lax.scan(stay, state, jax.random.split(settling, SETTLE))

        def add(carry: tuple, key: jax.Array) -> tuple:
            state, total = carry
            state, direction = stay(state, key)
            return (state, total + direction), None

        (_, total), _ = jax.lax.scan(add, (state, jnp.zeros_like(at.x)), jax.random.split(measured, steps))
        return total / steps

    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(2), chains))


def bias(solver: Any, at: Setting, chains: int, steps: int) -> tuple[float, float]:
    """The bias and its standard error, as parts of the implicit term."""
    means = np.asarray(mean_directions(solver, at, chains, steps))
    spread = np.sqrt(means.var(axis=0, ddof=1).sum() / chains)
    return float(np.linalg.norm(means.mean(axis=0) - at.gradient) / at.implicit), float(spread / at.implicit)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the bias of every estimator on batches.")
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    full = setting()
    print(f"{'bias, % of the implicit term':28}" + "".join(f"{name:>20}" for name in BATCHES), flush=True)
    for name, solver in solvers().items():
        cells = []
        for upper, lower in BATCHES.values():
            groups = tuple(dataclasses.replace(g, upper_batch=upper, lower_batch=lower) for g in full.problem.groups)
            at = full._replace(problem=full.problem.replace(groups=groups))
            found, spread = bias(solver, at, options.chains, options.steps)
            cells.append(f"{100 * found:.2f} ± {100 * spread:.2f}")
        print(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
