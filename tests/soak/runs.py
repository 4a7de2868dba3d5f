"""The runs that are killed: small problems on solvers that carry different things from step to step."""

import functools
import hashlib
import time
from typing import Any, NamedTuple

import numpy as np

STEPS, EVERY = 1200, 40
SMALL, LARGE = 4_000, 3_130_000  # numbers in x, for states of about 100 kB and 50 MB


class Setup(NamedTuple):
    """One run: what is solved, how, and how it is kept."""

    solver: str
    size: int = SMALL
    adam: bool = False
    seeds: int | None = None
    steps: int = STEPS


SETUPS = {
    "MORBiT": Setup("MORBiT"),
    "Tandem": Setup("Tandem"),
    "SABA": Setup("SABA", size=1_000),
    "SPABA": Setup("SPABA"),
    "STABLE": Setup("STABLE", size=2_000),
    "GDA": Setup("GDA"),
    "MORBiT, Adam": Setup("MORBiT", adam=True),
    "MORBiT, 2 seeds": Setup("MORBiT", seeds=2),
    "MORBiT, 50 MB": Setup("MORBiT", size=LARGE, steps=120),
}


def upper(x, y, batch):
    import jax.numpy as jnp

    target = jnp.cos(jnp.arange(x.size, dtype=x.dtype))
    return jnp.mean((batch @ y - 1) ** 2) + 0.1 * jnp.mean((x - target) ** 2)


def lower(x, y, batch):
    import jax.numpy as jnp

    return jnp.mean((batch @ y - jnp.mean(x)) ** 2) + 0.1 * jnp.sum(y**2)


def loss(x, batch):
    return upper(x, x[:2], batch)


def _solver(setup: Setup) -> Any:
    import optax

    import bilevel as bl

    if setup.solver == "GDA":
        return bl.GDA(0.05, bl.weightings.SimplexAscent(0.05))
    rules = {"upper_rule": optax.adam, "lower_rule": optax.adam} if setup.adam else {}
    return getattr(bl, setup.solver)(0.05, 0.05, weighting=bl.weightings.SimplexAscent(0.05), **rules)


def run(setup: Setup, folder: str, pause: float, seconds: float | None = None) -> list:
    """Makes the run, or goes on with it; `pause` is slept at each evaluation, which changes nothing in it."""
    import bilevel as bl

    rows = np.random.default_rng(0).normal(size=(2, 2, 8, 2)).astype(np.float32)
    tasks = [bl.Task(train, validation, name=str(i)) for i, (train, validation) in enumerate(rows)]
    if setup.solver == "GDA":
        problem, y = bl.MinMaxProblem(loss, tasks, batch=2), None
    else:
        problem, y = bl.Problem(upper, lower, tasks, lower_batch=2, upper_batch=2), np.zeros(2, np.float32)
    checkpoint = bl.Checkpoint(folder, seconds=seconds, steps=EVERY if seconds is None else None)
    found = bl.solve(
        problem,
        _solver(setup),
        np.zeros(setup.size, np.float32),
        y,
        steps=setup.steps,
        every=EVERY,
        seeds=setup.seeds,
        progress=False,
        callback=functools.partial(_rest, pause),
        checkpoint=checkpoint,
        resume=True,
    )
    return [found] if setup.seeds is None else list(found)


def _rest(pause: float, row: dict) -> None:
    time.sleep(pause)


def digest(results: list) -> str:
    """Of every bit that a run has reached but for the time that it took."""
    import jax

    known = hashlib.sha256()
    for result in results:
        points = [getattr(result, name) for name in ("last", "best", "random", "average")]
        for leaf in jax.tree.leaves([(p.x, p.y.stacked, p.weights, p.losses) for p in points]):
            known.update(np.asarray(leaf).tobytes())
        for name, column in result.history.items():
            known.update(b"" if name == "seconds" else np.asarray(column).tobytes())
        known.update(f"{result.status} {result.steps}".encode())
    return known.hexdigest()
