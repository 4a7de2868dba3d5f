"""What every weighting must do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.module import replace
from bilevel.testing.comparing import (
    PRECISIONS,
    other_values,
    precision,
    require,
    require_close,
    require_like,
    require_pytree,
)
from bilevel.weightings.base import Weighting

STEPS = 12
RATES = (1e-3, 0.3, 50.0)  # the last one throws weights onto the boundary


class _Seen(NamedTuple):
    """Weights and state of a weighting; the state is any pytree with one row per task."""

    weights: jax.Array
    state: Any


def check_weighting(weighting: Weighting, tasks: int = 5) -> None:
    """Raises an AssertionError unless a weighting keeps its promises with this number of tasks.

    In float32 and float64: weights stay on the simplex, whatever the losses and the rate; dtypes and shapes are kept
    and the state has one row per task; `update` is pure, works under `jax.jit` and gives the same under `jax.vmap`;
    tasks that start with equal weights are treated alike; weights that do not move (`moves = False`) do not; other
    rates and other numbers in the weighting do not compile again.

    >>> from bilevel.weightings import SimplexAscent
    >>> check_weighting(SimplexAscent(lr=0.1), tasks=3)
    """
    require(
        isinstance(weighting, Weighting),
        f"{weighting!r} is no Weighting: it needs bilevel.weightings.Weighting as its base.",
    )
    require_pytree(weighting, "weighting")
    try:
        weighting.check(tasks)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{weighting}.check({tasks}) refuses it: {error}") from error
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_in(weighting, tasks, dtype)


def _check_in(weighting: Weighting, tasks: int, dtype: DTypeLike) -> None:
    name = f"{weighting} in {jnp.dtype(dtype)}"
    losses = jnp.asarray(np.random.default_rng(0).normal(size=(STEPS, tasks)) * np.geomspace(0.1, 100, tasks), dtype)
    first = _Seen(*weighting.init(tasks, dtype))
    require_like(f"{name}: init's weights", first.weights, jax.ShapeDtypeStruct((tasks,), dtype))
    _require_on_simplex(f"{name}: init", first.weights)
    for path, leaf in jax.tree_util.tree_leaves_with_path(first.state):
        require(
            jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == tasks,
            f"{name}: the state{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}: it needs one row per task, "
            f"({tasks}, ...).",
        )
    step, traces = _counted_step()
    last = first
    for rate in RATES:
        last = first
        for row in losses:
            last = _Seen(*step(weighting, last, row, rate))
            require_like(f"{name}: update's weights and state", last, first)
            _require_on_simplex(f"{name}: update with rate {rate}", last.weights)
            if not weighting.moves:
                require(
                    np.array_equal(last.weights, first.weights),
                    f"{name}: moves is False, but update moved the weights.",
                )
    require(len(traces) == 1, f"{name}: {len(RATES)} rates traced update {len(traces)} times instead of once.")
    _check_traces(name, weighting, first, losses[0])
    _check_pure(name, weighting, last, losses[0])
    _check_batched(name, weighting, step, last, losses)
    _check_symmetric(name, weighting, step, first, last, losses[0])


def _counted_step() -> tuple[Callable[[Weighting, _Seen, jax.Array, ArrayLike], tuple[jax.Array, Any]], list[None]]:
    """`update`, compiled, and a list that grows by one at every trace."""
    traces: list[None] = []

    @jax.jit
    def step(weighting: Weighting, seen: _Seen, losses: jax.Array, rate: ArrayLike) -> tuple[jax.Array, Any]:
        traces.append(None)
        return weighting.update(seen.weights, losses, seen.state, rate)

    return step, traces


def _require_on_simplex(name: str, weights: jax.Array) -> None:
    given = np.asarray(weights, float)
    require(np.all(given >= 0), f"{name} gives weights {given}, some of which are negative or NaN.")
    allowed = 64 * len(given) * float(jnp.finfo(weights.dtype).eps)
    require(abs(given.sum() - 1) <= allowed, f"{name} gives weights that sum to {given.sum()!r}: they need the sum 1.")


def _check_traces(name: str, weighting: Weighting, first: _Seen, losses: jax.Array) -> None:
    """Other numbers in the weighting itself, its rate among them, must not compile again."""
    step, traces = _counted_step()
    has_rate = dataclasses.is_dataclass(weighting) and "lr" in (f.name for f in dataclasses.fields(weighting))
    one, other = (replace(weighting, lr=lr) if has_rate else weighting for lr in (0.3, 0.7))
    for values in (one, other_values(other)):
        jax.eval_shape(step, values, first, losses, 0.3)
    require(
        len(traces) == 1, f"{name}: other numbers in the weighting compile again: declare them as data, with leaf()."
    )


def _check_pure(name: str, weighting: Weighting, seen: _Seen, losses: jax.Array) -> None:
    """The same input gives the same output, and stays as it was."""
    before = jax.tree.map(np.array, (weighting, seen))
    # Compiled twice from two traces, so that what Python remembers between them shows.
    once, twice = (_counted_step()[0](weighting, seen, losses, 0.3) for _ in range(2))
    same = jax.tree.map(np.array_equal, before, (weighting, seen))
    require(all(jax.tree.leaves(same)), f"{name}: update is not pure: it changes its input.")
    require_close(f"{name}: update is not pure: called twice, it differs", twice, once)


def _check_batched(name: str, weighting: Weighting, step: Callable, seen: _Seen, losses: jax.Array) -> None:
    """A batch of losses gives what they give one by one."""
    batched = jax.vmap(step, in_axes=(None, None, 0, None))(weighting, seen, losses, 0.3)
    single = [step(weighting, seen, row, 0.3) for row in losses]
    require_close(
        f"{name}: update under vmap and without", batched, jax.tree.map(lambda *rows: jnp.stack(rows), *single)
    )


def _check_symmetric(
    name: str, weighting: Weighting, step: Callable, first: _Seen, last: _Seen, losses: jax.Array
) -> None:
    """Permuting tasks that started with equal weights permutes the weights and the state."""
    start = np.asarray(first.weights)
    order = np.arange(len(start))
    for value in np.unique(start):
        alike = np.flatnonzero(start == value)
        order[alike] = np.roll(alike, 1)
    permuted = jax.tree.map(lambda a: a[order], last)
    got = step(weighting, permuted, losses[order], 0.3)
    wanted = jax.tree.map(lambda a: a[order], step(weighting, last, losses, 0.3))
    require_close(f"{name}: permuting tasks of equal weight does not permute what update gives", got, wanted)
