"""What the suites share: comparisons of pytrees, keys that compile quickly, and small problems of every kind."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jax.typing import DTypeLike

from bilevel._core.module import replace
from bilevel._core.types import Batch, Tree
from bilevel.problem.constraints import Box, Product, Unconstrained
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.multiblock import MultiBlockProblem
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.problem.task import Task

T = TypeVar("T")

PRECISIONS = (jnp.float32, jnp.float64)


@contextlib.contextmanager
def precision(dtype: DTypeLike) -> Iterator[None]:
    """A scope in which this dtype is JAX's default."""
    where = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")  # in older versions
    with where.enable_x64(jnp.dtype(dtype) == jnp.float64):
        yield


def require(condition: object, message: str) -> None:
    """Raises an AssertionError with the message unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)


def require_part(part: object, base: type, name: str, kind: str) -> None:
    """Raises unless a part has this base, and can be given to a compiled function."""
    require(isinstance(part, base), f"{part!r} is no {base.__name__}: it needs bl.{name} as its base.")
    require(
        not jax.tree_util.all_leaves([part]),
        f"{part!r} is not a pytree, so that it cannot be given to a compiled function: make the {kind} a bl.part.",
    )


def require_accepted(part: Any, shown: str, *arguments: object) -> None:
    """Raises unless the part's own check accepts these arguments."""
    try:
        part.check(*arguments)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{part}.check({shown}) refuses it: {error}") from error


