"""Keeps a result, or several, in one file: arrays in the safetensors format, all else as JSON in its metadata.

The arrays are `last/x/...`, `last/y/0/...` (one number per group of like tasks, which are stacked), `last/weights`,
`last/losses`, the same for `best`, `random` and `average`, and `history/validation`, one array for each column of the
history. In a file of several results the names begin with a number, `0/last/x/...`.

Every field and every shape is checked before a result is made of a file. A checksum says that a file is as it was
written, not who wrote it: lists that do not fit and arrays that are missing are refused here in plain words, instead of
failing somewhere later.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

from bilevel._core import array_files, documents, pytrees, values
from bilevel._core.array_files import Arrays, Kind
from bilevel._core.files import FilePath, shown_path, target_file, write_whole
from bilevel._core.types import Json, Tree
from bilevel.problem.per_task import Names, TaskValues
from bilevel.results import pytree_json
from bilevel.results.findings.finding import Finding
from bilevel.results.history import COLUMNS, Divergence, History, Iterate
from bilevel.results.result import Result, Stored

KIND = Kind("bilevel.result", reader="load", writer="Result.save", version=1)
SEVERAL = Kind("bilevel.results", reader="Results.load", writer="Results.save", version=1)
ITERATES = ("last", "best", "random", "average")
# Fields that go into JSON as they are.
FACTS = ("status", "message", "steps", "seconds", "seed", "compile_seconds", "best_by")
HELD_OUT = ("selection", "test")  # columns that a history may do without
PER_TASK = ("validation", *HELD_OUT, "weights", "lower_rate", "tasks")  # columns with one number a task
LATER = ("fitted", "lag")  # columns that files of earlier versions do not have
OF_A_PART = ("tasks", "largest", "largest_task")  # columns of a history in which only some tasks have columns
BEST_BY = ("selection", "validation", "last")


# ------------------------------------------------------------------ files


def save(result: Result, path: FilePath) -> None:
    """Writes a `Result`; see `Result.save`."""
    target = target_file(path, f"save({shown_path(path)})")
    _write(target, KIND, *described(result))


def save_all(results: Sequence[Result], path: FilePath) -> None:
    """Writes several results; see `Results.save`."""
    target = target_file(path, f"save({shown_path(path)})")
    parts = [described(result) for result in results]
    arrays = {f"{i}/{name}": array for i, (_, own) in enumerate(parts) for name, array in own.items()}
    _write(target, SEVERAL, {"results": [own for own, _ in parts]}, arrays)


def read(path: FilePath, x: Tree = None, y: Tree = None) -> Result:
    """A saved `Result`; see `bilevel.load`."""
    document, arrays = array_files.read(path, KIND)
    return restored(document, arrays, f"load({str(path)!r})", x, y)


def read_all(path: FilePath, x: Tree = None, y: Tree = None) -> list[Result]:
    """Several saved results; see `Results.load`."""
    whole, arrays = array_files.read(path, SEVERAL)
    where = f"Results.load({str(path)!r})"
    own: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        number, _, rest = name.partition("/")
        own.setdefault(number, {})[rest] = array
    documented = documents.Fields(whole, where).items("results")
    return [restored(d, own.get(str(i), {}), f"{where}: result {i}", x, y) for i, d in enumerate(documented)]


def _write(path: Path, kind: Kind, document: dict[str, Json], arrays: dict[str, Json]) -> None:
    content = array_files.encode(kind, {"made with": versions(), **document}, arrays)
    try:
        write_whole(path, content)
    except OSError as error:
        raise OSError(error.errno, f"the result cannot be saved, {error.strerror}", str(path)) from error


# ------------------------------------------------------------------ a result


def described(result: Result) -> tuple[dict[str, Json], dict[str, Json]]:
    """A result as a document and arrays."""
    y = result.y
    document: dict[str, Json] = {
        "solver": result.solver if isinstance(result.solver, str) else repr(result.solver),
        **{name: getattr(result, name) for name in FACTS},
        "divergences": [event._asdict() for event in result.divergences],
        "tasks": [name if isinstance(name, (str, int)) else str(name) for name in y.names],
        "groups": [np.asarray(ids).tolist() for ids in y.ids],
        "x": pytree_json.describe(result.x),
        "y": [pytree_json.describe(stacked) for stacked in y.stacked],
        "objective": result.objective,
        "findings": [dataclasses.asdict(finding) for finding in result.findings],
        "verdict": result.verdict,
        "fits_validation": result.fits_validation,
        "metrics": list(result.history.metrics),
    }
    arrays: dict[str, Json] = {f"history/{name}": result.history[name] for name in COLUMNS if name in result.history}
    arrays |= {f"history/metrics/{name}": own for name, own in result.history.metrics.items()}
    if result.baselines is not None:
        arrays["baselines"] = np.asarray(result.baselines.values)
    for name in ITERATES:
        iterate = getattr(result, name)
        arrays |= pytree_json.leaves(document["x"], iterate.x, f"{name}/x")
        for g, stacked in enumerate(iterate.y.stacked):
            arrays |= pytree_json.leaves(document["y"][g], stacked, f"{name}/y/{g}")
        own = {field: getattr(iterate, field) for field in ("weights", "losses", "selection_losses", "test_losses")}
        arrays |= {f"{name}/{field}": value for field, value in own.items() if value is not None}
        arrays |= {f"{name}/metrics/{metric}": value for metric, value in iterate.metrics.items()}
    return document, arrays


def restored(document: Json, arrays: Arrays, where: str, x: Tree, y: Tree) -> Result:
    """The result of a document and arrays, after all of both has been checked."""
    fields = documents.Fields(document, where)
    stated = read_facts(fields)
    check_arrays(fields, arrays, stated)
    for name, example in (("x", x), ("y", y)):
        pytrees.check(example, f"load({name}=...)")
    x, y = pytrees.hold_functions(x), pytrees.hold_functions(y)  # as in what was saved
    names, groups = Names(stated.tasks), stated.groups
    ys = [None] * len(groups) if y is None else _example_per_group(y, names, groups)
    if x is not None:
        pytree_json.check_fit("x", x, document["x"], arrays, "last/x")
    for g, example in enumerate(ys):
        if example is not None:
            pytree_json.check_fit("y", example, document["y"][g], arrays, f"last/y/{g}", stacked=True)

    def iterate(name: str) -> Iterate:
        stacked = [pytree_json.restore(s, arrays, f"{name}/y/{g}", ys[g]) for g, s in enumerate(document["y"])]
        return Iterate(
            x=pytree_json.restore(document["x"], arrays, f"{name}/x", x),
            y=TaskValues(names, [np.array(ids) for ids in groups], tuple(stacked)),
            weights=arrays[f"{name}/weights"],
            losses=arrays[f"{name}/losses"],
            selection_losses=arrays.get(f"{name}/selection_losses"),
            test_losses=arrays.get(f"{name}/test_losses"),
            metrics={metric: arrays[f"{name}/metrics/{metric}"] for metric in stated.metrics},
        )

    columns: dict[str, Json] = {name: arrays.get(f"history/{name}") for name in COLUMNS}
    columns["metrics"] = {name: arrays[f"history/metrics/{name}"] for name in stated.metrics}
    return Result(
        problem=None,
        history=History(**columns),
        stored=stated.stored._replace(baselines=arrays.get("baselines")),
        **{name: iterate(name) for name in ITERATES},
        **stated.fields,
    )


def _example_per_group(y: Tree, names: Names, groups: list[list[int]]) -> list[Tree]:
    if not (isinstance(y, Mapping) and set(y) & set(names)):
        return [y] * len(groups)
    found = [[y[names[i]] for i in ids if names[i] in y] for ids in groups]
    for ids, examples in zip(groups, found, strict=True):
        if not examples:
            raise ValueError(f"load(y=...) has no example for task {names[ids[0]]!r} or one like it.")
    return [examples[0] for examples in found]


def versions() -> dict[str, str]:
    """The versions that a run depends on besides its inputs."""
    import bilevel

    return {
        "bilevel": bilevel.__version__,
        "jax": jax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
    }


# ------------------------------------------------------------------ checks of a document


class StoredFacts(NamedTuple):
    """The content of a document besides the structures of x and y."""

    tasks: list[str]
    groups: list[list[int]]
    fields: dict[str, Json]  # of the `Result`
    stored: Stored
    metrics: list[str]


def read_facts(document: documents.Fields) -> StoredFacts:
    """Reads all of a document but the structures of x and y."""
    tasks = document.take("tasks", _are_names, "a list of different names, at least one")
    count = len(tasks)
    groups = document.take("groups", lambda ids: _are_groups(ids, count), f"each task from 0 to {count - 1} once")
    own: dict[str, Json] = {name: document.text(name) for name in ("solver", "status", "message")}
    own |= {name: document.whole(name) for name in ("steps", "seed")}
    # compile_seconds is missing in files of bilevel 0.1.0.
    own["seconds"] = document.number("seconds")
    if "compile_seconds" in document:
        own["compile_seconds"] = document.number("compile_seconds")
    if "best_by" in document:  # likewise; there were no selection rows before
        own["best_by"] = document.take("best_by", lambda by: by in BEST_BY, f"one of {', '.join(BEST_BY)}")
    if "divergences" in document:  # likewise
        own["divergences"] = tuple(_divergence(event, document.where) for event in document.items("divergences"))
    metrics = document.texts("metrics") if "metrics" in document else []
    return StoredFacts(tasks, groups, own, _stored(document, own["solver"]), metrics)


def _divergence(event: Json, where: str) -> Divergence:
    fields = documents.Fields(event, f"{where}: a divergence")
    given = {name for name, value in event.items() if value is not None}
    return Divergence(
        step=fields.whole("step"),
        task=fields.take("task", _is_name, "the name of a task") if "task" in given else None,
        quantity=fields.text("quantity"),
        message=fields.text("message"),
        factor=fields.number("factor") if "factor" in given else None,
        back_to=fields.whole("back_to") if "back_to" in given else None,
    )


def _finding(told: Json, where: str) -> Finding:
    if documents.is_text(told):  # as earlier versions wrote it
        return Finding("unknown", told)
    fields = documents.Fields(told, f"{where}: a finding")
    numbers = fields.take("numbers", _are_numbers, "a JSON object of numbers and texts")
    return Finding(fields.text("kind"), fields.text("text"), numbers)


def _are_numbers(numbers: Json) -> bool:
    if not isinstance(numbers, dict):
        return False
    plain = (own for own in numbers.values() if not documents.is_text(own))
    are_numbers = all(values.is_number(own) and not isinstance(own, bool) for own in plain)
    return are_numbers and all(map(documents.is_text, numbers))


def _is_name(name: Json) -> bool:
    return documents.is_text(name) or documents.is_whole(name)


def _stored(document: documents.Fields, solver: str) -> Stored:
    if "objective" not in document:  # bilevel 0.1.0 kept only the text of the solver
        weighting = re.search(r"\bweighting=(\w+)\(", solver)
        return Stored(weighting[1] if weighting else None, findings=None)
    objective, fits = document.text_or_none("objective"), False
    if "fits_validation" in document:
        fits = document.take("fits_validation", lambda value: isinstance(value, bool), "true or false")
    found = tuple(_finding(own, document.where) for own in document.items("findings"))
    verdict = document.text("verdict") if "verdict" in document else None
    return Stored(objective, found, fits, verdict)


def _are_names(names: Json) -> bool:
    if not isinstance(names, list) or not names:
        return False
    return all(map(_is_name, names)) and len(set(names)) == len(names)


def _are_groups(groups: Json, tasks: int) -> bool:
    if not isinstance(groups, list) or not all(isinstance(ids, list) and ids for ids in groups):
        return False
    flat = [i for ids in groups for i in ids]
    return all(map(documents.is_whole, flat)) and sorted(flat) == list(range(tasks))


def check_arrays(document: documents.Fields, arrays: Arrays, facts: StoredFacts) -> None:
    """A ValueError unless all arrays of a result are there and their shapes agree."""
    y = document.take("y", lambda y: isinstance(y, list) and len(y) == len(facts.groups), "a structure for each group")
    structures = [("x", document.take("x", lambda _: True, "a structure"), None)]
    structures += [(f"y/{g}", y[g], len(ids)) for g, ids in enumerate(facts.groups)]
    check = _Check(document.where, arrays)
    for field, structure, rows in structures:
        for path in pytree_json.checked_paths(structure, field, document.where):
            first = check.array(f"last/{field}{path}")
            if rows is not None and first.shape[:1] != (rows,):
                raise check.wrong(f"last/{field}{path}", f"a leading axis of {rows}, one row a task")
            for name in ITERATES:
                check.like(f"{name}/{field}{path}", first.shape, first.dtype)
    _check_numbers(check, len(facts.tasks), facts.metrics)
    if "baselines" in arrays:
        check.like("baselines", (len(facts.tasks),))


def _check_numbers(check: _Check, tasks: int, metrics: list[str]) -> None:
    missing = [role for role in HELD_OUT if f"history/{role}" not in check.arrays]
    for name in ITERATES:
        for field in ("weights", "losses", *(f"{role}_losses" for role in HELD_OUT if role not in missing)):
            check.like(f"{name}/{field}", (tasks,))
        for metric in metrics:
            check.like(f"{name}/metrics/{metric}", (tasks,))
        for role in missing:
            if f"{name}/{role}_losses" in check.arrays:
                raise check.wrong(f"{name}/{role}_losses", f"a column {role} in the history, which is missing")
    rows = check.array("history/step").shape[:1]
    if rows in ((), (0,)):
        raise check.wrong("history/step", "at least one evaluation")
    part = "history/tasks" in check.arrays
    columns = check.arrays["history/tasks"].shape[-1] if part and check.arrays["history/tasks"].ndim else tasks
    for metric in metrics:
        check.like(f"history/metrics/{metric}", (*rows, columns))
    missing += [] if part else OF_A_PART
    missing += [column for column in LATER if f"history/{column}" not in check.arrays]
    for column in COLUMNS:
        if column not in missing:
            kind = np.dtype(bool) if column == "fitted" else None
            check.like(f"history/{column}", (*rows, columns) if column in PER_TASK else rows, kind)


class _Check(NamedTuple):
    """The arrays of a file by name, with checks whose errors name the file."""

    where: str
    arrays: Arrays

    def array(self, name: str) -> np.ndarray:
        """An array; it must be there."""
        if name not in self.arrays:
            raise ValueError(f"{self.where}: its document is wrong: the file holds no array {name!r}.")
        return self.arrays[name]

    def wrong(self, name: str, needs: str) -> ValueError:
        """The error about an array."""
        got = f"{self.arrays[name].dtype}{list(self.arrays[name].shape)}"
        return ValueError(f"{self.where}: its array {name!r} is {got}, and it needs {needs}.")

    def like(self, name: str, shape: tuple[int, ...], dtype: np.dtype | None = None) -> None:
        """Checks that an array has this shape and this type; without a type, that it holds real numbers."""
        array = self.array(name)
        if array.shape != shape or (array.dtype.kind not in "iuf" if dtype is None else array.dtype != dtype):
            raise self.wrong(name, f"{'real numbers' if dtype is None else dtype} of shape {list(shape)}")
