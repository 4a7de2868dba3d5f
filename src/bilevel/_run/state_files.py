"""Writes the state of a run to a file and reads it again, bit for bit.

The arrays are `carry/...`, `best/...` and `safe/...`, one for each leaf, and `rows/...`, one for each column of the
history; all else is in the JSON document. A file does not hold the structure of pytrees. That comes from the run
that is resumed, as shapes without values (`outline`), and every leaf must fit it.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import array_files
from bilevel._core.array_files import Content, Kind
from bilevel._core.documents import Fields
from bilevel._core.files import FilePath
from bilevel._core.types import Json, Tree
from bilevel._run import loop, recording
from bilevel._run.devices import is_key
from bilevel._run.evaluation import Losses
from bilevel._run.loop import Carry, Variables
from bilevel._run.run import Run
from bilevel._run.run_state import Evaluated, Row, RunState
from bilevel.results.history import Divergence
from bilevel.results.pytree_json import Leaf

KIND = Kind("bilevel.state", reader="solve(resume=True): state", writer="solve(checkpoint=...)", version=1)
ARRAYS = ("carry", "best", "safe", "rows")  # the fields that are not JSON
DROPPED = ("steps_per_second", "seen")  # the first call and the first evaluation set them again
ANY = -1  # in a shape of an outline: any length
COUNTERS = tuple(name for name in RunState._fields if name not in ARRAYS + DROPPED)


class Snapshot(NamedTuple):
    """The state of a run, copied off the device. It can be written while the run continues."""

    step: int
    document: dict[str, Json]
    arrays: dict[str, np.ndarray]

    def encode(self, **facts: object) -> bytes:
        return array_files.encode(KIND, self.document | facts, self.arrays)


class Outline(NamedTuple):
    """The arrays of a run's state, as shapes without values."""

    carry: Carry
    best: Evaluated
    safe: Carry | None


def take(run: Run, reached: RunState) -> Snapshot:
    """The state of a run, fetched in one transfer. It does not depend on the number of devices."""
    named = named_leaves(run.whole(Outline(reached.carry, reached.best, reached.safe))._asdict())
    kinds = {name: kind_of(leaf) for name, leaf in named.items()}
    plain = {name: plain_of(leaf) for name, leaf in named.items()}
    document, columns = described(reached)
    return Snapshot(reached.step, document | {"leaves": kinds}, jax.device_get(plain) | columns)


def described(reached: RunState) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """Everything but the leaves: the JSON document, and the columns of the history."""
    fields = dict(zip(Row._fields, zip(*reached.rows, strict=True), strict=True))
    metrics = fields.pop("metrics")
    columns = {f"rows/{name}": np.stack(column) for name, column in fields.items() if column[0] is not None}
    columns |= {f"rows/metrics/{name}": np.stack([own[name] for own in metrics]) for name in metrics[0]}
    return {"counters": {name: getattr(reached, name) for name in COUNTERS}}, columns


def read(path: FilePath) -> Content:
    """A file's content; a ValueError where it is damaged."""
    return array_files.read(path, KIND)


