"""The problems of benchmarks/findings.py that thresholds were fixed on."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bilevel as bl

# ------------------------------------------------------------------ drawn


def fit(x, y, batch):
    measured, outcome = batch
    return jnp.mean((measured @ y - outcome) ** 2)


def ridge(x, y, batch):
    return fit(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def clinics(count=4, train=12, other=40, seed=0, noise=0.5, still=0, **batches):
    """How much to trust each of eight measurements; the first `still` clinics have the same rows and outcomes 0."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(count, 8)) * (rng.random((count, 8)) < 0.4)

    def rows(i, n):
        measured = rng.normal(size=(n, 8)) * (i >= still)
        return measured, measured @ truth[i] + (i >= still) * noise * rng.normal(size=n) + (i < still)

    tasks = [
        bl.Task(name=f"clinic {i}", train=rows(i, train), validation=rows(i, other), test=rows(i, other))
        for i in range(count)
    ]
    return bl.Problem(fit, ridge, tasks, **batches), jnp.zeros(8)


def drawn_pairs(rows, flips, seed=0, tasks=10, features=16, width=16, **batches):
    """A network for pairs of classes of drawn rows, of which some tasks have wrong labels."""
    rng = np.random.default_rng(seed)
    return network([_pair(i, rng, rows, flips, features) for i in range(tasks)], features, width, **batches)


def _pair(i, rng, rows, flips, features):
    centres = rng.normal(size=(2, features))

    def part():
        labels = rng.integers(2, size=rows)
        inputs = centres[labels] + 1.5 * rng.normal(size=(rows, features))
        wrong = rng.random(rows) < (flips if i % 3 == 0 else 0)
        return inputs.astype(np.float32), np.where(wrong, 1 - labels, labels)

    return bl.Task(train=part(), validation=part(), selection=part(), test=part(), name=f"pair {i}")


def network(tasks, features, width, **batches):
    whole: dict[str, Any] = {"lower_batch": None, "upper_batch": None}
    return bl.problems.representation(tasks, (features, width), ridge=1e-3, **whole | batches)


# ------------------------------------------------------------------ of data, or of the library


def letters(rows, flips, seed=0, tasks=10, **batches):
    """A network 16 -> 32 for pairs of letters, three of which have wrong labels."""
    rng, data = np.random.default_rng(seed), bl.datasets.letter()
    pairs = rng.choice(26, (tasks, 2), replace=False)
    cut = [
        _cut((data.features - 7.5) / 7.5, data.labels, *pair, rows, flips * (i < 3), rng)
        for i, pair in enumerate(pairs)
    ]
    return network(cut, 16, 32, **batches)


def digits(rows, flips, seed=0, **batches):
    """A network 64 -> 32 for ten pairs of digits."""
    rng = np.random.default_rng(seed)
    points, labels = load_digits(return_X_y=True)
    pairs = [(i, (i + 1 + seed) % 10) for i in range(10)]
    cut = [_cut(points / 16, labels, *pair, rows, flips * (i < 3), rng) for i, pair in enumerate(pairs)]
    return network(cut, 64, 32, **batches)


def _cut(points, labels, first, second, rows, flips, rng):
    own = rng.permutation(np.flatnonzero((labels == first) | (labels == second)))
    classes = np.where(labels[own] == second, 1, 0)
    classes = np.where(rng.random(len(own)) < flips, 1 - classes, classes)
    parts = [slice(0, rows), slice(rows, 2 * rows), slice(2 * rows, None)]
    taken = [(points[own[part]].astype(np.float32), classes[part]) for part in parts]
    train, validation, test = taken
    return bl.Task(train, validation, test, name=f"{first}{second}")


def hyper(seed=0, tasks=4, rows=600, flips=0.0, **batches):
    """Bandwidths and penalties for pairs of letters, some labels wrong."""
    rng = np.random.default_rng(seed)

    def flipped(part):
        points, signs = part
        return points, np.where(rng.random(len(signs)) < flips, -signs, signs)

    pairs = bl.datasets.letter_pairs(tasks, seed, rows=rows)
    roles = ("train", "validation", "test")
    pairs = [dataclasses.replace(pair, **{role: flipped(getattr(pair, role)) for role in roles}) for pair in pairs]
    return bl.problems.hyperparameters(pairs, 16, **batches)


def quadratics(seed, **options):
    return bl.problems.random_quadratics(seed, tasks=4, **options)


def ball():
    return bl.problems.enclosing_ball()


def noisy_ball(seed=0, **options):
    return bl.problems.noisy_ball(seed=seed, **options)


def with_constant():
    """Pairs of letters, and a task whose points are all 0: its features are constant, and its labels a coin's."""
    tasks = [*bl.datasets.letter_pairs(3, 6, rows=600), _blank()]
    return bl.problems.hyperparameters(tasks, 16, lower_batch=None, upper_batch=None)


def _blank():
    rows = (np.zeros((120, 16), np.float32), np.tile([1.0, -1.0], 60).astype(np.float32))
    return bl.Task(rows, rows, rows, name="blank")
