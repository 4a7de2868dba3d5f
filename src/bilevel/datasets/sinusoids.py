"""Sinusoid regression: tasks a sin(w t - phase) with easy (small) and hard (large) amplitudes.

Reference: Finn, Abbeel, Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017; easy
and hard tasks as in Collins, Mokhtari, Shakkottai, "Task-robust model-agnostic meta-learning", NeurIPS 2020, and in Gu
et al., ICLR 2023, appendix C.1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import values
from bilevel.problem.generators import Generator
from bilevel.problem.task import Task

EASY, HARD = (0.1, 1.05), (4.95, 5.0)  # ranges of the amplitude
REACH = 5.0  # t lies in [-REACH, REACH]
GRID = 100  # points of the test rows


class Wave(NamedTuple):
    """a sin(frequency t - phase)."""

    amplitude: float | jax.Array
    frequency: float | jax.Array
    phase: float | jax.Array

    def at(self, t: jax.Array) -> jax.Array:
        """Its value at t."""
        return self.amplitude * jnp.sin(self.frequency * t - self.phase)


def sample(wave: Wave, key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """`size` points, uniform, and the wave there."""
    t = jax.random.uniform(key, (size,), jnp.result_type(float), minval=-REACH, maxval=REACH)
    return t, wave.at(t)


def sinusoids(
    tasks: int = 3, hard: int = 1, seed: int = 0, frequencies: tuple[float, float] = (1.0, 3.0)
) -> list[Task]:
    """Sinusoid tasks. Both levels draw fresh points in every step; test rows are 100 equally spaced points.

    Args:
        tasks: how many.
        hard: how many of them have a large amplitude; they come last.
        seed: of amplitudes and phases: other seeds are unseen tasks.
        frequencies: the range that each task's frequency is drawn from; (1, 1) is the formula that the paper prints.

    Phases are uniform in [0, pi].

    >>> [task.name for task in sinusoids(3)]
    ['easy 0', 'easy 1', 'hard 0']
    """
    values.whole("tasks", tasks, of="sinusoids")
    values.whole("hard", hard, least=0, most=tasks, of="sinusoids")
    generator = np.random.default_rng(seed)
    found = []
    for i in range(tasks):
        low, high = EASY if i < tasks - hard else HARD
        wave = Wave(
            float(generator.uniform(low, high)),
            float(generator.uniform(*frequencies)),
            float(generator.uniform(0.0, np.pi)),
        )
        name = f"easy {i}" if i < tasks - hard else f"hard {i - tasks + hard}"
        found.append(wave_task(wave, name))
    return found


def wave_task(wave: Wave, name: str) -> Task:
    """The task of one wave."""
    source, t = Generator(sample, wave), jnp.linspace(-REACH, REACH, GRID)
    return Task(source, source, test=(t, wave.at(t)), name=name)
