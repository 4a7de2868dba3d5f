"""The shapes that `paper_loop.py` measures: each as a problem of ours, and as PyTorch's functions of one task.

Without PyTorch they are problems of ours only: tensors are made when they are first asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

try:
    import torch
    from torch.nn import functional
except ImportError:
    pass

import bilevel as bl

Tensors: TypeAlias = "tuple[torch.Tensor, ...]"
Pair = tuple[np.ndarray, np.ndarray]  # inputs and targets, (tasks, rows, ...)


class Case(NamedTuple):
    """A problem, as both sides get it. PyTorch's x is the tuple of the leaves of ours."""

    ready: bl.problems.Ready  # what is timed
    make: Callable[[Pair, Pair], bl.problems.Ready]  # the like, of other rows, which are all taken in every step
    rows: Callable[[np.random.Generator, int], Pair]  # makes so many
    upper: Callable[[Tensors, torch.Tensor, Any], torch.Tensor]  # f of one task
    lower: Callable[[Tensors, torch.Tensor, Any], torch.Tensor]  # g of one task
    train: Rows | Waves
    validation: Rows | Waves
    sizes: tuple[int, int]  # batches of the lower and the upper level
    rates: tuple[float, float, float]  # alpha, beta, gamma
    nonnegative: bool = False


# ------------------------------------------------------------------ where PyTorch's batches come from


class Rows:
    """Rows that are drawn with replacement."""

    def __init__(self, pair: Pair):
        self.pair = pair
        self.tasks, self.rows = pair[0].shape[:2]

    @functools.cached_property
    def flat(self) -> list[torch.Tensor]:
        return [torch.from_numpy(a).flatten(0, 1) for a in self.pair]

    @functools.cached_property
    def own(self) -> list[list[torch.Tensor]]:
        return [[a[i] for a in map(torch.from_numpy, self.pair)] for i in range(self.tasks)]

    @functools.cached_property
    def first(self) -> torch.Tensor:
        return torch.arange(self.tasks)[:, None] * self.rows

    def one(self, task: int, size: int) -> list[torch.Tensor]:
        index = torch.randint(self.rows, (size,))
        return [a[index] for a in self.own[task]]

    def all(self, size: int) -> list[torch.Tensor]:
        index = torch.randint(self.rows, (self.tasks, size)) + self.first
        return [a[index] for a in self.flat]


class Waves:
    """Points of a sin(frequency t - phase), t uniform in [-5, 5]; a row of parameters a task."""

    def __init__(self, parameters: np.ndarray):
        self.numbers = parameters
        self.own = parameters.tolist()

    @functools.cached_property
    def parameters(self) -> torch.Tensor:
        return torch.from_numpy(self.numbers)

    def one(self, task: int, size: int) -> list[torch.Tensor]:
        a, frequency, phase = self.own[task]
        t = torch.rand(size) * 10 - 5
        return [t, a * torch.sin(frequency * t - phase)]

    def all(self, size: int) -> list[torch.Tensor]:
        a, frequency, phase = self.parameters[:, :, None].unbind(1)
        t = torch.rand(len(self.own), size) * 10 - 5
        return [t, a * torch.sin(frequency * t - phase)]


# ------------------------------------------------------------------ three shapes


def as_tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def tasks_of(train: Pair, validation: Pair) -> list[bl.Task]:
    return [bl.Task(*pairs) for pairs in zip(zip(*train, strict=True), zip(*validation, strict=True), strict=True)]


def fashion(tasks: int = 10) -> Case:
    def upper(x, y, batch):
        images, labels = batch
        return functional.cross_entropy(torch.relu(images / 255 @ x[0]) @ y, labels)

    def lower(x, y, batch):
        return upper(x, y, batch) + 5e-4 * y.square().sum()

    def rows(generator, count):
        labels = generator.integers(2, size=(tasks, count))
        noise = generator.integers(256, size=(tasks, count, 784))
        shift = 20 * labels[..., None] * np.sin(np.arange(tasks)[:, None] + np.arange(784))[:, None]
        return np.clip(noise + shift, 0, 255).astype(np.uint8), labels

    def make(train, validation, lower_batch=None, upper_batch=None):
        own = tasks_of(train, validation)
        return bl.problems.representation(own, (784, 100), lower_batch=lower_batch, upper_batch=upper_batch)

    generator, sizes, rates = np.random.default_rng(0), (8, 128), (0.05, 0.01, 0.3)
    pairs = rows(generator, 2000), rows(generator, 1000)
    return Case(make(*pairs, *sizes), make, rows, upper, lower, *map(Rows, pairs), sizes, rates)


def letter(tasks: int = 16) -> Case:
    def upper(x, y, batch):
        points, signs = batch
        phase = (points * x[0]) @ frequencies().T
        return functional.softplus(-signs * (torch.cat([phase.sin(), phase.cos()], 1) @ y)).mean()

    def lower(x, y, batch):
        return upper(x, y, batch) + (x[1] * y).square().sum()

    def rows(generator, count):
        points = generator.normal(size=(tasks, count, 16))
        signs = np.where(points.sum(2) + points[:, :, 0] * np.arange(tasks)[:, None] > 0, 1, -1)
        return points.astype(np.float32), signs.astype(np.float32)

    def make(train, validation, lower_batch=None, upper_batch=None):
        return bl.problems.hyperparameters(tasks_of(train, validation), 128, lower_batch, upper_batch, bandwidth=0.3)

    generator, sizes, rates = np.random.default_rng(0), (8, 8), (0.01, 0.05, 0.1)
    pairs = rows(generator, 900), rows(generator, 300)
    ready = make(*pairs, *sizes)
    frequencies = functools.cache(lambda: as_tensor(ready.problem.groups[0].upper.__self__.W))
    return Case(ready, make, rows, upper, lower, *map(Rows, pairs), sizes, rates, nonnegative=True)


def sinusoids(tasks: int = 20) -> Case:
    def upper(x, y, batch):
        t, targets = batch
        features = t[:, None]
        for bias, matrix in ((x[0], x[1]), (x[2], x[3])):
            features = torch.relu(features @ matrix + bias)
        return ((features @ x[5] + x[4]) @ y)[:, 0].sub(targets).square().mean()

    def lower(x, y, batch):
        return upper(x, y, batch) + 0.01 * (y.square().sum() + 1e-12).sqrt()

    def rows(generator, count):
        t = generator.uniform(-5, 5, size=(tasks, count))
        a, frequency, phase = parameters.T[:, :, None]
        return t.astype(np.float32), (a * np.sin(frequency * t - phase)).astype(np.float32)

    def make(train, validation):
        return bl.problems.sinusoid_regression(tasks_of(train, validation), batch=None)  # type: ignore[arg-type]

    own, sizes, rates = bl.datasets.sinusoids(tasks), (10, 10), (0.002, 0.002, 0.003)
    parameters = np.array([task.train.parameters for task in own], np.float32)
    ready, waves = bl.problems.sinusoid_regression(own, batch=10), Waves(parameters)
    return Case(ready, make, rows, upper, lower, waves, waves, sizes, rates)


CASES = {"fashion": fashion, "letter": letter, "sinusoids": sinusoids}
