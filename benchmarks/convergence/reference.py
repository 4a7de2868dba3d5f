"""What a problem can reach, computed without the package: exact lower solutions, implicit gradients, SciPy's solvers.

Lower problems are solved by Newton's method, which is the closed form where they are quadratic. The worst loss is
minimised twice: as min t subject to l_i(x) <= t by SLSQP, and as a log-sum-exp that is made sharper and sharper by
L-BFGS-B, with SLSQP after it; x of 100 numbers or more by the latter without SLSQP. The lower of the two counts.
x stays within bounds in here, so that a penalty whose best value is infinite ends.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

GRADIENT = 1e-10  # the largest entry of a lower gradient that counts as zero
MANY = 100  # numbers in x from which on SLSQP takes too long
SHARPNESS = (1e1, 1e2, 1e3, 1e4)  # of the log-sum-exp, over the worst loss
STARTS = 4  # other ones


class Reference(NamedTuple):
    """What SciPy reaches."""

    start: float  # the worst loss where x starts
    same: float  # from the same start
    best: float  # from that and the other starts
    others: list[float]  # from each of the other starts
    evaluations: int  # of all losses and gradients, from the same start
    seconds: float  # likewise, without compilation


def _fit(lower: Callable, x: Any, y: Any, batch: Any) -> Any:
    """argmin over y, by Newton's method with halved steps; along the gradient where no such step leads down.

    The latter is for an x of several thousands, where a saturated logistic loss has hardly any curvature at the start.
    """
    flat, shaped = ravel_pytree(y)
    value = lambda y: lower(x, shaped(y), batch)  # noqa: E731
    sizes = 0.5 ** jnp.arange(25)
    lengths = 10.0 * 0.25 ** jnp.arange(40)  # along the gradient, over its norm

    def step(carry):
        y, slope, k, _ = carry
        move = -jnp.linalg.solve(jax.hessian(value)(y), slope)
        good = jnp.all(jnp.isfinite(move)) & (slope @ move < 0)
        down = -slope / jnp.linalg.norm(slope)
        moves = jnp.concatenate([sizes[:, None] * jnp.where(good, move, 0), lengths[:, None] * down])
        here, tried = value(y), jax.vmap(lambda move: value(y + move))(moves)
        enough = (tried <= here + 1e-4 * (moves @ slope) + 1e-14 * (1 + jnp.abs(here))) & (moves @ slope < 0)
        size = jnp.where(jnp.any(enough), 1.0, 0.0)
        y = y + size * moves[jnp.argmax(enough)]
        return y, jax.grad(value)(y), k + 1, size > 0

    go = lambda carry: (jnp.max(jnp.abs(carry[1])) > GRADIENT) & (carry[2] < 500) & carry[3]  # noqa: E731
    fitted, *_ = jax.lax.while_loop(go, step, (flat, jax.grad(value)(flat), 0, True))
    return shaped(fitted)


def _loss(upper: Callable, lower: Callable, x: Any, y: Any, train: Any, validation: Any) -> tuple[Any, Any]:
    """l_i(x), and its gradient by the implicit function theorem."""
    y = _fit(lower, x, y, train)
    flat, shaped = ravel_pytree(y)
    slope = ravel_pytree(jax.grad(upper, 1)(x, y, validation))[0]
    v = jnp.linalg.solve(jax.hessian(lambda y: lower(x, shaped(y), train))(flat), slope)

    def surrogate(x):
        return upper(x, y, validation) - ravel_pytree(jax.grad(lower, 1)(x, y, train))[0] @ v

    return upper(x, y, validation), ravel_pytree(jax.grad(surrogate)(x))[0]


@functools.cache
def _all_losses(upper: Callable, lower: Callable) -> Callable:
    """Every task's loss and gradient, compiled once for all draws of a family."""

    def alike(x, y, tasks):
        stacked = jax.tree.map(lambda *a: jnp.stack(a), *tasks)
        return jax.vmap(lambda train, validation: _loss(upper, lower, x, y, train, validation))(*stacked)

    def different(x, y, tasks):
        found = [_loss(upper, lower, x, y, *task) for task in tasks]
        return tuple(jnp.stack(part) for part in zip(*found, strict=True))

    def choose(x, y, tasks):
        shapes = [[np.shape(a) for a in jax.tree.leaves(task)] for task in tasks]
        return (alike if all(shape == shapes[0] for shape in shapes) else different)(x, y, tasks)

    return jax.jit(choose)


