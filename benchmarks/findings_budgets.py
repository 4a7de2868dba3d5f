"""More runs that the findings were fixed on: counts, sources of rows, budgets to be spent, curves and garments."""

from __future__ import annotations

import itertools

import numpy as np
import optax
from findings_cases import HEALTHY, Case, plain
from findings_problems import network
from jax import nn
from jax import numpy as jnp

import bilevel as bl
from bilevel.hypergradients import Direct, Exact, Tracked
from bilevel.problem.constraints import Box, Simplex
from bilevel.weightings import Average, Exponentiated, Regret, SimplexAscent

# ------------------------------------------------------------------ problems


def poisson(x, y, batch):
    """The negative log-likelihood of counts, but for what does not depend on y: it may be below 0."""
    scores = batch[0] @ y
    return jnp.mean(jnp.exp(scores) - batch[1] * scores)


def penalised_poisson(x, y, batch):
    return poisson(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def counts(seed, tasks=4, blank=False, **batches):
    """Events in six kinds of places: a penalty for every feature."""
    rng = np.random.default_rng([1, seed])

    def task(i):
        truth = 0.4 * rng.normal(size=6) * (rng.random(6) < 0.6)

        def rows(count):
            inputs = rng.normal(size=(count, 6)) * (not (blank and i == 0))
            return inputs, rng.poisson(np.exp(inputs @ truth)).astype(float)

        return bl.Task(rows(80), rows(300), rows(300), name=f"place {i}", y=np.zeros(6))

    start = jnp.full(6, -1.0)
    return bl.Problem(poisson, penalised_poisson, [task(i) for i in range(tasks)], Box(-4.0, 1.0), **batches), start


def squares(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2)


def trusted_squares(x, y, batch):
    """Rows count by the trust in their source; batch[2] has a 1 at the place of the source."""
    trust = batch[2] @ nn.softmax(x) * x.shape[0]
    return jnp.mean(trust * (batch[0] @ y - batch[1]) ** 2) + 0.05 * jnp.sum(y**2)


def sources(seed, tasks=4, rows=40, **batches):
    """Five sources of training rows, some of which tell of something else: how far to trust each."""
    rng = np.random.default_rng([2, seed])
    wrong = rng.normal(size=(5, 5)) * np.array([0.0, 0.2, 0.5, 1.0, 2.0])[:, None]

    def task(i):
        truth = rng.normal(size=5)

        def draw(count, off):
            inputs = rng.normal(size=(count, 5))
            return inputs, inputs @ (truth + off) + 0.5 * rng.normal(size=count)

        parts = [(*draw(rows, wrong[s]), np.tile(np.eye(5)[s], (rows, 1))) for s in range(5)]
        train = tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))
        return bl.Task(train, draw(300, 0.0), draw(300, 0.0), name=f"reader {i}", y=np.zeros(5))

    made = [task(i) for i in range(tasks)]
    return bl.Problem(squares, trusted_squares, made, Box(-3.0, 3.0), **batches), jnp.zeros(5)


def smooth_maximum(x, y, batch):
    maps, offsets = batch
    return jnp.mean(nn.logsumexp(jnp.einsum("rij,j->ri", maps, y) + offsets, axis=1))


def response(x, y, batch):
    """y follows what is spent, ever less of it; rows differ by what sums up to nothing."""
    maps, noise = batch
    return jnp.mean(jnp.sum((y - maps @ x - noise) ** 2, axis=1)) / 2 + 0.05 * jnp.sum(y**4)


def budgets(seed, tasks=5, rows=48, noise=0.0, apart=0.0, **batches):
    """What to spend on five things, for the district that fares worst; the first is worse off by `apart`."""
    rng = np.random.default_rng([3, seed])

    def task(i):
        maps, moves = 1.5 * rng.normal(size=(3, 5)), noise * rng.normal(size=(rows, 3))
        train = (np.tile(maps, (rows, 1, 1)), moves - moves.mean(axis=0))
        harms = rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4)) + apart * (i == 0)
        validation = tuple(np.tile(own, (rows, *[1] * (own.ndim - 1))) for own in harms)
        return bl.Task(train, validation, name=f"district {i}", y=np.zeros(3))

    made = [task(i) for i in range(tasks)]
    return bl.Problem(smooth_maximum, response, made, Simplex(), **batches), jnp.full(5, 0.2)


