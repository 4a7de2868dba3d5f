"""Identity of a run. A folder is resumed only by the run that wrote it; a refusal says what differs.

Options that cannot change a result are left out: how often a run is evaluated, saved, shown. Functions are identified
by their qualified names and by what they close over, functions of the problem also by a hash of their code. So a
changed body is noticed; names of variables and line numbers do not count. Bytecode differs between minor versions of
Python. The version is therefore part of the text, and only texts of the same version are compared.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import jax
import jaxlib.version
import numpy as np
import optax
from jax.typing import ArrayLike

from bilevel._core import pytrees
from bilevel._core.types import Json, Tree
from bilevel._run.devices import is_key
from bilevel._run.run import Run
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem

Identity = dict[str, Json]
LONG, AROUND = 120, 40  # a refusal shows longer texts only around the first difference

# Facts that are hashes, in the words of a refusal. Of all others it shows the values.
HASHED = {
    "tasks": "its tasks have other names",
    "shapes": "its data have other shapes",
    "data": "its data are others",
    "x": "its x starts elsewhere",
    "y": "its y starts elsewhere",
    "code": "the code of the loss functions differs",
}


class DifferentRunError(ValueError):
    """A folder holds another run."""


def identity_of(run: Run) -> Identity:
    facts = _problem(run.problem) | {"solver": text(run.solver), "x": _point(run.x), "y": _point(run.y)}
    facts |= {"on_divergence": text(run.policy), "fitted": run.fitted}
    if run.metrics:  # states hold them
        facts["metrics"] = ", ".join(f"{name}: {text(function)}" for name, function in run.metrics)
    return facts | {"seed": int(run.seed), "steps": int(run.steps)}


def digest(facts: Mapping[str, Json]) -> str:
    """A hash of an identity without the hash of the code, which depends on the version of Python."""
    lasting = sorted((name, fact) for name, fact in facts.items() if name != "code")
    return hashlib.sha256(repr(lasting).encode()).hexdigest()


def check_same(where: str, kept: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Raises if the folder holds another run; the error says what differs."""
    said = []
    for name in [*now, *(name for name in kept if name not in now)]:
        its, own = kept.get(name), now.get(name)
        if its == own or (name == "code" and not differs(its, own)):
            continue
        if name in HASHED:
            said.append(HASHED[name])
        else:
            words = _pair(its, own)
            said.append(f"it has {name}={words[0]} and this one {name}={words[1]}")
    if said:
        raise DifferentRunError(
            f"{where} holds another run: {'; '.join(said)}. Use the arguments that it was started with to resume "
            "it, or give another folder."
        )


def _pair(kept: object, now: object) -> tuple[str, str]:
    """Both as text; long texts are cut to the part around the first difference."""
    words = [str(value) or "none" for value in (kept, now)]
    if max(map(len, words)) > LONG:
        same = next((i for i, (a, b) in enumerate(zip(*words, strict=False)) if a != b), min(map(len, words)))
        begin, end = max(0, same - AROUND), same + AROUND
        words = [f"{'...' * (begin > 0)}{w[begin:end]}{'...' * (len(w) > end)}" for w in words]
    return words[0], words[1]


# ------------------------------------------------------------------ environment


def environment(devices: int = 1) -> dict[str, Json]:
    """What the bits of a result depend on besides the inputs of the run; `devices` is how many it uses."""
    import bilevel

    return {
        "bilevel": bilevel.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "devices": devices,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "").strip(),
        "NPROC": os.environ.get("NPROC", ""),
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    }


def changes(kept: Mapping[str, Json], now: Mapping[str, Json]) -> str:
    """How two environments differ, in words; empty if they are equal."""
    odd = [name for name in now if kept.get(name) != now[name]]
    return ", ".join(f"{name} {kept.get(name)!r}, now {now[name]!r}" for name in odd)


# ------------------------------------------------------------------ problems and points


def _problem(problem: BaseProblem) -> dict[str, Json]:
    leaves = jax.tree_util.tree_leaves_with_path(problem)
    # Data in files are identified by some of the tasks.
    looked_at, _ = problem.glimpse(PerTask(((),) * len(problem.groups)))
    values = list(_statics(problem))
    statics = list(dict.fromkeys((kind, f"{name}={text(value)}") for kind, name, value in values))
    batches = [words for name, words in statics if name.endswith("_batch")]
    functions = [words for name, words in statics if name == "function"]
    shapes = [words for name, words in statics if name == "option"]
    return {
        "problem": type(problem).__name__,
        "tasks": _hash(list(problem.names)),
        "shapes": _hash([shapes, *((jax.tree_util.keystr(path), _shape(leaf)) for path, leaf in leaves)]),
        "data": _hash_leaves(jax.tree.leaves(looked_at)),
        "functions": ", ".join(functions),
        "code": code_of(value for kind, _, value in values if kind == "function"),
        "constraint": text(problem.constraint),
        "batches": ", ".join(batches),
    }