class Oracle:
    """Losses and gradients of a case at flat x; it counts, and keeps the best x that it has seen."""

    def __init__(self, case: Any):
        self.case, self.count, self.best, self.last = case, 0, (np.inf, None), None
        self.start, self.shaped = (part if i else np.asarray(part) for i, part in enumerate(ravel_pytree(case.x)))

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (tasks,) and gradients (tasks, numbers of x)."""
        if self.last is None or not np.array_equal(self.last[0], x):
            losses, slopes = _all_losses(self.case.upper, self.case.lower)(
                self.shaped(jnp.asarray(x)), self.case.y, self.case.tasks
            )
            self.count, self.last = self.count + 1, (np.array(x), np.asarray(losses), np.asarray(slopes))
            if np.max(losses) < self.best[0]:
                self.best = float(np.max(losses)), np.array(x)
        return self.last[1], self.last[2]


def _fit_surely(lower: Callable, x: Any, y: Any, batch: Any) -> Any:
    """argmin over y, also where x is of millions and the largest curvature 1e13 times the smallest.

    Steps -(A + m I)^-1 s for every m of a grid, of which the one with the lowest g counts; where rounding hides g,
    plain Newton steps as long as the gradient gets shorter.
    """
    flat, shaped = ravel_pytree(y)
    value = lambda y: lower(x, shaped(y), batch)  # noqa: E731
    damping = jnp.concatenate([jnp.zeros(1), 10.0 ** jnp.arange(-24, 5)])  # to steps of about 1e-10

    def step(carry):
        y, k, _ = carry
        curvature, axes = jnp.linalg.eigh(jax.hessian(value)(y))
        slope = axes.T @ jax.grad(value)(y)
        size = jnp.max(jnp.abs(curvature)) + 1e6 * jnp.linalg.norm(slope)
        raised = jnp.abs(curvature) + damping[:, None] * size + 1e-300
        ends = y - (slope / raised) @ axes.T
        values = jax.vmap(value)(ends)
        best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
        lower_g = values[best] < value(y)
        flatter = jnp.linalg.norm(jax.grad(value)(ends[0])) < 0.5 * jnp.linalg.norm(slope)
        end = jnp.where(lower_g, ends[best], ends[0])
        return jnp.where(lower_g | flatter, end, y), k + 1, lower_g | flatter

    fitted, *_ = jax.lax.while_loop(lambda carry: carry[2] & (carry[1] < 1000), step, (flat, 0, True))
    return shaped(fitted)


@functools.cache
def _sure_loss(upper: Callable, lower: Callable) -> Callable:
    """One task's loss."""
    return jax.jit(lambda x, y, train, validation: upper(x, _fit_surely(lower, x, y, train), validation))


def exact_losses(case: Any, x: Any) -> np.ndarray:
    """Every task's upper loss at x, with its lower problem solved."""
    one, x = _sure_loss(case.upper, case.lower), jax.tree.map(jnp.asarray, x)
    return np.asarray([one(x, case.y, *task) for task in case.tasks])


def epigraph(oracle: Oracle, x: np.ndarray, iterations: int = 300) -> None:
    """SLSQP on min t subject to l_i(x) <= t, begun again from the best until that is no better."""
    bounds = [(oracle.case.low, oracle.case.high)] * len(x) + [(None, None)]
    for _ in range(3):
        before = oracle.best[0]
        minimize(
            lambda z: z[-1],
            np.append(x, np.max(oracle.at(x)[0])),
            jac=lambda z: np.eye(len(z))[-1],
            bounds=bounds,
            constraints={
                "type": "ineq",
                "fun": lambda z: z[-1] - oracle.at(z[:-1])[0],
                "jac": lambda z: np.append(-oracle.at(z[:-1])[1], np.ones((len(oracle.last[1]), 1)), axis=1),
            },
            method="SLSQP",
            options={"maxiter": iterations, "ftol": 1e-12},
        )
        x = oracle.best[1]
        if not oracle.best[0] < before - 1e-6 * abs(before):
            return


def smoothed(oracle: Oracle, x: np.ndarray, iterations: int = 300) -> None:
    """L-BFGS-B on a log-sum-exp of the losses, sharper and sharper."""
    for sharpness in SHARPNESS:
        scale = sharpness / max(abs(np.max(oracle.at(x)[0])), 1e-12)

        def value(x, scale=scale):
            losses, slopes = oracle.at(x)
            weights = np.exp(scale * (losses - losses.max()))
            return losses.max() + np.log(weights.sum()) / scale, weights @ slopes / weights.sum()

        bounds = [(oracle.case.low, oracle.case.high)] * len(x)
        options = {"maxiter": iterations, "ftol": 1e-12, "gtol": 1e-9}
        x = minimize(value, x, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x


def from_start(case: Any, x: np.ndarray) -> Oracle:
    """What both ways reach from x."""
    oracle = Oracle(case)
    smoothed(oracle, x)
    if len(x) < MANY:
        epigraph(oracle, oracle.best[1])
        epigraph(oracle, x)
    return oracle


def compute(case: Any) -> Reference:
    """The reference of a case."""
    oracle = Oracle(case)
    start = float(np.max(oracle.at(oracle.start)[0]))  # compiles
    began = time.perf_counter()
    own = from_start(case, oracle.start)
    seconds = time.perf_counter() - began
    rng = np.random.default_rng(case.draw)
    moved = [oracle.start + case.spread * rng.normal(size=oracle.start.shape) for _ in range(STARTS)]
    others = [from_start(case, np.clip(np.abs(x) if case.low == 0 else x, case.low, case.high)) for x in moved]
    reached = [other.best[0] for other in others]
    return Reference(start, own.best[0], min(own.best[0], *reached), reached, own.count, seconds)


def reference(case: Any, folder: Path) -> Reference:
    """The reference of a case, kept in a file; a file of other data is not used."""
    path = folder / f"{case.family}-{case.draw}.json"
    mark = hashlib.sha256(Path(__file__).read_bytes())
    for array in jax.tree.leaves((case.x, case.y, case.tasks, case.spread)):
        mark.update(np.asarray(array).tobytes())
    if path.exists():
        kept = json.loads(path.read_text())
        if kept.pop("mark") == mark.hexdigest():
            return Reference(**kept)
    found = compute(case)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found._asdict() | {"mark": mark.hexdigest()}))
    return found
