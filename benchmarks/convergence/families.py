"""Everyday problems, any number of each: a family makes a `Case` of a draw.

A case holds the problem of the library and, as plain functions and arrays, all that a reference needs.

    ridge        README's example: penalties of eight features, as logarithms, shared by four clinics
    logistic     the same with labels and the logistic loss
    cleaning     weights of training rows, some of which have wrong labels
    bandwidths   widths of Gaussian features, as logarithms
    quartic      lower losses that are not quadratic in y, no rows
    letters      a tanh network 16 -> 8, a logistic head for each pair of letters
    sinusoids    the paper's sinusoids, a small network, a fixed sample
    fashion      the paper's FashionMNIST, images of 7 x 7 pixels, a small network
    kernel       the paper's kernel logistic regression on Letter, few frequencies
    table        penalties of pupils' features, shared by schools (exam.csv)
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.studies.datasets.benchmark_data import EASY, HARD
from bilevel.studies.problems.networks import MLP, Heads, cross_entropy, length, square, squared_error

LOWER_BATCH, UPPER_BATCH = 8, 16


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem, where it starts, and what a reference needs."""

    family: str
    draw: int
    problem: bl.Problem  # every step sees all the data
    batched: bl.Problem | None  # None: there are no rows to draw
    x: Any
    y: Any  # one task's
    upper: Callable
    lower: Callable
    tasks: list[tuple[Any, Any]]  # training and validation rows
    spread: float  # how far other starts are
    low: float  # bounds of x in the reference
    high: float = 30.0


def data_folder() -> Path:
    """Where the data are: BILEVEL_DATA, or ../shared/data beside the repository."""
    return Path(os.environ.get("BILEVEL_DATA") or Path(__file__).parents[3] / "shared" / "data")


def _case(
    family: str,
    draw: int,
    losses: tuple[Callable, Callable],
    tasks: list[tuple],
    x: Any,
    y: Any,
    spread: float = 1.0,
    low: float = -30.0,
    batches: bool = True,
    constraint: Any = None,
) -> Case:
    """The case of rows (training, validation, and test where there are any), in float64."""
    wide = lambda a: np.asarray(a, np.float64) if np.issubdtype(np.asarray(a).dtype, np.floating) else np.asarray(a)  # noqa: E731
    tasks = [jax.tree.map(wide, task) for task in tasks]
    x, y = (jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), point) for point in (x, y))
    listed = [bl.Task(train=t[0], validation=t[1], test=t[2] if len(t) > 2 else None) for t in tasks]
    make = functools.partial(bl.Problem, *losses, listed, constraint)
    batched = make(LOWER_BATCH, UPPER_BATCH) if batches else None
    return Case(family, draw, make(), batched, x, y, *losses, [t[:2] for t in tasks], spread, low)


# ---------------------------------------------------------------------------------------- penalties as logarithms


def squared(x, y, batch):
    measured, outcome = batch
    return jnp.mean((measured @ y - outcome) ** 2)