def garments(seed, rows=40, flips=0.2, **batches):
    """A network for eight pairs of garments with few rows, some labels of four of them wrong."""
    data, rng = bl.datasets.fashion_mnist(), np.random.default_rng([4, seed])

    def task(i):
        pair = rng.choice(10, 2, replace=False)
        own = rng.permutation(np.flatnonzero(np.isin(data.train_labels, pair)))[: 3 * rows + 200]
        labels = (data.train_labels[own] == pair[1]).astype(int)
        labels = np.where(rng.random(len(own)) < flips * (i % 2), 1 - labels, labels)
        inputs = data.train_images[own].reshape(len(own), -1).astype(np.float32) / 255
        ends = np.cumsum([0, rows, rows, rows, 200])
        parts = [(inputs[a:b], labels[a:b]) for a, b in itertools.pairwise(ends)]
        train, validation, selection, test = parts
        return bl.Task(train, validation, test, selection=selection, name=f"{pair[0]} or {pair[1]}")

    return network([task(i) for i in range(8)], inputs_of(data), 16, **batches)


def inputs_of(data):
    return int(np.prod(data.train_images.shape[1:]))


def curve_loss(x, y, batch):
    return jnp.mean((jnp.tanh(batch[0] @ x) @ y - batch[1]) ** 2)


def curve_fit(x, y, batch):
    return curve_loss(x, y, batch) + 1e-3 * jnp.sum(y**2)


def curves(seed, rows=30, noise=1.0, tasks=8, width=24, **batches):
    """Features shared by eight curves of six inputs, each drawn with noise at few places; no selection rows."""
    rng = np.random.default_rng([5, seed])
    mixing = rng.normal(size=(6, 3))

    def task(i):
        outer = rng.normal(size=3)

        def draw(count):
            inputs = rng.normal(size=(count, 6))
            return inputs, np.sin(inputs @ mixing) @ outer + noise * rng.normal(size=count)

        return bl.Task(draw(rows), draw(rows), draw(300), name=f"curve {i}", y=np.zeros(width))

    made = [task(i) for i in range(tasks)]
    return bl.Problem(curve_loss, curve_fit, made, **batches), jnp.asarray(0.4 * rng.normal(size=(6, width)))


# ------------------------------------------------------------------ runs


def batched(size):
    return {"lower_batch": size, "upper_batch": size}


def of(make, seed, **options):
    return lambda: make(seed, **options)


def healthy() -> list[Case]:
    average = bl.MORBiT(weighting=Average())
    runs = [
        *((f"counts {seed}", of(counts, seed), bl.MORBiT(), 3000) for seed in range(1, 4)),
        ("counts, min-avg", of(counts, 4), average, 3000),
        ("counts, Tandem", of(counts, 5), bl.Tandem(), 4000),
        ("counts, batches, Tandem", of(counts, 6, **batched(40)), bl.Tandem(), 4000),
        *((f"sources {seed}", of(sources, seed), bl.MORBiT(), 3000) for seed in range(1, 4)),
        ("sources, min-avg", of(sources, 4), average, 3000),
        ("sources, Tandem", of(sources, 5), bl.Tandem(), 4000),
        ("sources, batches, Tandem", of(sources, 6, **batched(40)), bl.Tandem(), 4000),
        *((f"budgets {seed}", of(budgets, seed), bl.MORBiT(), 2000) for seed in (2, 3, 11)),
        ("budgets, long", of(budgets, 4), bl.MORBiT(), 10000),
        ("budgets, min-avg", of(budgets, 5), average, 2000),
        ("budgets, regret", of(budgets, 5), bl.MORBiT(weighting=Regret([1.0, 1.2, 0.8, 1.1, 0.9])), 2000),
        ("budgets, Tandem", of(budgets, 6), bl.Tandem(), 4000),
        ("sources, larger batches, Tandem", of(sources, 7, **batched(100)), bl.Tandem(), 4000),
        ("budgets, exponentiated", of(budgets, 8), bl.MORBiT(0.1, 0.4, Exact(), Exponentiated(0.05)), 4000),
        ("budgets, SOBA min-max", of(budgets, 9), bl.SOBA(0.05, 0.3, weighting=SimplexAscent(2e-3)), 8000),
        ("budgets, TTSA", of(budgets, 9), bl.TTSA(0.1, 0.4), 3000),
    ]
    return [Case(name, HEALTHY, make, solver, steps) for name, make, solver, steps in runs]


