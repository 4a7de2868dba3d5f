"""Losses that count the calls of themselves and of their derivatives, by what is really executed.

A counted loss F(x, y) has derivative rules of its own:

    F         counts a value, unless it is differentiated: a value that comes with a gradient is free
    grad F    counts a gradient where a reverse pass hands it out; F_x and F_y at one point on one sample are one
    A t, J t  count a product with d2/dy2 or d2/dxdy, forwards or backwards; the gradient on the way is free

`tick` does the counting: an identity that calls Python when it runs. It has no side effect for the compiler, which
removes what nobody uses, as in a plain step, so that it does not count. Loops count as often as they turn, a `cond` by
the branch it takes, a `vmap` by its size.

Why a primitive of our own, with rules from `jax.interpreters`: `tick` needs a rule for vmap, one for `jvp`, by which
surrogates are made, and a transpose that counts. Nothing public has all three: `jax.custom_vjp` has no forward
derivatives, `jax.custom_derivatives.linear_call` cannot be batched, and with `custom_vmap` around it there is no
reverse mode.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad, batching, mlir

from bilevel._core.module import part
from bilevel._core.types import Data, T, Tree
from bilevel.problem.group import Group, TaskView
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample, Source

UPPER, LOWER = ("upper_values", "upper_gradients"), ("lower_values", "lower_gradients")
FARTHEST = np.finfo(np.float32).max  # points beyond are as good as infinite, in any precision
HESSIAN, JACOBIAN, ROWS = "hessian_products", "jacobian_products", "rows"


class Tally:
    """Counts of each kind of call. Equal to itself only, so that nothing compiled with it is used again."""

    def __init__(self):
        self.counts: collections.Counter[str] = collections.Counter()
        self.finite = True  # whether all calls so far were at finite points
        self._gradients: set[tuple[str, bytes]] = set()

    def next_step(self) -> None:
        """Forgets the gradients of the last step, so that a run that does not move counts them again."""
        self._gradients.clear()

    def count(self, kind: str, calls: np.ndarray) -> None:
        """Adds calls, a row each. A gradient is of all of F: its part in x and its part in y are one call."""
        self.finite = self.finite and bool((np.abs(calls) < FARTHEST).all())  # false of NaN too
        if kind in (UPPER[1], LOWER[1]):
            known = {call.tobytes(): call for call in calls if (kind, call.tobytes()) not in self._gradients}
            self._gradients |= {(kind, name) for name in known}
            calls = np.array(list(known.values())).reshape(-1, calls.shape[1])
        self.counts[kind] += len(calls)
        self.counts[ROWS] += int(calls[:, 0].sum())

    def mark(self, kind: str, value: Tree, call: jax.Array, backwards: bool = False) -> Tree:
        """`value`, counted when it is used; with `backwards`, when a cotangent comes back through it instead."""
        flat, unravel = ravel_pytree(value)
        # Each call has its own site: otherwise the compiler might merge like calls, or not.
        return unravel(_tick.bind(flat, call, site=_Site(self, kind), counts=not backwards))


class _Site:
    def __init__(self, tally: Tally, kind: str):
        self.tally, self.kind = tally, kind

    def __call__(self, probe: jax.Array, call: jax.Array) -> np.ndarray:
        """Counts one call, or under `vmap` as many as the axes before the last say."""
        calls = np.asarray(call)
        self.tally.count(self.kind, calls.reshape(-1, calls.shape[-1]))
        return np.zeros(calls.shape[:-1], np.float32)


# ------------------------------------------------------------------ the identity that counts

_tick = Primitive("count")  # (values, call) -> values, linear in the values; axes of vmap come first in both


def _lower(values: jax.Array, call: jax.Array, *, site: _Site, counts: bool) -> jax.Array:
    if not counts:
        return values
    # A few numbers go to Python and a zero comes back: it depends on the values and the point, and the values on it, so
    # that the call is neither moved out of a loop nor kept where the values are not used.
    shape = jax.ShapeDtypeStruct(call.shape[:-1], jnp.float32)
    zero = jax.pure_callback(site, shape, values[..., 0], call)
    return values + jnp.broadcast_to(zero[..., None].astype(values.dtype), values.shape)


def _batch(arguments: tuple, axes: tuple, **parameters: object) -> tuple:
    size = next(a.shape[k] for a, k in zip(arguments, axes, strict=True) if k is not None)
    lead = lambda a, k: jnp.broadcast_to(a, (size, *a.shape)) if k is None else jnp.moveaxis(a, k, 0)  # noqa: E731
    return _tick.bind(*map(lead, arguments, axes), **parameters), 0


def _jvp(primals: tuple, tangents: tuple, **parameters: object) -> tuple:
    return _tick.bind(*primals, **parameters), tangents[0]  # second derivatives count where they are made


def _transpose(cotangent: Tree, values: Tree, call: jax.Array, *, site: _Site, counts: bool) -> tuple:
    if type(cotangent) is ad.Zero:
        return cotangent, None
    # A mark that counts forwards is a product, and so is its transpose; any other is a gradient, handed out here.
    return _tick.bind(cotangent, call, site=_Site(site.tally, site.kind), counts=True), None


_tick.def_impl(_lower)
_tick.def_abstract_eval(lambda values, call, **_: values)
mlir.register_lowering(_tick, mlir.lower_fun(_lower, multiple_results=False))
batching.primitive_batchers[_tick] = _batch
ad.primitive_jvps[_tick] = _jvp
ad.primitive_transposes[_tick] = _transpose


# ------------------------------------------------------------------ losses whose derivatives count


def counted(loss: Callable, tally: Tally, kinds: tuple[str, str]) -> Callable:
    """`loss(x, y, data)` as a function of (x, y, data, call) that counts in `tally`; `call` is `_call`'s."""
    value_kind, gradient_kind = kinds

    def gradient_rule(primals: tuple, tangents: tuple) -> tuple:
        *point, call = primals
        moves = [(source, t) for source, t in enumerate(map(_instantiated, tangents[:2])) if t is not None]

        def into(k: int) -> Tree:  # each part by itself: what is not used is not counted
            kinds = [HESSIAN if k == source else JACOBIAN for source, _ in moves]
            marked = [tally.mark(kind, t, call) for kind, (_, t) in zip(kinds, moves, strict=True)]
            parts = [_block(loss, k, source, point, t) for (source, _), t in zip(moves, marked, strict=True)]
            return parts[0] if len(parts) == 1 else optax.tree.add(*parts)

        return gradient(*primals), (into(0), into(1))

    @jax.custom_jvp
    def gradient(x: Tree, y: Tree, data: Data, call: jax.Array) -> tuple:
        return jax.grad(loss, argnums=(0, 1))(x, y, data)

    gradient.defjvp(gradient_rule, symbolic_zeros=True)

    def value_rule(primals: tuple, tangents: tuple) -> tuple:
        slopes = gradient(*primals)
        moved = [(s, t) for s, t in zip(slopes, map(_instantiated, tangents[:2]), strict=True) if t is not None]
        value = free(*primals)
        along = tally.mark(gradient_kind, tuple(t for _, t in moved), primals[3], backwards=True)
        return value, jnp.asarray(optax.tree.vdot(tuple(s for s, _ in moved), along), value.dtype)

    @jax.custom_jvp
    def free(x: Tree, y: Tree, data: Data, call: jax.Array) -> jax.Array:
        return loss(x, y, data)

    @jax.custom_jvp
    def value(x: Tree, y: Tree, data: Data, call: jax.Array) -> jax.Array:
        return tally.mark(value_kind, loss(x, y, data), call)

    free.defjvp(value_rule, symbolic_zeros=True)
    value.defjvp(value_rule, symbolic_zeros=True)
    return value