class Compiled:
    """A compiled function that counts how often it is traced."""

    def __init__(self, function: Callable, **options: Any):
        self.function, self.traces = function, 0
        self.compiled = jax.jit(self._traced, **options)

    def _traced(self, *arguments: Any, **named: Any) -> Any:
        self.traces += 1
        return self.function(*arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The value of the function."""
        return self.compiled(*arguments, **named)

    def require_one_trace(self, what: str, kind: str) -> None:
        """Raises unless it was traced once, whatever the numbers in its arguments."""
        said = f"{what}: other numbers in the {kind} compile again: declare them as data, with bl.leaf()."
        require(self.traces == 1, said)


def require_like(what: str, got: object, wanted: object) -> None:
    """Raises unless two pytrees agree in structure, shapes and dtypes."""
    require(
        jax.tree.structure(got) == jax.tree.structure(wanted),
        f"{what} has the structure {jax.tree.structure(got)}: it needs {jax.tree.structure(wanted)}.",
    )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        a, b = (f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in (a, b))
        require(a == b, f"{what}{jax.tree_util.keystr(path)} is {a}: it needs {b}.")


def require_close(what: str, got: object, wanted: object, ulps: float = 64) -> None:
    """Raises unless two pytrees agree to a few units in the last place of their largest entry."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        error = float(np.max(np.abs(a - b), initial=0))
        allowed = ulps * float(jnp.finfo(b.dtype).eps) * scale
        require(
            error <= allowed, f"{what}: {jax.tree_util.keystr(path)} differs by {error:.3g}, more than {allowed:.3g}."
        )


def other_values(part: T) -> T:
    """The part with every floating-point number halved, in leaves and in static fields."""

    def halve(leaf: jax.Array) -> jax.Array:
        return leaf / 2 if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    halved = jax.tree.map(halve, part)
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    same = {f.name: value for f in fields if isinstance(value := getattr(halved, f.name), float)}
    static = {name: value / 2 for name, value in same.items() if value == getattr(part, name)}
    return replace(halved, **static) if static else halved


# ------------------------------------------------------------------ keys

GOLDEN = np.uint32(0x9E3779B9)  # 2^32 / golden ratio: multiples of it are far apart


def quick_key(seed: int | jax.Array) -> jax.Array:
    """A key of a generator that compiles quickly.

    JAX's own generator, threefry, is nearly half of what XLA compiles of a small step: every split, fold and draw is a
    loop of its own. The suites ask only that different keys give different numbers, and for means over a thousand
    draws; a hash of two multiplications does that. A key is two words, as threefry's, so that its data can be wrapped.

    Reference: Wellons, "Prospecting for hash functions", 2018 (lowbias32).
    """
    return jax.random.key(seed, impl=QUICK)


def _hash(words: jax.Array) -> jax.Array:
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _seeded(seed: jax.Array) -> jax.Array:
    return _hash((jnp.asarray(seed).astype(jnp.uint32) + jnp.arange(1, 3, dtype=jnp.uint32)) * GOLDEN)


def _folded(key: jax.Array, data: int | jax.Array) -> jax.Array:
    return _hash(key + (jnp.asarray(data).astype(jnp.uint32) + 1) * GOLDEN)


def _bits(key: jax.Array, width: int, shape: Sequence[int]) -> jax.Array:
    if width == 64:
        high, low = _bits(key, 32, (2, *shape)).astype(jnp.uint64)
        return (high << 32) | low
    count = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _hash(_hash(count * GOLDEN + key[0]) ^ key[1]).astype(f"uint{width}")


def _split(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    # Hashed first, so that a key does not draw the keys that it splits into.
    return _bits(_hash(key ^ GOLDEN), 32, (*shape, 2))


QUICK = define_prng_impl(
    key_shape=(2,), seed=_seeded, split=_split, random_bits=_bits, fold_in=_folded, name="quick", tag="quick"
)


# ------------------------------------------------------------------ small problems

KINDS = (Problem, MinMaxProblem, MultiBlockProblem)
ROWS = (20, 30, 25, 30, 20)  # training rows of every task: sizes differ inside a group
BOX = (-0.05, 0.05)


class Example(NamedTuple):
    """A problem, and where its runs start."""

    problem: BaseProblem
    x: Tree
    y: PerTask[Tree]


class Setting(NamedTuple):
    """Choice of an example.

    Attributes:
        kind: the kind of problem.
        order: of the tasks.
        noise: how far rows differ; with 0 all rows of a task are alike, and so are all batches.
        batch: rows in a batch; None = all the data.
    """

    kind: type[BaseProblem] = Problem
    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    noise: float = 1.0
    batch: int | None = 4


def make(setting: Setting, dtype: DTypeLike) -> Example:
    """Five tasks in two groups whose places alternate, under a box that leaves one entry of x no room."""
    tasks = _example_tasks(setting, dtype)
    high = jnp.asarray([BOX[1], BOX[1], 0.0], dtype)
    box = Product({"w": Box(-high, high), "b": Unconstrained()})
    x = {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}
    rows = setting.batch
    if setting.kind is MinMaxProblem:
        problem = MinMaxProblem(_loss, tasks, constraint=box, batch=rows)
    elif setting.kind is MultiBlockProblem:
        problem = MultiBlockProblem(_saddle, _lower_of_blocks, tasks, box, rows, rows, dual=jnp.zeros((), dtype))
    else:
        problem = Problem(_upper, _lower, tasks, box, rows, rows)
    return Example(problem, x, problem.starting_y(None, jax.random.key(0)))


def _example_tasks(setting: Setting, dtype: DTypeLike) -> list[Task]:
    generator = np.random.default_rng(0)

    def rows(count: int, slope: np.ndarray) -> tuple[jax.Array, jax.Array]:
        features = (generator.normal(size=3) + setting.noise * generator.normal(size=(count, 3))) / 2
        return jnp.asarray(features, dtype), jnp.asarray(features @ slope, dtype)

    second = {Problem: _absolute, MinMaxProblem: _absolute_loss}.get(setting.kind, _shifted_saddle)
    y = {Problem: {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}, MinMaxProblem: None}
    tasks = []
    for i, count in enumerate(ROWS):
        slope = generator.normal(size=3)
        own = second if i % 2 else None
        first = y.get(setting.kind, jnp.zeros(3, dtype))
        tasks.append(Task(rows(count, slope), rows(10, slope), name=f"task {i}", upper=own, y=first))
    return [tasks[i] for i in setting.order]


# ------------------------------------------------------------------ losses


def _miss(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    features, target = batch
    return features @ ((1 + x["w"]) * y["w"]) + y["b"] - target


def _upper(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    return jnp.mean(_miss(x, y, batch) ** 2)


def _absolute(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    return jnp.mean(jnp.sqrt(_miss(x, y, batch) ** 2 + 0.1))


def _lower(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    return _upper(x, y, batch) + 0.1 * jnp.sum(y["w"] ** 2) + 0.1 * y["b"] ** 2 + x["b"] * jnp.sum(y["w"])


def _loss(x: Tree, batch: Batch) -> jax.Array:
    features, target = batch
    return jnp.mean((features @ x["w"] + x["b"] - target) ** 2)


def _absolute_loss(x: Tree, batch: Batch) -> jax.Array:
    features, target = batch
    return jnp.mean(jnp.sqrt((features @ x["w"] + x["b"] - target) ** 2 + 0.1))


def _saddle(x: Tree, dual: jax.Array, y: jax.Array, batch: Batch) -> jax.Array:
    features, target = batch
    return dual * jnp.mean(features @ (x["w"] + y) - target) - dual**2 + jnp.mean((features @ y) ** 2)


def _shifted_saddle(x: Tree, dual: jax.Array, y: jax.Array, batch: Batch) -> jax.Array:
    return _saddle(x, dual, y, batch) + jnp.mean(dual * 0.1)


def _lower_of_blocks(x: Tree, y: jax.Array, batch: Batch) -> jax.Array:
    features, target = batch
    return jnp.mean((features @ y - x["b"] - target) ** 2) + jnp.sum((y - x["w"]) ** 2)