def made_to_fail() -> list[Case]:
    growing = optax.join_schedules([optax.constant_schedule(0.1), optax.linear_schedule(0.1, 60.0, 500)], [900])
    noisy, luck = plain(0.3, 0.4, 0.01, Tracked(0.4)), plain(0.05, 0.4, 1e-3, Tracked(0.4))
    collapsing = bl.MORBiT(1e-3, 0.4, Exact(), Exponentiated(lr=30.0))
    worse, fast = {"apart": 1.5}, plain(0.1, 0.4, 3.0)
    one, two, eight = batched(1), batched(2), batched(8)
    runs = [
        ("overfitting", "garments", of(garments, 1), bl.Tandem(), 2000),
        ("overfitting", "garments, batches", of(garments, 2, **eight), bl.Tandem(), 2000),
        ("overfitting", "curves", of(curves, 1), bl.Tandem(), 2000),
        ("still falling", "budgets, slow x", of(budgets, 21), plain(2e-3, 0.4, 0.01), 300),
        ("still falling", "sources, slow x", of(sources, 21), plain(0.02, 0.1, 0.01), 300),
        ("still falling", "curves, short", of(curves, 2, rows=400, noise=0.1), bl.Tandem(), 60),
        ("cycling weights", "budgets, fast weights", of(budgets, 22), plain(0.1, 0.1, 3.0), 1500),
        ("cycling weights", "noisy budgets, fast weights", of(budgets, 23, noise=0.3, **eight), fast, 1500),
        ("weights do not move", "budgets, still weights", of(budgets, 24, **worse), plain(0.1, 0.4, 1e-8), 1500),
        ("weights do not move", "counts, still weights", of(counts, 24), plain(0.3, 0.1, 1e-8), 1500),
        ("weights off", "counts, slow weights", of(counts, 25), plain(0.3, 0.1, 2e-4), 1500),
        ("weights off", "budgets, slow weights", of(budgets, 26, **worse), plain(0.1, 0.4, 1e-4), 1500),
        ("collapsed weights", "budgets, fast exponents", of(budgets, 27), collapsing, 600),
        ("collapsed weights", "other budgets, fast exponents", of(budgets, 28), collapsing, 600),
        ("rising loss", "sources, growing steps", of(sources, 27), plain(growing, 0.1, 0.01), 1500),
        ("rising loss", "curves, growing steps", of(curves, 3, rows=100, noise=0.3), plain(growing, 0.05, 1e-3), 1500),
        ("noisy end", "budgets, constant rates", of(budgets, 29, noise=1.5, **one), noisy, 1500),
        ("noisy end", "sources, constant rates", of(sources, 29, **two), plain(0.3, 0.03, 0.01, Tracked(0.03)), 1500),
        ("lucky best", "budgets, noisy y", of(budgets, 31, noise=2.0, **two), luck, 1500),
        ("lucky best", "sources, noisy y", of(sources, 32, **two), plain(0.05, 0.06, 1e-3, Tracked(0.03)), 1500),
        ("x does not move", "budgets, tiny rate", of(budgets, 33), plain(1e-9, 0.4, 0.02), 500),
        ("x does not move", "sources, Direct", of(sources, 33), plain(0.3, 0.1, 0.02, Direct()), 500),
        ("x does not move", "counts, tiny rate", of(counts, 33), plain(1e-9, 0.3, 0.01), 2000),
        ("constant losses", "budgets, no rates", of(budgets, 35), plain(1e-12, 1e-12, 0.02), 500),
        ("constant losses", "sources, no rates", of(sources, 35), plain(1e-12, 1e-12, 0.02), 500),
        ("constant task", "counts, one blank", of(counts, 36, blank=True), bl.MORBiT(), 500),
        ("constant task", "counts, one blank, Tandem", of(counts, 37, blank=True), bl.Tandem(), 500),
        ("lower level lags", "budgets, slow y", of(budgets, 38), plain(0.05, 1e-4, 0.01), 500),
        ("lower level lags", "sources, slow y", of(sources, 38), plain(0.1, 5e-4, 0.005), 500),
    ]
    return [Case(name, kind, make, solver, steps) for kind, name, make, solver, steps in runs]


def budgeted() -> list[Case]:
    return [*healthy(), *made_to_fail()]
