"""What the suites share: comparing pytrees, precisions, other values of the same part."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bilevel._core.module import replace

T = TypeVar("T")

PRECISIONS = (jnp.float32, jnp.float64)


@contextlib.contextmanager
def precision(dtype: DTypeLike) -> Iterator[None]:
    """JAX is set to this dtype as its default inside, and as it was afterwards."""
    where = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")  # in older versions
    with where.enable_x64(jnp.dtype(dtype) == jnp.float64):
        yield


def require(condition: object, message: str) -> None:
    """Raises an AssertionError with the message unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)


def require_pytree(part: object, kind: str) -> None:
    """Raises unless a part can be given to a compiled function."""
    require(
        not jax.tree_util.all_leaves([part]),
        f"{part!r} is not a pytree, so that it cannot be given to a compiled function: make the {kind} a bl.part.",
    )


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
    """The part with every floating-point number halved, in leaves and in fields that are structure."""

    def halve(leaf: jax.Array) -> jax.Array:
        return leaf / 2 if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    halved = jax.tree.map(halve, part)
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    same = {f.name: value for f in fields if isinstance(value := getattr(halved, f.name), float)}
    static = {name: value / 2 for name, value in same.items() if value == getattr(part, name)}
    return replace(halved, **static) if static else halved
