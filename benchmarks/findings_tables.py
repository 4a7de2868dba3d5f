"""More runs that the findings were fixed on: convex bowls, and tables of patients and wines."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from findings_cases import HEALTHY, Case, plain
from findings_problems import network
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import bilevel as bl
from bilevel.hypergradients import Direct, Exact, Tracked
from bilevel.problem.constraints import Box
from bilevel.weightings import Average, Exponentiated, Regret, SimplexAscent

# ------------------------------------------------------------------ problems


def bowl_upper(x, y, batch):
    """Logistic losses of y, whose minimum is finite as signs disagree, and a little of |y|^2."""
    return jnp.mean(jax.nn.softplus(batch @ y)) + 0.02 * jnp.sum(y**2)


def bowl_lower(x, y, batch):
    """y follows a map of x; rows differ by what sums up to nothing."""
    maps, noise = batch
    return jnp.mean(jnp.sum((y - maps @ x - noise) ** 2, axis=1)) / 2


def bowls(seed, tasks=5, rows=64, noise=0.0, constraint=None, start=0.0, **batches):
    """Five convex functions of x that no quadratic describes; y is three numbers."""
    rng = np.random.default_rng(seed)

    def task(i):
        maps = np.eye(3) + 0.3 * rng.normal(size=(3, 3))
        moves = noise * rng.normal(size=(rows, 3))
        train = (np.tile(maps, (rows, 1, 1)), moves - moves.mean(axis=0))
        return bl.Task(train, rng.normal(size=(rows, 3)) + rng.normal(size=3), name=f"bowl {i}", y=np.full(3, start))

    more = {} if constraint is None else {"constraint": constraint}
    return bl.Problem(bowl_upper, bowl_lower, [task(i) for i in range(tasks)], **more, **batches), jnp.full(3, start)


def cut(points, targets, groups, rows, seed=0, flips=0.0, roles=("train", "validation", "test")):
    """Tasks by group: their rows shuffled, standardised and cut into roles; some labels of every third are wrong."""
    rng = np.random.default_rng(seed)
    points = ((points - points.mean(axis=0)) / points.std(axis=0)).astype(np.float32)
    tasks = []
    for k, group in enumerate(np.unique(groups)):
        own = rng.permutation(np.flatnonzero(groups == group))
        wrong = (rng.random(len(own)) < flips) & (k % 3 == 0)
        labels = np.where(wrong, 1 - targets[own], targets[own]) if flips else targets[own]
        parts = {role: slice(i * rows, (i + 1) * rows) for i, role in enumerate(roles)}
        tasks.append(
            bl.Task(**{role: (points[own[part]], labels[part]) for role, part in parts.items()}, name=f"group {group}")
        )
    return tasks


def squares(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2)


def logistic(x, y, batch):
    return jnp.mean(jax.nn.softplus(-(2 * batch[1] - 1) * (batch[0] @ y)))


def with_penalty(loss):
    """x is the logarithm of a penalty for every feature; bounded, as flat ends are reached by no rate."""
    return lambda x, y, batch: loss(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def quantiles(values, count):
    return np.searchsorted(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]), values)


def cancer(seed=0, groups=3, rows=60, blank=False, **batches):
    """Penalties for ten measurements of cells; the tasks are patients of similar texture."""
    data = load_breast_cancer()
    points, labels = data.data[:, :10], data.target.astype(np.float32)
    tasks = cut(points, labels, quantiles(points[:, 1], groups), rows, seed)
    if blank:
        nothing = (np.zeros((rows, 10), np.float32), np.tile([0.0, 1.0], rows // 2).astype(np.float32))
        tasks.append(bl.Task(nothing, nothing, nothing, name="blank"))
    tasks = [dataclasses.replace(task, y=np.zeros(10, np.float32)) for task in tasks]
    return bl.Problem(logistic, with_penalty(logistic), tasks, Box(-5.0, 1.0), **batches), jnp.full(10, -2.0)


def diabetes(seed=0, groups=3, rows=45, **batches):
    """Penalties for ten measurements; the tasks are patients of similar age."""
    data = load_diabetes()
    targets = ((data.target - data.target.mean()) / data.target.std()).astype(np.float32)
    tasks = cut(data.data, targets, quantiles(data.data[:, 0], groups), rows, seed)
    tasks = [dataclasses.replace(task, y=np.zeros(10, np.float32)) for task in tasks]
    return bl.Problem(squares, with_penalty(squares), tasks, Box(-5.0, 1.0), **batches), jnp.full(10, -2.0)


FOUR = ("train", "validation", "selection", "test")


def cells(seed=0, rows=20, flips=0.2, **batches):
    """A network for seven groups of patients with few rows, some labels wrong."""
    data = load_breast_cancer()
    tasks = cut(data.data, data.target, quantiles(data.data[:, 1], 7), rows, seed, flips, FOUR)
    return network(tasks, 30, 24, **batches)


def wines(seed=0, rows=19, flips=0.25, **batches):
    """A network for pairs of cultivars with few rows, some labels wrong."""
    data, tasks = load_wine(), []
    for k, pair in enumerate([(0, 1), (0, 2), (1, 2)]):
        own = np.isin(data.target, pair)
        labels = (data.target[own] == pair[1]).astype(int)
        [task] = cut(data.data[own], labels, np.zeros(own.sum(), int), rows, seed + k, flips)
        tasks.append(dataclasses.replace(task, name=f"{pair}"))
    return network(tasks, 13, 24, **batches)


# ------------------------------------------------------------------ runs

ONE, TWO, SIXTEEN = ({"lower_batch": size, "upper_batch": size} for size in (1, 2, 16))


def of_bowls(seed, **options):
    return lambda: bowls(seed, **options)


def healthy() -> list[Case]:
    minmax, boxed = SimplexAscent(0.02), Box(-0.5, 0.5)
    sixteen = of_bowls(7, noise=0.3, **SIXTEEN)
    runs = [
        *((f"bowls {seed}", of_bowls(seed), bl.MORBiT(), 2000) for seed in range(1, 5)),
        ("bowls, long", of_bowls(5), bl.MORBiT(), 10000),
        ("bowls, Tandem", of_bowls(5), bl.Tandem(), 4000),
        ("bowls, min-avg", of_bowls(6), bl.MORBiT(weighting=Average()), 2000),
        ("bowls, regret", of_bowls(6), bl.MORBiT(weighting=Regret([0.2, 0.5, 0.3, 0.4, 0.1])), 2000),
        ("bowls, bounded", of_bowls(6, constraint=boxed), bl.MORBiT(), 2000),
        ("bowls, TTSA", of_bowls(8), bl.TTSA(0.3, 0.8), 3000),
        ("bowls, SOBA min-max", of_bowls(8), bl.SOBA(0.2, 0.5, weighting=minmax), 4000),
        ("bowls, MRBO", of_bowls(8), bl.MRBO(0.2, 0.5), 3000),
        ("bowls, exponentiated", of_bowls(9), bl.MORBiT(0.3, 0.8, Exact(), Exponentiated(0.1)), 3000),
        ("bowls, batches, Tandem", sixteen, bl.Tandem(), 4000),
        ("adapted ball, TRMAML", bl.problems.adapted_ball, bl.TRMAML(0.1, weighting=minmax), 3000),
        ("cancer", cancer, bl.MORBiT(), 3000),
        ("cancer, min-avg", lambda: cancer(1), bl.MORBiT(weighting=Average()), 3000),
        ("cancer, Tandem", lambda: cancer(2), bl.Tandem(), 4000),
        ("diabetes", diabetes, bl.MORBiT(), 3000),
        ("diabetes, min-avg", lambda: diabetes(1), bl.MORBiT(weighting=Average()), 3000),
        ("diabetes, Tandem", lambda: diabetes(2), bl.Tandem(), 4000),
    ]
    return [Case(name, HEALTHY, make, solver, steps) for name, make, solver, steps in runs]


def tables() -> list[Case]:
    growing = optax.linear_schedule(0.1, 12.0, 1500)
    noisy = plain(1.0, 0.8, 0.01, Tracked(0.8))
    luck = plain(0.3, 0.5, 1e-3, Tracked(0.5))
    collapsing = bl.MORBiT(1e-3, 0.8, Exact(), Exponentiated(lr=30.0))
    made = [
        ("overfitting", "cells", lambda: cells(), bl.Tandem(), 2000),
        ("overfitting", "cells, batches", lambda: cells(1, lower_batch=8, upper_batch=8), bl.Tandem(), 2000),
        ("overfitting", "wines", lambda: wines(), bl.Tandem(), 2000),
        ("still falling", "bowls, slow x", of_bowls(21), plain(0.01, 0.8, 0.02), 300),
        ("still falling", "cancer, slow x", lambda: cancer(3), plain(0.1, 0.5, 1e-3), 300),
        ("still falling", "cells, short", lambda: cells(2, flips=0.0), bl.Tandem(), 40),
        ("cycling weights", "bowls, fast weights", of_bowls(22), plain(0.3, 0.1, 3.0), 1500),
        ("cycling weights", "noisy bowls, fast weights", of_bowls(23, **TWO), plain(0.3, 0.5, 3.0, Tracked(0.5)), 1500),
        ("weights do not move", "bowls, still weights", of_bowls(24), plain(0.3, 0.8, 1e-8), 1500),
        ("weights do not move", "cancer, still weights", lambda: cancer(4), plain(0.5, 0.5, 1e-8), 1500),
        ("weights off", "bowls, slow weights", of_bowls(24), plain(0.3, 0.8, 3e-4), 800),
        ("weights off", "cancer, slow weights", lambda: cancer(6), plain(0.5, 0.5, 1e-3), 1500),
        ("collapsed weights", "bowls, fast exponents", of_bowls(25, start=2.0), collapsing, 2400),
        ("collapsed weights", "other bowls, fast exponents", of_bowls(26, start=2.0), collapsing, 2400),
        ("rising loss", "bowls, growing steps", of_bowls(27, **ONE), plain(growing, 0.8, 0.01, Tracked(0.8)), 1500),
        ("rising loss", "other bowls, growing steps", of_bowls(28, **TWO), plain(growing, 0.8, 0.01, Exact()), 1500),
        ("noisy end", "bowls, constant rates", of_bowls(29, noise=0.5, **ONE), noisy, 1500),
        ("noisy end", "other bowls, constant rates", of_bowls(30, noise=0.5, **TWO), noisy, 1500),
        ("lucky best", "bowls, noisy y", of_bowls(31, noise=1.5, start=4.0, **TWO), luck, 1500),
        ("lucky best", "other bowls, noisy y", of_bowls(32, noise=1.5, start=4.0, **TWO), luck, 1500),
        ("x does not move", "bowls, tiny rate", of_bowls(33), plain(1e-9, 0.8, 0.02), 500),
        ("x does not move", "bowls, Direct", of_bowls(34), plain(0.3, 0.8, 0.02, Direct()), 500),
        ("x does not move", "diabetes, tiny rate", lambda: diabetes(4), plain(1e-9, 0.05, 0.01), 500),
        ("constant losses", "bowls, no rates", of_bowls(35), plain(1e-12, 1e-12, 0.02), 500),
        ("constant task", "cancer, one blank", lambda: cancer(5, blank=True), bl.MORBiT(), 500),
        ("lower level lags", "bowls, slow y", of_bowls(36), plain(0.1, 1e-4, 0.01), 500),
        ("lower level lags", "diabetes, slow y", lambda: diabetes(5), plain(0.1, 1e-4, 0.005), 500),
    ]
    return [*healthy(), *(Case(name, kind, make, solver, steps) for kind, name, make, solver, steps in made)]