def squared_penalised(x, y, batch):
    return squared(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def clinics(draw: int) -> list[tuple]:
    """README's rows, drawn in README's order."""
    rng = np.random.default_rng(draw)
    truth = rng.normal(size=(4, 8)) * (rng.random((4, 8)) < 0.4)

    def patients(clinic, count):
        measured = rng.normal(size=(count, 8))
        return measured, measured @ truth[clinic] + 0.5 * rng.normal(size=count)

    return [(patients(i, 12 + i), patients(i, 40), patients(i, 40)) for i in range(4)]


def ridge(draw: int) -> Case:
    """README's example: penalties of eight features, as logarithms, shared by four clinics."""
    return _case("ridge", draw, (squared, squared_penalised), clinics(draw), np.zeros(8), np.zeros(8), spread=2.0)


def logistic_loss(x, y, batch):
    points, signs = batch
    return jnp.mean(jax.nn.softplus(-signs * (points @ y)))


def logistic_penalised(x, y, batch):
    return logistic_loss(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def logistic(draw: int) -> Case:
    """The same with the sign of the outcome as label, and the logistic loss."""
    tasks = [tuple((points, np.sign(outcome)) for points, outcome in task) for task in clinics(draw)]
    return _case("logistic", draw, (logistic_loss, logistic_penalised), tasks, np.zeros(8), np.zeros(8), spread=2.0)


def table(draw: int) -> Case:
    """Six schools of 60 pupils or more: exam results from eight features, 25 training and 30 validation rows."""
    school, features, target = exam()
    rng = np.random.default_rng(draw)
    names, counts = np.unique(school, return_counts=True)
    tasks = []
    for name in rng.choice(names[counts >= 60], 6, replace=False):
        rows = rng.permutation(np.flatnonzero(school == name))
        tasks += [tuple((features[part], target[part]) for part in (rows[:25], rows[25:55]))]
    d = features.shape[1]
    return _case("table", draw, (squared, squared_penalised), tasks, np.zeros(d), np.zeros(d), spread=2.0)


@functools.cache
def exam() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Schools, standardised features with a constant, and results."""
    with open(data_folder() / "tables" / "exam.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    column = lambda name: np.array([row[name] for row in rows])  # noqa: E731
    test = column("standLRT").astype(float)
    marks = [column("sex") == "F"]
    for name in ("vr", "intake"):
        marks += [column(name) == level for level in np.unique(column(name))[1:]]
    features = np.stack([test, test**2, *(mark.astype(float) for mark in marks)], axis=1)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    features = np.concatenate([features, np.ones((len(rows), 1))], axis=1)
    return column("school").astype(int), features, column("normexam").astype(float)


# --------------------------------------------------------------------------------------------- rows and features


def cleaned(x, y, batch):
    index, points, signs = batch
    trusted = jax.nn.sigmoid(x)[index]
    return jnp.mean(trusted * jax.nn.softplus(-signs * (points @ y))) + 0.01 * jnp.sum(y**2)


def cleaning(draw: int) -> Case:
    """Row j of every task comes from source j; a third of the 30 sources have random labels."""
    rng = np.random.default_rng(draw)
    rows, d, wrong, tasks = 30, 6, rng.random(30) < 1 / 3, []
    for _ in range(4):
        truth = 1.5 * rng.normal(size=d)
        points, own = rng.normal(size=(rows, d)), rng.normal(size=(40, d))
        signs = np.where(wrong, rng.choice([-1.0, 1.0], rows), np.sign(points @ truth + 0.5 * rng.normal(size=rows)))
        tasks += [((np.arange(rows), points, signs), (own, np.sign(own @ truth + 0.5 * rng.normal(size=40))))]
    return _case("cleaning", draw, (logistic_loss, cleaned), tasks, np.zeros(rows), np.zeros(d), spread=2.0)


CENTRES = np.random.default_rng(0).uniform(-2, 2, (12, 4))


def bumps(x, y, batch):
    points, outcome = batch
    apart = (points[:, None] - CENTRES[None]) * jnp.exp(-x)[None, None]
    return jnp.mean((jnp.exp(-jnp.sum(apart**2, axis=2) / 2) @ y - outcome) ** 2)


def bumps_penalised(x, y, batch):
    return bumps(x, y, batch) + 0.01 * jnp.sum(y**2)


def bandwidths(draw: int) -> Case:
    """Waves along some of four inputs; which inputs matter, and at which width, is for x to find."""
    rng, tasks = np.random.default_rng(draw), []
    slopes = np.array([2.0, 1.0, 0.3, 0.0])
    for _ in range(4):
        slope = slopes * rng.choice([-1, 1], 4) * rng.uniform(0.7, 1.3, 4)

        def rows(count, slope=slope):
            points = rng.uniform(-2, 2, (count, 4))
            return points, np.sin(points @ slope) + points[:, 1] / 2 + 0.2 * rng.normal(size=count)

        tasks += [(rows(40), rows(40))]
    return _case("bandwidths", draw, (bumps, bumps_penalised), tasks, np.zeros(4), np.zeros(12))


def quartic_upper(x, y, batch):
    return jnp.mean(jnp.sum((batch["C"] @ y - batch["p"]) ** 2, axis=1)) / 2


def quartic_lower(x, y, batch):
    centres = batch["s"][:, None] * jnp.tanh(batch["W"] @ x)
    return jnp.mean(jnp.sum((y[None] - centres) ** 2, axis=1)) / 2 + jnp.sum(y**4) / 4


def quartic(draw: int) -> Case:
    """Five tasks with g = |y - s tanh(W x)|^2 / 2 + sum y^4 / 4 and f = |C y - p|^2 / 2."""
    rng, tasks = np.random.default_rng(draw), []
    for _ in range(5):
        train = {"W": rng.normal(size=(1, 6, 4)), "s": rng.uniform(1, 3, 1)}
        tasks += [(train, {"C": rng.normal(size=(1, 3, 6)), "p": rng.normal(size=(1, 3))})]
    x = 0.1 * rng.normal(size=4)
    return _case("quartic", draw, (quartic_upper, quartic_lower), tasks, x, np.zeros(6), batches=False)


def head(x, y, batch):
    points, signs = batch
    features = jnp.tanh(points @ x["w"] + x["b"][None])
    return jnp.mean(jax.nn.softplus(-signs * (features @ y["w"] + y["b"])))


def head_penalised(x, y, batch):
    return head(x, y, batch) + 0.03 * (jnp.sum(y["w"] ** 2) + y["b"] ** 2)


def letters(draw: int) -> Case:
    """Five pairs of letters, 60 training and 60 validation rows each, a tenth of the labels wrong."""
    (points, letter), rng, tasks = letter_rows(), np.random.default_rng(draw), []
    for _ in range(5):
        pair = rng.choice(26, 2, replace=False)
        rows = rng.permutation(np.flatnonzero(np.isin(letter, pair)))[:120]
        signs = np.where(letter[rows] == pair[0], -1.0, 1.0) * flips(rng, 120)
        tasks += [tuple((points[rows[part]], signs[part]) for part in (slice(60), slice(60, None)))]
    x = {"w": rng.normal(size=(16, 8)) / 4, "b": np.zeros(8)}
    y = {"w": np.zeros(8), "b": np.zeros(())}
    return _case("letters", draw, (head, head_penalised), tasks, x, y, spread=0.25)


def flips(rng: np.random.Generator, rows: int) -> np.ndarray:
    """-1 for one row in ten, 1 for the others: without wrong labels the best losses are all but 0."""
    return np.where(rng.permutation(rows) < rows / 10, -1.0, 1.0)


@functools.cache
def letter_rows() -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to [-1, 1], and letters from 0 to 25."""
    stored = np.load(data_folder() / "letter.npz")
    return stored["X"] / 7.5 - 1.0, stored["y"]


# ------------------------------------------------------------------------------------------------------ the paper


@functools.cache
def _heads(layers: tuple[int, ...], regression: bool) -> tuple[Any, Any]:
    """The package's network and losses, one object for all draws."""
    network = MLP(layers, active=not regression, bias=regression)
    if regression:
        return network, Heads(network, squared_error, 0.01, length)
    return network, Heads(network, cross_entropy, 5e-4, square)


def sinusoids(draw: int) -> Case:
    """Three waves, one hard, 40 training and 40 validation points, a network 1 -> 6 -> 6 -> 4."""
    network, losses = _heads((1, 6, 6, 4), True)
    tasks = []
    for i, task in enumerate(bl.datasets.sinusoids(3, seed=draw)):
        keys = jax.random.split(jax.random.key(1000 * draw + i))
        sources = zip((task.train, task.validation), keys, strict=True)
        tasks += [tuple(source.sample(source.parameters, key, 40) for source, key in sources)]
    y = np.random.default_rng(draw + 1).uniform(-0.5, 0.5, (4, 1))
    x = network.init(draw, jnp.float64)
    return _case("sinusoids", draw, (losses.upper, losses.lower), tasks, x, y, spread=0.3)


def fashion(draw: int) -> Case:
    """Two easy and two hard pairs, 150 training and 150 validation rows, a layer 49 -> 4."""
    network, losses = _heads((49, 4), False)
    (images, labels), rng, tasks = small_images(), np.random.default_rng(draw), []
    for pair in (*(EASY[k] for k in rng.choice(len(EASY), 2, replace=False)), *HARD):
        rows = rng.permutation(np.flatnonzero(np.isin(labels, pair)))
        parts = rows[:150], rows[150:300]
        tasks += [tuple((images[p], (labels[p] == pair[1]).astype(np.int32)) for p in parts)]
    y = rng.uniform(-0.5, 0.5, (4, 2))
    x = network.init(draw, jnp.float64)
    return _case("fashion", draw, (losses.upper, losses.lower), tasks, x, y, spread=0.1)


@functools.cache
def small_images() -> tuple[np.ndarray, np.ndarray]:
    """The test split, 4 x 4 pixels made one."""
    data = bl.datasets.fashion_mnist(data_folder() / "fashion-mnist")
    pixels = data.test_images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)) / 255
    return pixels.reshape(len(pixels), 49), data.test_labels


@functools.cache
def _fourier() -> Any:
    return bl.problems.FourierLogistic(jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float64))


def kernel(draw: int) -> Case:
    """Four pairs of letters, 8 frequencies, 120 training and 120 validation rows, a tenth of them wrong; x >= 0."""
    losses, rng = _fourier(), np.random.default_rng(draw)
    tasks = []
    for task in bl.datasets.letter_pairs(4, seed=draw, rows=600):
        parts = [(points[:120], signs[:120] * flips(rng, 120)) for points, signs in (task.train, task.validation)]
        tasks += [tuple(parts)]
    x = {"bandwidth": np.full(16, 1.0), "penalty": np.full(16, 0.1)}
    pair = losses.upper, losses.lower
    constraint = bl.constraints.NonNegative()
    return _case("kernel", draw, pair, tasks, x, np.zeros(16), spread=0.3, low=0.0, constraint=constraint)


FAMILIES: dict[str, Callable[[int], Case]] = {
    make.__name__: make
    for make in (ridge, logistic, cleaning, bandwidths, quartic, letters, sinusoids, fashion, kernel, table)
}
PAPER = ("sinusoids", "fashion", "kernel")
