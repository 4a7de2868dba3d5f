"""The code of functions as one hash, so that a changed body is noticed; names of variables and lines do not count.

Bytecode is that of one minor version of Python, which is a part of the text: two texts compare within a version only.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

# Their versions are kept with a run, and a change of these is told: it need not be a change of what is solved.
_VERSIONED = ("bilevel", "jax", "jaxlib", "numpy", "optax")


def code_of(functions: Iterable[Any]) -> str:
    """The version of Python, and a hash of the code of functions and of those of the same modules that they call."""
    seen: dict[int, FunctionType] = {}
    for function in functions:
        for own in _plain(function):
            _visit(own, own.__module__, seen)
    own = [each for each in seen.values() if str(each.__module__).partition(".")[0] not in _VERSIONED]
    checksum = hashlib.sha256(repr([_function(function) for function in own]).encode())
    return f"{sys.version_info.major}.{sys.version_info.minor} {checksum.hexdigest()[:32]}"


def differs(kept: object, now: object) -> bool:
    """Whether code has changed, as far as that can be told: not from another version of Python, or from nothing."""
    if not isinstance(kept, str) or not isinstance(now, str):
        return False
    return kept.split(" ")[0] == now.split(" ")[0] and kept != now


def _visit(function: FunctionType, module: object, seen: dict[int, FunctionType]) -> None:
    if id(function) in seen:
        return
    seen[id(function)] = function
    for name in _names(function.__code__):
        for called in _plain(function.__globals__.get(name)):
            if called.__module__ == module:
                _visit(called, module, seen)
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        for called in _plain(held):  # handed over on purpose, from whatever module
            _visit(called, called.__module__, seen)


def _plain(value: Any) -> Iterator[FunctionType]:
    """The function within partials, methods and what decorators made of it; nothing where there is no code."""
    for _ in range(100):  # a decorator's wrapper may lead back to itself
        if isinstance(value, FunctionType):
            yield value
        if isinstance(value, functools.partial):
            value = value.func
        else:
            inner = vars(value).get("__wrapped__") if hasattr(value, "__dict__") else None
            value = getattr(value, "__func__", None) if inner is None else inner
        if value is None:
            return


def _names(code: CodeType) -> list[str]:
    """What code refers to by name, in the order of its first use, with the code within it."""
    within = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return list(dict.fromkeys([*code.co_names, *within]))


def _function(function: FunctionType) -> Any:
    defaults = (function.__defaults__ or (), sorted((function.__kwdefaults__ or {}).items()))
    return _code(function.__code__, function.__doc__), _constant(defaults)


def _code(code: CodeType, doc: str | None = None) -> Any:
    constants = [_constant(None if doc is not None and each == doc else each) for each in code.co_consts]
    return code.co_code.hex(), code.co_names, constants


def _constant(value: Any) -> Any:
    """A constant as what is written alike in every process."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, (tuple, list)):
        return [_constant(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(repr(_constant(each)) for each in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return type(value).__qualname__
