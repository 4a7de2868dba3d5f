"""States of a run with sharded arrays: each process writes and reads the parts of its own devices.

    state-000000012000-5f3a2b1c.orbax   the arrays, as Orbax writes them
    state-000000012000.safetensors      counters, history, small arrays; process 0 writes it last

So a state is complete if its file exists, and the file says what the folder of the arrays must hold. The name of that
folder is unique, because a state of the same step may be written again.

On several devices the rows of a group of tasks are one array or two (`Layout.ranges`). In files they are the pieces
of one leaf, under the name that it has on one device, so that names do not depend on the devices.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from bilevel._core.array_files import Content
from bilevel._core.documents import Fields, is_text, is_whole
from bilevel._core.types import Json, Tree
from bilevel._run import devices, state_files
from bilevel._run.checkpoints import Checksums, OrbaxWriter, RowReader, Saved, check_files, import_orbax
from bilevel._run.devices import Layout, TaskRange, is_in_groups
from bilevel._run.peers import check_shared_folder, mark
from bilevel._run.run import Run
from bilevel._run.run_folder import ARRAYS, arrays_name
from bilevel._run.run_state import RunState
from bilevel._run.state_files import Outline, Snapshot


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of one leaf, by their first rows. JAX treats it as a leaf."""

    starts: tuple[int, ...]
    values: tuple[Tree, ...]


def in_pieces(layout: Layout | None, tree: Tree) -> Tree:
    """The tree with the pieces of each leaf joined."""

    def node(value: Tree) -> Tree:
        if layout is None or not is_in_groups(value):
            return jax.tree.map(lambda leaf: Pieces((0,), (leaf,)), value)
        own, groups = iter(value), []
        for parts in layout.ranges:
            starts = tuple(part.start for part in parts)
            rows = [next(own) for _ in parts]
            groups.append(jax.tree.map(lambda *leaves, starts=starts: Pieces(starts, leaves), *rows))
        return type(value)(tuple(groups))

    return jax.tree.map(node, tree, is_leaf=is_in_groups)


