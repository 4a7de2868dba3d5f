"""Parts: frozen dataclasses that are pytrees, so that rates are data and everything else is structure.

A solver, an estimator, a weighting, a constraint or a problem is a *part*. Fields declared with `leaf()` are data: other
values of them never recompile anything. All other fields (numbers of steps, functions) are structure: part of what is
compiled. A part inside a part is always data, all the way down.

`jax.tree_util.register_dataclass` does not do: whether a field is data must then be the same for all objects of a class,
and a rate is data where it is a number and structure where it is a schedule, a function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
from jax.tree_util import GetAttrKey

T = TypeVar("T")


def leaf(*, default: Any = dataclasses.MISSING) -> Any:
    """Declares a field as data: a number, an array, a pytree of them, None, or a function (which is structure)."""
    return dataclasses.field(default=default, metadata={"leaf": True})


def static(*, by: Callable[[Any], Any]) -> Any:
    """Declares a field as structure that is compared by a key: values with equal keys compile once."""
    return dataclasses.field(metadata={"by": by})


class _Static:
    """A structural value, compared by what it does: two equal `functools.partial`s compile once."""

    def __init__(self, value: Any, by: Callable[[Any], Any] | None):
        self.value = value
        if by is not None:
            self.identity = by(value)
        elif isinstance(value, functools.partial):
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


@dataclass_transform(frozen_default=True, field_specifiers=(leaf, static))
def part(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass and registers it as a pytree.

    A class with an `__init__` or a `__repr__` of its own keeps it; one with its own `__init__` compares by identity.

    >>> @part
    ... class Halve:
    ...     lr: float = leaf(default=0.5)
    ...     times: int = 1
    >>> jax.tree_util.tree_leaves_with_path(Halve())
    [((GetAttrKey(name='lr'),), 0.5)]
    >>> jax.tree.structure(Halve(0.1)) == jax.tree.structure(Halve(0.2))
    True
    """
    own = vars(cls)
    made_by_fields = "__init__" not in own
    shown = own.get("__repr__", _text)
    cls = dataclasses.dataclass(frozen=True, repr=False, init=made_by_fields, eq=made_by_fields)(cls)
    cls.__repr__ = shown  # type: ignore[method-assign]
    fields = [(f.name, f.metadata.get("leaf", False), f.metadata.get("by")) for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    cls._bilevel_part = True  # type: ignore[attr-defined]

    def flatten_with_keys(self: Any) -> tuple[list[tuple[GetAttrKey, Any]], tuple]:
        children, structure = [], []
        for name, declared, by in fields:
            value = getattr(self, name)
            if _is_data(declared, value):
                children.append((GetAttrKey(name), value))
                structure.append((name, True, None))
            else:
                structure.append((name, False, _Static(value, by)))
        return children, tuple(structure)

    def flatten(self: Any) -> tuple[list[Any], tuple]:
        children, structure = flatten_with_keys(self)
        return [value for _, value in children], structure

    def unflatten(structure: tuple, children: Any) -> Any:
        # __init__ is passed by: JAX also unflattens with placeholders that no constructor would accept.
        self, values = object.__new__(cls), iter(children)
        for name, is_child, constant in structure:
            object.__setattr__(self, name, next(values) if is_child else constant.value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def set_fields(self: Any, **values: Any) -> None:
    """Fills the fields of a part whose class has an `__init__` of its own."""
    for name, value in values.items():
        object.__setattr__(self, name, value)


def replace(whole: T, **changes: Any) -> T:
    """The same part with other fields, without its `__init__`."""
    unknown = set(changes) - {field.name for field in dataclasses.fields(whole)}  # type: ignore[arg-type]
    if unknown:
        raise TypeError(f"{type(whole).__name__} has no field {min(unknown)!r}.")
    new = object.__new__(type(whole))
    set_fields(new, **{f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)} | changes)  # type: ignore[arg-type]
    return new
