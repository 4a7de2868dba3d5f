"""What a run is, so that a saved one is gone on with by the same run only, and a refusal says what differs.

What must not change a result is left out: how often a run is evaluated, saved, shown. Functions are known by their
qualified names and by what they close over, and those of the problem by their code too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax

from bilevel._core import pytrees
from bilevel._run import function_code
from bilevel._run.run import Run
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem

Facts = dict[str, Any]
LONG, AROUND = 120, 40  # signs of a text from which on a refusal shows only those around what differs

# What a refusal calls each fact; the values of those that are not here are shown.
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


class Identities:
    """The identities of runs; what several have in common, such as their data, is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Any]] = {}  # the object too, so that its number stays its own

    def of(self, run: Run) -> Facts:
        """What a run is, as JSON."""
        facts = self._once(run.problem, _problem) | {"solver": text(run.solver)}
        facts |= {"x": self._once(run.x, _point), "y": self._once(run.y, _point)}
        facts |= {"on_divergence": text(run.policy), "fitted": run.fitted}
        if run.metrics:  # states hold them
            facts["metrics"] = ", ".join(f"{name}: {text(function)}" for name, function in run.metrics)
        return facts | {"seed": int(run.seed), "steps": int(run.steps)}

    def _once(self, value: Any, look: Any) -> Any:
        if id(value) not in self._known:
            self._known[id(value)] = (value, look(value))
        return self._known[id(value)][1]


def digest(facts: Mapping[str, Any]) -> str:
    """One text for all of an identity, but for the code, which another version of Python writes otherwise."""
    lasting = sorted((name, fact) for name, fact in facts.items() if name != "code")
    return hashlib.sha256(repr(lasting).encode()).hexdigest()


def check_same(where: str, kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises where a kept run is another one, and says what differs."""
    said = []
    for name in [*now, *(name for name in kept if name not in now)]:
        its, own = kept.get(name), now.get(name)
        if its == own or (name == "code" and not function_code.differs(its, own)):
            continue
        if name in HASHED:
            said.append(HASHED[name])
        else:
            words = _pair(its, own)
            said.append(f"it has {name}={words[0]} and this one {name}={words[1]}")
    if said:
        raise DifferentRunError(
            f"{where} holds another run: {'; '.join(said)}. Use the arguments that it was begun with to go on with "
            "it, or give another folder."
        )


def _pair(kept: Any, now: Any) -> tuple[str, str]:
    """Both as text; of long ones, what is around the place where they begin to differ."""
    words = [str(value) or "none" for value in (kept, now)]
    if max(map(len, words)) > LONG:
        same = next((i for i, (a, b) in enumerate(zip(*words, strict=False)) if a != b), min(map(len, words)))
        begin, end = max(0, same - AROUND), same + AROUND
        words = [f"{'...' * (begin > 0)}{w[begin:end]}{'...' * (len(w) > end)}" for w in words]
    return words[0], words[1]


# ------------------------------------------------------------------ environment


def environment(devices: int = 1) -> Facts:
    """What the bits of a run depend on besides its inputs; `devices` is how many it uses."""
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


def changes(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How environments differ, in words; empty where they do not."""
    odd = [name for name in now if kept.get(name) != now[name]]
    return ", ".join(f"{name} {kept.get(name)!r}, now {now[name]!r}" for name in odd)


# ------------------------------------------------------------------ problems and points


def _problem(problem: BaseProblem) -> Facts:
    leaves = jax.tree_util.tree_leaves_with_path(problem)
    # Data in files are known by a part of the tasks.
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
        "code": function_code.code_of(value for kind, _, value in values if kind == "function"),
        "constraint": text(problem.constraint),
        "batches": ", ".join(batches),
    }


def _statics(part: Any) -> Iterator[tuple[str, str, Any]]:
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


def _point(point: Any) -> str:
    """A starting point: a pytree, which may hold functions, or a function."""
    if callable(point) and jax.tree_util.all_leaves([point]):
        return text(point)
    leaves = jax.tree_util.tree_leaves_with_path(pytrees.hold_functions(point))
    return _hash([jax.tree_util.keystr(path) for path, _ in leaves]) + _hash_leaves([leaf for _, leaf in leaves])


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf, order="C")


def _shape(leaf: Any) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{np.shape(leaf)}"


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _hash_leaves(leaves: list[Any]) -> str:
    checksum = hashlib.sha256()
    for leaf in leaves:
        array = _array(leaf)
        checksum.update(f"{array.dtype.name}{array.shape}".encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()[:32]


# ------------------------------------------------------------------ parts and functions as text


def text(value: Any, within: tuple[int, ...] = ()) -> str:
    """A part, a function or a value as text that is the same in every process: no addresses, arrays by their hash.

    >>> text(functools.partial(optax.sgd, momentum=0.9))
    'partial(optax._src.alias.sgd, momentum=0.9)'
    """
    if id(value) in within:  # a function that calls itself
        return "..."
    inside = (*within, id(value))
    named = functools.partial(_arguments, within=inside)
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


def _arguments(values: Mapping[str, Any], within: tuple[int, ...]) -> list[str]:
    return [f"{name}={text(value, within)}" for name, value in values.items()]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array, bool, int, float))


def _function(function: Any, within: tuple[int, ...]) -> str:
    """By its name and what it closes over, such as a schedule's rate; not what may change, such as lists."""
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
