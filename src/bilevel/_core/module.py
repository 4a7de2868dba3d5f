"""Parts: frozen dataclasses that are pytrees, so that rates are data and everything else is structure.

A solver, an estimator, a weighting or a constraint is a *part*. Fields declared with `leaf()` are data: other
values of them never recompile anything. All other fields (numbers of steps, functions) are structure: part of what is
compiled. A part inside a part is always data, all the way down.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def leaf(*, default: Any = dataclasses.MISSING) -> Any:
    """Declares a field as data: a number, an array, a pytree of them, None, or a function (which is structure)."""
    return dataclasses.field(default=default, metadata={"leaf": True})


class _Static:
    """A structural value, compared by what it does: two equal `functools.partial`s compile once."""

    def __init__(self, value: Any):
        self.value = value
        if isinstance(value, functools.partial):
            self.identity = (value.func, value.args, tuple(sorted(value.keywords.items())))
        else:
            self.identity = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.identity == other.identity

    def __hash__(self) -> int:
        try:
            return hash(self.identity)
        except TypeError:
            return hash(type(self.value))


def _is_data(declared: bool, value: Any) -> bool:
    return not callable(value) if declared else hasattr(type(value), "_bilevel_part")


def _text(self: Any) -> str:
    """`Name(field=value, ...)` with functions by their names, not their addresses."""

    def text(value: Any) -> str:
        return getattr(value, "__qualname__", None) or repr(value)

    shown = (f"{f.name}={text(getattr(self, f.name))}" for f in dataclasses.fields(self))
    return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(leaf,))
def part(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass and registers it as a pytree.

    >>> @part
    ... class Halve:
    ...     lr: float = leaf(default=0.5)
    ...     times: int = 1
    >>> jax.tree.leaves(Halve())
    [0.5]
    >>> jax.tree.structure(Halve(0.1)) == jax.tree.structure(Halve(0.2))
    True
    """
    cls = dataclasses.dataclass(frozen=True, repr=False)(cls)
    cls.__repr__ = _text  # type: ignore[method-assign]
    fields = [(f.name, f.metadata.get("leaf", False)) for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    cls._bilevel_part = True  # type: ignore[attr-defined]

    def flatten(self: Any) -> tuple[list, tuple]:
        children, structure = [], []
        for name, declared in fields:
            value = getattr(self, name)
            if _is_data(declared, value):
                children.append(value)
                structure.append((name, True, None))
            else:
                structure.append((name, False, _Static(value)))
        return children, tuple(structure)

    def unflatten(structure: tuple, children: list) -> Any:
        # __init__ is passed by: JAX also unflattens with placeholders that no constructor would accept.
        self, values = object.__new__(cls), iter(children)
        for name, is_child, static in structure:
            object.__setattr__(self, name, next(values) if is_child else static.value)
        return self

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


Rate = float | jax.Array | Callable[[jax.Array], jax.Array] | None
"""A learning rate: a number, a schedule (step -> rate, as optax's are), or None = chosen and kept up to date."""


def rate_at(rate: Rate, step: jax.Array) -> Any:
    """The value of a rate at a step; None stays None."""
    return rate(step) if callable(rate) else rate


@dataclasses.dataclass(frozen=True)
class Power:
    """The schedule scale (1 + step)^exponent; equal ones compile once."""

    scale: float
    exponent: float

    def __call__(self, step: Any) -> Any:
        """Its value at a step."""
        return self.scale * (1.0 + step) ** self.exponent
