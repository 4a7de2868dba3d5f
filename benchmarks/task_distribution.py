"""Waves from a distribution: x learnt for the mean over all that there are, or for the worst tenth of them.

    python benchmarks/task_distribution.py waves [seeds]      new tasks in every step against a pool of 1,000 of them
    python benchmarks/task_distribution.py steps              what a step costs after few and after many of them
    python benchmarks/task_distribution.py hard               the paper's sinusoids, whose heads take long to fit

All are judged on 1,000 tasks that no run saw, each fitted from the common start by `bl.adapt`. `waves` and `steps`
write their tables into docs/scaling.md.

A quarter of the waves is fast, and three features do not carry both speeds: what the mean gives up are the fast ones.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from page import put

import bilevel as bl
from bilevel.studies.datasets.benchmark_data import Wave, wave_rows

DRAWN, FRACTION, POOL, UNSEEN = 64, 0.1, 1000, 1000
POOL_STEPS = 5  # a step on the pool takes one lower step of a task, not eleven: so many of them take about as long
FITTED = (11, 200)  # lower steps of an unseen task: as many as one gets in a step, and many
MEAN, TAIL = bl.weightings.Average(), bl.weightings.CVaR(FRACTION)


def draw(key: jax.Array) -> dict[str, jax.Array]:
    """A slow wave, or one time in four a fast one, of any phase."""
    fast, phase = jax.random.split(key)
    speed = jnp.where(jax.random.bernoulli(fast, 0.25), 2.0, 1.0)
    return {"speed": speed, "phase": 2 * jnp.pi * jax.random.uniform(phase)}


def rows(wave: dict[str, Any], key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Points of a wave."""
    t = jax.random.uniform(key, (size,), minval=-jnp.pi, maxval=jnp.pi)
    return t, jnp.sin(wave["speed"] * t + wave["phase"])


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Of one output a row."""
    return jnp.mean((outputs[:, 0] - targets) ** 2)


TASKS = bl.TaskDistribution(draw, train=rows, validation=rows)


def problem_of(tasks: Any, seed: int) -> tuple[bl.Problem, Any, jax.Array]:
    """The network 1 -> 32 -> 32 -> 3 with a linear head a task; where x and y start."""
    one = bl.Generator(rows, {"speed": 1.0, "phase": 0.0})
    shape: Any = {"layers": (1, 32, 32, 3), "outputs": 1, "active": False, "bias": True, "ridge": 1e-3}
    ready = bl.problems.representation([bl.Task(one, one)], loss=squared_error, seed=seed, **shape)
    group = ready.problem.groups[0]
    problem = bl.Problem(group.upper, group.lower, tasks, lower_batch=20, upper_batch=20)
    return problem, ready.x, jnp.zeros((3, 1))


def judged(problem: bl.Problem, x: Any, y: jax.Array, tasks: Any, steps: int) -> tuple[float, float]:
    """The mean over the worst tenth of unseen tasks, and over all of them."""
    losses = np.sort(np.asarray(bl.adapt(problem, x, tasks, steps=steps, y=y).losses))
    return float(losses[-int(FRACTION * len(losses)) :].mean()), float(losses.mean())


def waves(seeds: int = 5, steps: int = 1000) -> None:
    """Every way, with several seeds of the first network, the draws and the pool."""
    ways = {
        "new tasks, mean": (TASKS, MEAN, bl.sampling.Fresh(DRAWN), 1),
        "new tasks, worst tenth": (TASKS, TAIL, bl.sampling.Fresh(DRAWN), 1),
        "pool, mean": (None, MEAN, bl.sampling.Mixture(DRAWN), POOL_STEPS),
        "pool, worst tenth": (None, TAIL, bl.sampling.Mixture(DRAWN), POOL_STEPS),
    }
    unseen, found = TASKS.sample(UNSEEN, seed=7), {name: [] for name in ways}
    for seed in range(seeds):
        for name, (tasks, weighting, sampling, times) in ways.items():
            pool = TASKS.sample(POOL, seed=1000 + seed) if tasks is None else tasks
            problem, x, y = problem_of(pool, seed)
            solver, began = bl.Tandem(weighting=weighting, sampling=sampling), time.perf_counter()
            result = bl.solve(problem, solver, x, y, steps=steps * times, seed=seed, progress=False)
            seconds = time.perf_counter() - began
            own = [number for fitted in FITTED for number in judged(problem, result.average.x, y, unseen, fitted)]
            found[name].append([seconds, *own])
            print(seed, name, np.round(found[name][-1], 3), flush=True)
    after = [f"{what}, {fitted} lower steps" for fitted in FITTED for what in ("worst tenth", "mean")]
    lines = [f"| x learnt on | steps | seconds | {' | '.join(after)} |", "|---" * (3 + len(after)) + "|"]
    for name, (*_, times) in ways.items():
        numbers = np.array(found[name])
        cells = [f"{own.mean():.3f} ± {own.std(ddof=1):.3f}" for own in numbers.T[1:]]
        lines.append(f"| {name} | {steps * times:,} | {numbers[:, 0].mean():.0f} | {' | '.join(cells)} |")
    put("task distribution", "\n".join(lines))


def steps(length: int = 3000, tenths: int = 10, times: int = 3) -> None:
    """Parts of a run, early and late, each the fastest of some repetitions: other programs run beside it."""
    problem, x, y = problem_of(TASKS, 0)
    solver = bl.Tandem(weighting=TAIL, sampling=bl.sampling.Fresh(DRAWN))
    seen: list[tuple[float, float]] = []

    def look(row: dict[str, Any]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        seen.append((time.process_time(), pages * resource.getpagesize() / 2**20))

    own = length // tenths
    bl.solve(problem, solver, x, y, steps=2 * own, every=own, progress=False)  # compiled
    for _ in range(times):
        bl.solve(problem, solver, x, y, steps=length, every=own, callback=look, progress=False)
    numbers = np.array(seen).reshape(times, tenths, 2)
    each = 1e6 * np.diff(numbers[:, :, 0], axis=1).min(axis=0) / own  # from the second tenth on
    lines = ["| after tasks | processor us a step | memory, MB |", "|---|---|---|"]
    parts = (1, tenths // 2, tenths - 1)
    lines += [f"| {k * own * DRAWN:,} | {each[k - 1]:,.0f} | {numbers[-1, k, 1]:,.0f} |" for k in parts]
    put("tasks seen", "\n".join(lines))


def hard(steps: int = 2000) -> None:
    """Amplitude, frequency and phase from the ranges of the paper's sinusoids, and its network; one seed."""

    def wave(key: jax.Array) -> Wave:
        amplitude, frequency, phase = jax.random.uniform(key, (3,))
        return Wave(0.1 + 4.9 * amplitude, 1 + 2 * frequency, jnp.pi * phase)

    tasks = bl.TaskDistribution(wave, train=wave_rows, validation=wave_rows)
    ready = bl.problems.sinusoid_regression(bl.datasets.sinusoids(3))
    group = ready.problem.groups[0]
    y, unseen = jax.tree.map(lambda a: a[0], group.y), tasks.sample(UNSEEN, seed=2)
    for sampling, own, times in (
        (bl.sampling.Fresh(DRAWN), tasks, 1),
        (bl.sampling.Fresh(DRAWN, catch_up=100), tasks, 1),
        (bl.sampling.Mixture(DRAWN), tasks.sample(POOL, seed=1), POOL_STEPS),
    ):
        problem = bl.Problem(group.upper, group.lower, own, lower_batch=10, upper_batch=10)
        for weighting in (MEAN, TAIL):
            solver = bl.Tandem(weighting=weighting, sampling=sampling)
            result = bl.solve(problem, solver, ready.x, y, steps=steps * times, progress=False)
            tail, mean = judged(problem, result.average.x, y, unseen, 100)
            print(f"{solver.sampling!s:<30}{type(weighting).__name__:<10}worst tenth {tail:.3g}  mean {mean:.3g}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["waves"]
    {"waves": waves, "steps": steps, "hard": hard}[what](*map(int, rest))