def targets(layout: Layout | None, outline: Tree) -> Tree:
    """The pieces of an outline, whose shapes are as on one device. On several devices each has its sharding."""
    if layout is None:
        return in_pieces(None, outline)

    def cut(leaf: Tree, sharding: NamedSharding, part: TaskRange | None) -> jax.ShapeDtypeStruct:
        shape = leaf.shape if part is None else (part.stop - part.start, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return in_pieces(layout, layout.cut(outline, cut))


def on_devices(layout: Layout | None, tree: Tree) -> Tree:
    """The inverse of `in_pieces`."""

    def node(value: Tree) -> Tree:
        if layout is None or not is_in_groups(value):
            return jax.tree.map(lambda pieces: pieces.values[0], value)
        rows = [
            jax.tree.map(lambda pieces, i=i: pieces.values[i], own)
            for own, parts in zip(value, layout.ranges, strict=True)
            for i in range(len(parts))
        ]
        return type(value)(tuple(rows))

    return jax.tree.map(node, tree, is_leaf=is_in_groups)


def begin(run: Run, reached: RunState, writer: OrbaxWriter, folder: Path) -> Callable[[], Snapshot]:
    """Copies the state, in all processes.

    Returns a function for a thread, which raises an OSError or returns what process 0 then writes.
    """
    place = folder / arrays_name(reached.step, _token(run, folder))
    named = state_files.named_leaves(
        in_pieces(run.layout, Outline(reached.carry, reached.best, reached.safe)._asdict())
    )
    large = {name: own for name, own in named.items() if all(map(_is_large, own.values))}
    arrays, parts = {}, {}
    for i, (name, own) in enumerate(large.items()):
        plain = [state_files.plain_of(value) for value in own.values]
        keys = [f"{i}.{k}" for k in range(len(plain))]
        arrays |= zip(keys, plain, strict=True)
        shape = [sum(len(value) for value in plain), *plain[0].shape[1:]]
        saved = [list(each) for each in zip(keys, own.starts, strict=True)]
        parts[name] = {"dtype": plain[0].dtype.name, "shape": shape, "pieces": saved}
    document, columns = state_files.described(reached)
    document |= {"leaves": {name: state_files.kind_of(own.values[0]) for name, own in named.items()}}
    document |= {"arrays": place.name, "parts": parts}
    small = {name: _small(own) for name, own in named.items() if name not in large}
    end = writer.begin(place, arrays)
    return lambda: Snapshot(reached.step, document | {"files": end()}, small | columns)


def _token(run: Run, folder: Path) -> str:
    """The name that process 0 chose; an OSError in all processes if process 0 cannot write."""
    chosen, said = 0, OSError("process 0 cannot write")
    if run.peers.leads:
        try:
            mark(folder).unlink()
            chosen = 1 + secrets.randbelow(2**31 - 1)
        except OSError as error:
            said = error
    chosen = run.peers.decided(chosen)
    if not chosen:
        raise said
    return f"{chosen:08x}"


def _is_large(leaf: Tree) -> bool:
    """Whether Orbax writes this leaf. It does not take empty arrays."""
    return isinstance(leaf, jax.Array) and math.prod(leaf.shape) > 0 and np.ndim(state_files.plain_of(leaf)) > 0


def _small(own: Pieces) -> np.ndarray:
    first = own.values[0]
    if math.prod(np.shape(first)) > 0:
        return np.asarray(jax.device_get(first))
    # This process may have an empty part of an array of which others have numbers.
    shape = first.shape if len(own.values) == 1 else (sum(map(len, own.values)), *first.shape[1:])
    return np.zeros(shape, first.dtype)


# ------------------------------------------------------------------ reading


class StoredLeaf(NamedTuple):
    """A leaf whose numbers are in the folder of arrays."""

    dtype: np.dtype
    shape: tuple[int, ...]
    saved: tuple[Saved, ...]

    @classmethod
    def of(cls, name: str, given: Json) -> StoredLeaf:
        fields = Fields(given, f"a state: {name}")
        shape, saved = fields.items("shape"), fields.items("pieces")
        fits = all(isinstance(own, list) and len(own) == 2 and is_text(own[0]) and is_whole(own[1]) for own in saved)
        if not shape or not all(is_whole(size) and size > 0 for size in shape) or not saved or not fits:
            raise fields.wrong("pieces", saved, "a shape and the arrays that have its rows")
        return cls(jnp.dtype(fields.text("dtype")), tuple(shape), tuple(Saved(*own) for own in saved))


class Plan(NamedTuple):
    """Plan of what to read for a run, made before anything is read."""

    needed: Outline
    kinds: dict[str, str]
    parts: dict[str, StoredLeaf]
    place: Path
    files: Checksums


def is_in_parts(content: Content) -> bool:
    return "parts" in content.document


def plan(run: Run, content: Content, folder: Path) -> Plan:
    """A ValueError names what does not fit the run."""
    import_orbax()
    fields, needed = Fields(content.document, "a state"), state_files.outline(run)
    parts = {name: StoredLeaf.of(name, given) for name, given in fields.mapping("parts").items()}
    wanted = state_files.named_leaves(needed._asdict())
    kinds = state_files.kinds_in(content, wanted, set(content.arrays) | set(parts))
    for name, part in parts.items():
        own = jax.ShapeDtypeStruct(part.shape, part.dtype)
        state_files.check_fit(
            name, jax.eval_shape(lambda a, n=name: state_files.wrapped(n, a, kinds[n]), own), wanted[name]
        )
    place, files = fields.text("arrays"), fields.mapping("files")
    if not ARRAYS.fullmatch(place):
        raise fields.wrong("arrays", place, "the name of a folder of arrays")
    return Plan(needed, kinds, parts, folder / place, {name: tuple(own) for name, own in files.items()})


def restored(run: Run, content: Content, folder: Path) -> RunState | str:
    """The state on the devices of the run, or in all processes a description of what is damaged."""
    peers = run.peers
    check_shared_folder(peers, folder)
    found = plan(run, content, folder)
    said, reached = "", None
    for action in (_check, _read):  # no process reads arrays before all have checked their files
        try:
            reached = action(run, content, found)
        except (ValueError, OSError) as error:
            said = str(error)
        if peers.largest(bool(said)):
            return said or "Another process found a damaged file."
    assert reached is not None
    if run.layout is not None:
        carry, best, safe = run.layout.laid_out((reached.carry, reached.best.point, reached.safe))
        reached = reached._replace(carry=carry, best=reached.best._replace(point=best), safe=safe)
    safe = None if reached.safe is None else run.resumed(reached.safe)
    return reached._replace(carry=run.resumed(reached.carry), safe=safe)


def _check(run: Run, content: Content, found: Plan) -> None:
    check_files(found.place, found.files, run.peers.processes, run.peers.rank)


def _read(run: Run, content: Content, found: Plan) -> RunState:
    tree, rows = found.needed._asdict(), RowReader(found.place)
    wanted = state_files.named_leaves(tree)
    shaped = dict(wanted)
    for name, like in wanted.items():
        if state_files.ANY in like.shape:  # the run takes any length: it has the length in the file
            own = found.parts[name] if name in found.parts else content.arrays[name]
            shaped[name] = jax.ShapeDtypeStruct(own.shape, like.dtype)
    outline = jax.tree.unflatten(jax.tree.structure(tree), shaped.values())
    goals = state_files.named_leaves(targets(run.layout, outline))
    read = []
    for name, goal in goals.items():
        if name in found.parts:
            read.append(_large(name, found, rows, goal))
        else:
            leaf = state_files.read_leaf(name, content.arrays[name], found.kinds[name], wanted[name])
            read.append(_placed(leaf, goal))
    whole = jax.tree.unflatten(jax.tree.structure(tree), read)
    return RunState(**on_devices(run.layout, whole), **state_files.the_rest(content, found.needed))


def _large(name: str, found: Plan, rows: RowReader, goal: Pieces) -> Pieces:
    part, kind = found.parts[name], found.kinds[name]
    inner = part.shape[1:]

    def piece(start: int, target: jax.ShapeDtypeStruct) -> jax.Array:
        # Keys are stored as numbers with one more axis.
        shape = (target.shape[0] if target.shape else part.shape[0], *inner)
        if target.sharding is None:
            numbers: Any = jnp.asarray(rows.read(part.saved, tuple(slice(0, size) for size in shape)))
        else:
            numbers = rows.on_devices(part.saved, start, shape, target.sharding)
        return state_files.wrapped(name, numbers, kind)

    return Pieces(goal.starts, tuple(map(piece, goal.starts, goal.values)))


def _placed(leaf: Tree, goal: Pieces) -> Pieces:
    """A small leaf, whole in every process."""
    if goal.values[0].sharding is None:
        return Pieces((0,), (leaf,))
    rows = [
        leaf if len(goal.values) == 1 else leaf[start : start + target.shape[0]]
        for start, target in zip(goal.starts, goal.values, strict=True)
    ]
    put = [devices.placed(own, target.sharding) for own, target in zip(rows, goal.values, strict=True)]
    return dataclasses.replace(goal, values=tuple(put))
