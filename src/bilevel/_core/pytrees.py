"""Pytree algebra that `jax.tree` and `optax.tree` do not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.tree_util import KeyPath

from bilevel._core.types import Index, T, Tree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Function:
    """A function that is part of the structure of a pytree instead of a leaf; it can be called as before."""

    function: Callable

    def __call__(self, *args: object, **options: object) -> Tree:
        """Calls the function."""
        return self.function(*args, **options)


def hold_functions(tree: Tree) -> Tree:
    """The tree with its functions, such as a model's activation, held as structure, so that leaves are arrays only.

    >>> model = {"weight": jnp.ones(2), "activation": jnp.tanh}
    >>> held = hold_functions(model)
    >>> len(jax.tree.leaves(model)), len(jax.tree.leaves(held)), float(held["activation"](0.0))
    (2, 1, 0.0)
    """

    def hold(path: KeyPath, leaf: object) -> object:
        return Function(leaf) if path and callable(leaf) else leaf  # without a path the function is the whole tree

    return jax.tree_util.tree_map_with_path(hold, tree)


def check(tree: Tree, name: str) -> None:
    """A ValueError that names the argument if this is no pytree, such as a dict whose keys have no order.

    >>> check({1: 0.0, "a": 0.0}, "x")
    Traceback (most recent call last):
    ValueError: x is no pytree: the keys of a dict in it cannot be ordered.
    """
    try:
        jax.tree.leaves(tree)
    except ValueError as error:
        raise ValueError(f"{name} is no pytree: the keys of a dict in it cannot be ordered.") from error


def stack(trees: Sequence[T]) -> T:
    """Stacks like pytrees along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def index(tree: T, i: Index) -> T:
    """Element `i` of every leaf."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def unit(tree: T) -> T:
    """The tree scaled to norm 1; zero stays zero."""
    norm = optax.tree.norm(tree)
    return optax.tree.scale(jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1), 0), tree)


def generic(tree: T, frequency: float = 2.4) -> T:
    """A fixed vector of length 1 in general position, to start a power iteration from.

    A random one would be no better, would differ between float32 and float64, and takes longer to compile
    than all the rest of a first measurement.
    """
    return unit(
        jax.tree.map(lambda a: 0.5 + jnp.cos(frequency * jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), tree)
    )


def signature(tree: Tree, skip: int = 0) -> tuple:
    """Structure, shapes (without the first `skip` axes) and dtypes: what two stackable trees share."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape[skip:], leaf.dtype) for leaf in leaves)


def describe(tree: Tree) -> str:
    """Shapes and dtypes in one line, for error messages.

    >>> describe({"w": jnp.zeros((3, 2), "float32"), "b": jnp.zeros(2, "float32")})
    "{'b': float32[2], 'w': float32[3,2]}"
    """

    class Text(str):
        __repr__ = str.__str__

    def text(leaf: Tree) -> Text:
        leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        return Text(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]")

    return str(jax.tree.map(text, tree)) if jax.tree.leaves(tree) else "nothing"


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating number in the tree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.array(True)


def is_traced(tree: Tree) -> bool:
    """Whether any leaf is a tracer, whose value is not known."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def is_finite(tree: Tree) -> bool:
    """Whether every floating number in a tree of known arrays is finite, found without compiling anything."""
    floating = (leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))
    return all(bool(np.all(np.isfinite(np.asarray(leaf)))) for leaf in floating)