def _statics(part: Any) -> Iterator[tuple[str, str, object]]:
    """The structural values of a part and of all parts in it, with kind and name; without the names of tasks."""
    if hasattr(type(part), "_bilevel_part"):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, tuple) or hasattr(type(value), "_bilevel_part"):
                yield from _statics(value)
            elif callable(value) or isinstance(value, (bool, int, float, str)):
                batch = field.name in ("lower_batch", "upper_batch")
                kind = field.name if batch else "function" if callable(value) else "option"
                yield kind, field.name, value
    elif isinstance(part, tuple):
        for each in part:
            yield from _statics(each)


def _point(point: Tree) -> str:
    """A starting point: a pytree, which may hold functions, or a function."""
    if callable(point) and jax.tree_util.all_leaves([point]):
        return text(point)
    leaves = jax.tree_util.tree_leaves_with_path(pytrees.hold_functions(point))
    return _hash([jax.tree_util.keystr(path) for path, _ in leaves]) + _hash_leaves([leaf for _, leaf in leaves])


def _array(leaf: ArrayLike) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, order="C")


def _shape(leaf: Tree) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{np.shape(leaf)}"


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _hash_leaves(leaves: Sequence[Tree]) -> str:
    checksum = hashlib.sha256()
    for leaf in leaves:
        array = _array(leaf)
        checksum.update(f"{array.dtype.name}{array.shape}".encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()[:32]


# ------------------------------------------------------------------ parts and functions as text


def text(value: Any, within: tuple[int, ...] = ()) -> str:
    """A part, a function or a value as text that is the same in every process: no addresses, and hashes for arrays.

    >>> text(functools.partial(optax.sgd, momentum=0.9))
    'partial(optax._src.alias.sgd, momentum=0.9)'
    """
    if id(value) in within:  # a function that calls itself
        return "..."
    inside = (*within, id(value))

    def named(values: Mapping[str, Any]) -> list[str]:
        return [f"{name}={text(own, inside)}" for name, own in values.items()]

    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return f"array({_shape(value)}, {_hash_leaves([value])})"
    if isinstance(value, pytrees.Function):
        return text(value.function, inside)
    if isinstance(value, functools.partial):
        return f"partial({', '.join([text(value.func, inside), *map(text, value.args), *named(value.keywords)])})"
    if hasattr(type(value), "_bilevel_part"):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__}({', '.join(named(own))})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(text(each, inside) for each in value)})"
    if hasattr(value, "__qualname__"):
        return _function(value, inside)
    leaves = jax.tree.leaves(value)
    own = _hash_leaves(leaves) if leaves and all(map(_is_array, leaves)) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}({own})"


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array, bool, int, float))


def _function(function: Callable, within: tuple[int, ...]) -> str:
    """A function's name and what it closes over, such as a schedule's rate; mutable values are left out."""
    name = f"{getattr(function, '__module__', '')}.{function.__qualname__}"
    held = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if callable(content) or _is_array(content) or isinstance(content, (str, tuple, type(None))):
            held.append(text(content, within))
    return f"{name}[{', '.join(held)}]" if held else name


# A run stores the versions of these packages and reports a change. Their code is not part of its identity.
_VERSIONED = ("bilevel", "jax", "jaxlib", "numpy", "optax")


def code_of(functions: Iterable[object]) -> str:
    """The version of Python, and a hash of the code of functions and of those of the same modules that they call."""
    seen: dict[int, FunctionType] = {}
    for function in functions:
        for own in _plain(function):
            _visit(own, own.__module__, seen)
    own = [each for each in seen.values() if str(each.__module__).partition(".")[0] not in _VERSIONED]
    defaults = [(f.__defaults__ or (), sorted((f.__kwdefaults__ or {}).items())) for f in own]
    code = [(_code(f.__code__, f.__doc__), _constant(given)) for f, given in zip(own, defaults, strict=True)]
    checksum = hashlib.sha256(repr(code).encode())
    return f"{sys.version_info.major}.{sys.version_info.minor} {checksum.hexdigest()[:32]}"


def differs(kept: object, now: object) -> bool:
    """Whether code has changed. Hashes of different versions of Python, or a missing hash, do not tell."""
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
        for called in _plain(held):  # passed in by the user, so it counts whatever its module
            _visit(called, called.__module__, seen)


def _plain(value: object) -> Iterator[FunctionType]:
    """The functions inside a partial, a method or a decorated function; none if there is no Python code."""
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
    """The names that code and the code inside it refer to, in the order of their first use."""
    within = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return list(dict.fromkeys([*code.co_names, *within]))


def _code(code: CodeType, doc: str | None = None) -> object:
    constants = [_constant(None if doc is not None and each == doc else each) for each in code.co_consts]
    return code.co_code.hex(), code.co_names, constants


def _constant(value: object) -> object:
    """A constant in a form that prints the same in every process."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, (tuple, list)):
        return [_constant(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(repr(_constant(each)) for each in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return type(value).__qualname__
