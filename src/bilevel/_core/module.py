"""Parts: frozen dataclasses that are pytrees, so that rates are data and everything else is structure.

A solver, an estimator, a weighting or a constraint is a *part*. Fields declared with `leaf()` are data: other values
never recompile anything. All other fields (numbers of steps, functions) are structure and compiled in. A part inside a
part is always data, all the way down.

Why not `jax.tree_util.register_dataclass`: it fixes for a class which fields are data. A rate may be a number, which is
data, or a schedule, which is a function and therefore structure unless it is a part itself. That depends on the value
and is decided at each flattening.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def leaf(*, default: Any = dataclasses.MISSING) -> Any:
    """Declares a field as data: a number, an array, a pytree of them, None, or a function (which is structure)."""
    return dataclasses.field(default=default, metadata={"leaf": True})


def static(*, by: Callable[[Any], Hashable], default: Any = dataclasses.MISSING) -> Any:
    """Declares a field as structure that is compared by `by(value)` instead of by the value.

    Two parts whose fields agree in `by` share one compiled program, whatever else differs in these values. So compiled
    code may depend on nothing but `by(value)`.

    >>> @part
    ... class Team:
    ...     names: tuple[str, ...] = static(by=len)
    >>> jax.tree.structure(Team(("a", "b"))) == jax.tree.structure(Team(("c", "d")))
    True
    >>> Team(("a", "b")) == Team(("c", "d"))
    False
    """
    return dataclasses.field(default=default, metadata={"by": by})


@dataclasses.dataclass(eq=False, repr=False)
class _Static:
    """A structural value, compared by its identity: two equal `functools.partial`s compile once."""

    value: object
    identity: Hashable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.identity == other.identity

    def __hash__(self) -> int:
        try:
            return hash(self.identity)
        except TypeError:
            return hash(type(self.value))


def _identity(value: object) -> Hashable:
    if isinstance(value, functools.partial):
        return (value.func, value.args, tuple(sorted(value.keywords.items())))
    return value


class _Field(NamedTuple):
    """How one field of a part is flattened."""

    name: str
    key: Hashable  # the name, as paths of leaves have it
    is_leaf: bool
    by: Callable[[Any], Hashable]


def _text(self: Any) -> str:
    """`Name(field=value, ...)` with functions by their names, not their addresses."""

    def text(value: object) -> str:
        return getattr(value, "__qualname__", None) or repr(value)

    shown = (f"{f.name}={text(getattr(self, f.name))}" for f in dataclasses.fields(self))
    return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(leaf, static))
def part(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass and registers it as a pytree.

    A class keeps an `__init__` or `__repr__` of its own. Such an `__init__` sets the fields with `assign`, and such a
    class compares by identity.

    >>> @part
    ... class Halve:
    ...     lr: float = leaf(default=0.5)
    ...     times: int = 1
    >>> jax.tree_util.tree_leaves_with_path(Halve())
    [((GetAttrKey(name='lr'),), 0.5)]
    >>> jax.tree.structure(Halve(0.1)) == jax.tree.structure(Halve(0.2))
    True
    """
    own_init, own_repr = "__init__" in vars(cls), "__repr__" in vars(cls)
    cls = dataclasses.dataclass(frozen=True, repr=False, init=not own_init, eq=not own_init)(cls)
    if not own_repr:
        cls.__repr__ = _text  # type: ignore[method-assign]
    fields = [
        _Field(f.name, jax.tree_util.GetAttrKey(f.name), f.metadata.get("leaf", False), f.metadata.get("by", _identity))
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    ]
    cls._bilevel_part = True  # type: ignore[attr-defined]

    def flatten(self: T) -> tuple[list, tuple]:
        children, structure = [], []
        for field in fields:
            value = getattr(self, field.name)
            # A schedule is a function, so structure; a model that can be called is a pytree of arrays, so data.
            is_data = hasattr(type(value), "_bilevel_part") or (
                field.is_leaf and not (callable(value) and jax.tree_util.all_leaves([value]))
            )
            if is_data:
                children.append((field.key, value))
            structure.append((field.name, is_data, None if is_data else _Static(value, field.by(value))))
        return children, tuple(structure)

    def unflatten(structure: tuple, children: Iterable) -> T:
        # __init__ is bypassed: JAX also unflattens with placeholders that no constructor would accept.
        self, values = object.__new__(cls), iter(children)
        for name, is_data, kept in structure:
            object.__setattr__(self, name, next(values) if is_data else kept.value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def assign(self: object, **values: object) -> None:
    """Sets fields of a part inside its own `__init__`, as parts are frozen."""
    for name, value in values.items():
        object.__setattr__(self, name, value)


def replace(part: T, **changes: object) -> T:
    """A copy of a part with some fields changed, made without calling `__init__` or `__post_init__`.

    >>> @part
    ... class Scaled:
    ...     scale: float = leaf(default=1.0)
    >>> replace(Scaled(), scale=2.0)
    Scaled(scale=2.0)
    """
    names = [field.name for field in dataclasses.fields(part)]  # type: ignore[arg-type]
    unknown = [name for name in changes if name not in names]
    if unknown:
        raise TypeError(f"{type(part).__name__} has no field {unknown[0]!r}: its fields are {', '.join(names)}.")
    copy = object.__new__(type(part))
    assign(copy, **{name: getattr(part, name) for name in names} | changes)
    return copy


def field_names(value: object) -> set[str]:
    """The fields of a dataclass; none of anything else."""
    return {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
