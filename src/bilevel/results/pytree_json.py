"""The structure of a pytree as JSON, so that named arrays can be put together again.

A structure is null, the path of a leaf, or {kind: [[key, child], ...]}. The kinds dict, list and tuple come back as
they were. Any other node of JAX's registry has the kind node: a file cannot hold its class, so it comes back as a dict,
or in the structure of an example that the user gives.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.documents import shown
from bilevel._core.types import Json, Tree

Arrays = Mapping[str, np.ndarray]
Structure = None | str | dict[str, list[list]]  # the path of a leaf, or the {kind: [[key, child], ...]} of a node
Leaf = jax.Array | np.ndarray
DEEPEST = 100  # levels: reading recurses once a level, and must not run out of stack
KINDS = {"dict": (str, int, bool), "list": (int,), "tuple": (int,), "node": (str,)}  # kinds of nodes: types of keys


def describe(node: Tree, path: str = "", depth: int = 0) -> Structure:
    """The structure of a pytree, its leaves in JAX's order.

    >>> describe({"w": 1.0, "b": [2.0, None]})
    {'dict': [['b', {'list': [[0, '/b/0'], [1, None]]}], ['w', '/w']]}
    """
    if depth > DEEPEST:
        raise ValueError(f"a pytree that is nested more than {DEEPEST} levels deep cannot be saved.")
    if node is None:
        return None
    children = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda other: other is not node)
    if len(children) == 1 and not children[0][0]:
        return path
    names = [jax.tree_util.keystr(key, simple=True) for key, _ in children]
    names = names if len(set(names)) == len(names) else [str(i) for i in range(len(names))]
    kind, keys = "node", names
    if type(node) in (list, tuple):
        kind, keys = type(node).__name__, list(range(len(names)))
    elif type(node) is dict and all(type(key) in (str, int, bool) for key in node):
        kind, keys = "dict", [key[0].key for key, _ in children]
    below = [f"{path}/{name.replace('~', '~0').replace('/', '~1')}" for name in names]  # as in JSON pointers
    return {
        kind: [[key, describe(child, p, depth + 1)] for key, (_, child), p in zip(keys, children, below, strict=True)]
    }


def paths(structure: Structure) -> list[str]:
    """The paths of the leaves, in JAX's order."""
    if structure is None:
        return []
    if isinstance(structure, str):
        return [structure]
    [children] = structure.values()
    return [path for _, child in children for path in paths(child)]


def checked_paths(structure: Json, name: str, where: str) -> list[str]:
    """The paths of the leaves of a structure in a file; where it is none, a ValueError that names it and the file.

    >>> checked_paths({"tuple": [[0, "/0"], [2, None]]}, "x", "load('a')")
    Traceback (most recent call last):
    ValueError: load('a'): its document is wrong: the structure of x has the keys [0, 2] in a tuple.
    """
    try:
        _check(structure, 0)
        found = paths(structure)
        if len(set(found)) < len(found):
            raise ValueError("names an array twice")
    except ValueError as error:
        raise ValueError(f"{where}: its document is wrong: the structure of {name} {error}.") from None
    return found


def _check(structure: Json, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} levels deep")
    if structure is None or isinstance(structure, str):
        return
    if not isinstance(structure, dict) or len(structure) != 1 or not set(structure) <= set(KINDS):
        raise ValueError(f"has {shown(structure)} where it needs null, a path, or one of {', '.join(KINDS)}")
    [(kind, children)] = structure.items()
    if not isinstance(children, list) or not all(isinstance(c, list) and len(c) == 2 for c in children):
        raise ValueError(f"has {shown(children)} where it needs pairs of a key and a child")
    keys = [key for key, _ in children]
    fit = all(type(key) in KINDS[kind] for key in keys) and len(set(keys)) == len(keys)
    if not fit or (kind in ("list", "tuple") and keys != list(range(len(keys)))):
        raise ValueError(f"has the keys {shown(keys)} in a {kind}")
    for _, child in children:
        _check(child, depth + 1)


def leaves(structure: Structure, node: Tree, prefix: str) -> dict[str, Leaf]:
    """The leaves of a pytree, each named by a prefix and its path."""
    return {prefix + path: leaf for path, leaf in zip(paths(structure), jax.tree.leaves(node), strict=True)}


def restore(structure: Structure, arrays: Arrays, prefix: str, example: Tree = None) -> Tree:
    """The pytree of these named leaves, in the structure of an example where one is given."""
    if example is not None:
        named = [_as_jax(arrays[prefix + path]) for path in paths(structure)]
        return jax.tree.unflatten(jax.tree.structure(example), named)
    if structure is None:
        return None
    if isinstance(structure, str):
        return _as_jax(arrays[prefix + structure])
    [(kind, children)] = structure.items()
    restored = {key: restore(child, arrays, prefix) for key, child in children}
    return {"list": list, "tuple": tuple}[kind](restored.values()) if kind in ("list", "tuple") else restored


def _as_jax(array: np.ndarray) -> Leaf:
    """A JAX array, unless JAX would round it: float64 stays a numpy array where 64 bits are not enabled."""
    return jnp.asarray(array) if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype else array


def check_fit(
    argument: str, example: Tree, structure: Structure, arrays: Arrays, prefix: str, stacked: bool = False
) -> None:
    """A ValueError unless an example has the structure and the shapes that the file holds."""
    shapes = [arrays[prefix + path].shape[stacked:] for path in paths(structure)]
    if describe(example) == structure and [np.shape(leaf) for leaf in jax.tree.leaves(example)] == shapes:
        return
    stored = restore(structure, arrays, prefix)
    stored = pytrees.describe(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[stacked:], a.dtype), stored))
    got = pytrees.describe(jax.tree.map(lambda a: a if hasattr(a, "dtype") else np.asarray(a), example))
    raise ValueError(f"load({argument}=...) got {got}, which does not fit what the file holds: {stored}.")
