"""Rows that stream in: four plants report readings for ever, no row is seen twice, and nothing is kept.

One x for all plants: which two combinations of six sensors are sent on; y_i, how plant i makes a prediction of them.
Three plants have much in common and the fourth nothing with them, so that a mean over plants gives it up. Min-max
serves it at the expense of two others. (The problem is not convex in x: a search from many starts finds a worst loss of
0.21, lower still.)

A problem is a value: one problem a batch, all of the same shapes, and the step is compiled once. The loader here is a
plain Python generator. `iter(torch.utils.data.DataLoader(..., drop_last=True))`, with `.numpy()` on what it yields, or
the iterator of a grain dataset goes in its place; all that is asked of it is that shapes stay the same.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

# What the target of each plant depends on, by sensor.
TRUTH = np.array([[3, 0, 1, 0, 0, 0], [2, 1, 2, 0, 0, 0], [1, 2, 3, 0, 0, 0], [0, 0, 0, 0, 1, 2]], np.float32) / 3
PLANTS, SENSORS = TRUTH.shape


def loader(rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches (readings, target) of all plants, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        readings = rng.normal(size=(PLANTS, rows, SENSORS)).astype(np.float32)
        noise = 0.1 * rng.normal(size=(PLANTS, rows)).astype(np.float32)
        yield readings, np.einsum("prs,ps->pr", readings, TRUTH) + noise


def upper(x, y, batch):
    readings, target = batch
    return jnp.mean((readings @ x @ y - target) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.01 * jnp.sum(y**2)


def problem_of(train, validation) -> bl.Problem:
    return bl.Problem(upper, lower, bl.Task.stack(train=train, validation=validation))


def learn(weighting, steps: int = 3000) -> tuple[bl.State, int]:
    """The last state, and how often the step was compiled."""
    train, validation = loader(64, seed=1), loader(64, seed=2)
    solver = bl.Tandem(weighting=weighting)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(SENSORS, 2)), jnp.float32) / 2
    problem = problem_of(next(train), next(validation))
    state = solver.init(problem, x, jnp.zeros(2), key=jax.random.key(0), steps=steps)
    step = jax.jit(solver.step)
    for k, (ours, theirs) in enumerate(zip(train, validation, strict=True)):
        if k == steps:
            break
        state, _ = step(problem_of(ours, theirs), state, jax.random.key(k))
    return state, step._cache_size()


def held_out(state: bl.State) -> np.ndarray:
    """The loss of every plant on rows of another stream."""
    readings, target = next(loader(5000, seed=3))
    return np.array([upper(state.x, y, rows) for y, *rows in zip(state.y.groups[0], readings, target, strict=True)])


def main() -> None:
    for name, weighting in (("min-avg", bl.weightings.Average()), ("min-max", bl.weightings.SimplexAscent())):
        state, compiled = learn(weighting)
        losses = held_out(state)
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        print(f"{name}: plants {shown}  worst {losses.max():.3f}  mean {losses.mean():.3f}  ({compiled} compilation)")


if __name__ == "__main__":
    main()