def of_bytes(content: bytes) -> Content:
    """The content of a file that another process has read."""
    with tempfile.NamedTemporaryFile(prefix="bilevel-", suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        return read(file.name)


def outline(run: Run) -> Outline:
    """The outline of the run's state, found without measuring or computing anything."""
    carry = jax.eval_shape(loop.first, run.stepper, run.problem, run.outline(), run.key)
    if run.draws:  # how many tasks a step draws may depend on the number of devices
        seen = jax.tree.map(lambda a: jax.ShapeDtypeStruct((ANY,) * a.ndim, a.dtype), carry.info)
        carry = carry._replace(info=seen)
    state = carry.state
    evaluate = functools.partial(recording.evaluate, metrics=run.metrics)
    losses: Losses = jax.eval_shape(evaluate, run.problem, state.x, state.y)
    best = Evaluated(Variables.of(state), *losses)
    if run.part is not None:  # only the losses that compare it are kept
        few = lambda size, own: None if own is None else jax.ShapeDtypeStruct((size,), own.dtype)  # noqa: E731
        validation: Tree = few(1, losses.validation)
        selection: Tree = few(len(run.part.tasks), losses.selection)
        best = Evaluated(best.point, validation, selection, None, {})
    return Outline(carry, best, carry if run.policy.goes_back else None)


def restore(content: Content, needed: Outline) -> RunState:
    """The state in a file; a ValueError names the leaf that does not fit the run."""
    wanted = named_leaves(needed._asdict())
    kinds = kinds_in(content, wanted, set(content.arrays))
    leaves = [read_leaf(name, content.arrays[name], kinds[name], like) for name, like in wanted.items()]
    tree = jax.tree.unflatten(jax.tree.structure(needed._asdict()), leaves)
    return RunState(**tree, **the_rest(content, needed))


def kinds_in(content: Content, wanted: dict[str, Json], there: set[str]) -> dict[str, str]:
    """The kind of every leaf of a state. A ValueError if leaves are missing, or are not those of the run."""
    kinds = Fields(content.document, "a state").mapping("leaves")
    if set(wanted) != set(kinds) or not set(kinds) <= there:
        odd = min(set(wanted) ^ set(kinds) or set(kinds) - there)
        raise ValueError(f"it has {'no' if odd in wanted else 'a'} leaf {odd!r}, unlike this run")
    return kinds


def the_rest(content: Content, needed: Outline) -> dict[str, Json]:
    """The state besides the leaves: the history, and what is JSON."""
    fields = Fields(Fields(content.document, "a state").mapping("counters"), "a state")
    found: dict[str, Json] = {name: fields.whole(name) for name in ("step", "since_best", "passes")}
    found |= {name: fields.number(name) for name in ("seconds", "compile_seconds")}
    found |= {name: fields.text(name) for name in ("status", "message")}
    events = fields.items("divergences")
    if not all(isinstance(event, list) and len(event) == len(Divergence._fields) for event in events):
        raise fields.wrong("divergences", events, "lists of what a divergence has")
    return found | {"divergences": tuple(Divergence(*event) for event in events), "rows": _rows(content, needed)}


def _rows(content: Content, needed: Outline) -> tuple[Row, ...]:
    """The history. All its columns must have one length."""
    metrics = {name: f"metrics/{name}" for name in needed.best.metrics}
    own = [*(name for name in Row._fields if name != "metrics"), *metrics.values()]
    columns = {name: content.arrays.get(f"rows/{name}") for name in own}
    optional = {role for role in ("selection", "test") if getattr(needed.best, role) is None}
    optional |= {"tasks", "largest", "largest_task"}  # of runs that evaluate a part of their tasks
    missing = [name for name, column in columns.items() if (column is None or not column.ndim) and name not in optional]
    lengths = {len(column) for column in columns.values() if column is not None and column.ndim}
    if missing or len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"its history is not whole{f': it has no {missing[0]}' if missing else ''}")

    def row(i: int) -> Row:
        cells = {name: _cell(column, i) for name, column in columns.items()}
        measured = {name: cells.pop(column) for name, column in metrics.items()}
        return Row(**cells, metrics=measured)

    return tuple(map(row, range(lengths.pop())))


def named_leaves(tree: Tree) -> dict[str, Json]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    if len(set(names)) < len(names):  # a key may contain the separator
        names = [f"{name}#{i}" for i, name in enumerate(names)]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True))


def plain_of(leaf: Leaf) -> Tree:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def kind_of(leaf: Leaf) -> str:
    """The kind of a leaf besides its dtype. Steps are compiled again for another kind."""
    if not isinstance(leaf, jax.Array):
        return "numpy"
    if is_key(leaf):
        return f"key {jax.random.key_impl(leaf)}"
    return "weak" if getattr(leaf, "weak_type", False) else "jax"


def read_leaf(name: str, array: np.ndarray, kind: str, like: Tree) -> Tree:
    """A leaf as it was written. A ValueError if it does not fit the run."""
    own = wrapped(name, array, kind)
    check_fit(name, own, like)
    if kind == "weak" and array.ndim == 0:
        return jnp.asarray(array.item())
    return array if kind == "numpy" else jnp.asarray(own)


def wrapped(name: str, array: np.ndarray, kind: object) -> Tree:
    """A leaf from its numbers; random keys are wrapped again."""
    if not isinstance(kind, str):
        raise ValueError(f"its leaf {name!r} is of no kind")
    if not kind.startswith("key "):
        return array
    return jax.random.wrap_key_data(jnp.asarray(array), impl=kind.removeprefix("key "))


def check_fit(name: str, own: Tree, like: Tree) -> None:
    """A ValueError unless a leaf has the dtype and the shape that the run needs."""
    fits = len(own.shape) == len(like.shape) and all(n in (ANY, k) for k, n in zip(own.shape, like.shape, strict=True))
    if own.dtype != like.dtype or not fits:
        raise ValueError(f"its leaf {name!r} is {_text(own)}, and this run needs {_text(like)}")


def _text(leaf: Leaf) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _cell(column: np.ndarray | None, i: int) -> Any:
    """Entry i of a column: a number, or a row of an array."""
    if column is None:
        return None
    return column[i].item() if column.ndim == 1 else column[i]
