"""Types that all rooms share.

`X` and `Y` are type variables: `solve` returns what a user gives as x, and as one task's y, with its own type. JAX has
no type for a pytree, so a type checker accepts anything as a `Tree`, a `Batch` or `Data`. These names tell a reader
what is meant. JAX is not imported for them: `bilevel watch` starts without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import jax
    import numpy as np

X = TypeVar("X")  # what the tasks share: a pytree of arrays
Y = TypeVar("Y")  # one task's own variable: a pytree of arrays
T = TypeVar("T")

Tree: TypeAlias = Any  # a pytree of arrays, such as an x, a y or a gradient
Batch: TypeAlias = Any  # a pytree of arrays with a leading axis of rows, as a loss gets it
Data: TypeAlias = Any  # a task's rows as its user gives them: a pytree of arrays with a leading axis, or a generator
Dataset: TypeAlias = Any  # has a length, and a task's rows or a `bl.Task` at every place
Json: TypeAlias = Any  # what JSON can hold, parsed
Scalar: TypeAlias = "float | jax.Array"  # a number, which may be traced
Index: TypeAlias = "int | slice | jax.Array | np.ndarray | None"  # of an array
Count: TypeAlias = "int | jax.Array"  # a whole number, which may be traced
Objective: TypeAlias = "Callable[[Tree, Tree, Batch], jax.Array]"  # one task's loss, of (x, y, batch)