def _block(loss: Callable, into: int, source: int, point: Sequence, tangent: Tree) -> Tree:
    """One part of the second derivatives times a tangent: from x (0) or y (1) into x or y."""
    x, y, data = point
    slope = jax.grad(loss, argnums=into)
    if source == 0:
        return jax.jvp(lambda x: slope(x, y, data), (x,), (tangent,))[1]
    return jax.jvp(lambda y: slope(x, y, data), (y,), (tangent,))[1]


def _instantiated(tangent: Tree) -> Tree:
    """A tangent as arrays; None where all of it is zero, which tells products in y from those in x."""
    zero = lambda t: isinstance(t, SymbolicZero)  # noqa: E731
    if all(map(zero, jax.tree.leaves(tangent, is_leaf=zero))):
        return None
    return jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype) if zero(t) else t, tangent, is_leaf=zero)


# ------------------------------------------------------------------ the problem


@part
class CountedGroup(Group):
    """Tasks whose losses count."""

    tally: Any = None

    def each(self, function: Callable[..., T], *arguments: Tree, block: int | None = None) -> T:
        """`Group.each` with losses that count."""

        def counting(task: TaskView, number: jax.Array, *arguments: Tree) -> T:
            upper = self._counted(self.upper, task.validation, number, UPPER)
            lower = self._counted(self.lower, task.train, number, LOWER)
            return function(task._replace(upper=upper, lower=lower), *arguments)

        return Group.each(self, counting, self.ids, *arguments, block=block)

    def _counted(self, objective: Callable, source: Source, number: jax.Array, kinds: tuple[str, str]) -> Callable:
        def whole(x: Tree, y: Tree, data: tuple[Source, Sample]) -> jax.Array:
            source, sample = data
            return source.loss_on(sample, lambda batch: objective(x, y, batch))

        loss = counted(whole, self.tally, kinds)

        def on_sample(x: Tree, y: Tree, sample: Sample) -> jax.Array:
            return loss(x, y, (source, sample), _call(number, source.rows_in(sample), x, y, sample))

        return on_sample


def _call(number: jax.Array, rows: Data, *asked: Tree) -> jax.Array:
    """A description of a call: its number of rows, and numbers that differ at other points and on other samples."""
    # The task's number makes sure that a vmap over tasks reaches this, and that every task counts.
    told = [rows, number, *map(_fingerprint, asked)]
    return jax.lax.stop_gradient(jnp.stack([jnp.asarray(part, float) for part in told]))


def _fingerprint(values: Tree) -> jax.Array:
    """A number that other values do not have, or hardly ever."""
    flat = [jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(values)]  # as wide as there is
    # Factors without a common measure: by whole ones, rows 0 and 1 would be rows 2 and 0.
    return sum((jnp.vdot(leaf, 2 + jnp.sin(jnp.arange(leaf.size, dtype=float))) for leaf in flat), jnp.zeros(()))


def counted_problem(problem: Problem, tally: Tally) -> Problem:
    """The problem with losses that count in `tally`."""
    fields = [field.name for field in dataclasses.fields(Group)]
    groups = tuple(CountedGroup(**{f: getattr(g, f) for f in fields}, tally=tally) for g in problem.groups)
    return problem.replace(groups=groups)
