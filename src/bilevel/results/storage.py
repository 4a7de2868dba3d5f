"""Keeps a result, or several, in one file: arrays in the safetensors format, all else as JSON in its metadata.

The arrays are `last/x/...`, `last/y/0/...` (one number per group of like tasks, which are stacked), `last/weights`,
`last/losses`, the same for `best`, `random` and `average`, and `history/validation`, one array for each column of the
history. In a file of several results the names begin with a number, `0/last/x/...`.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from bilevel._core import array_files, documents, pytrees
from bilevel._core.array_files import Arrays, Kind
from bilevel._core.files import FilePath, check_path, write_whole
from bilevel.problem.task_names import Names, TaskValues
from bilevel.results import pytree_json, stored_result
from bilevel.results.history import COLUMNS, History
from bilevel.results.iterate import Iterate
from bilevel.results.result import Result
from bilevel.results.stored_result import ITERATES

KIND = Kind("bilevel.result", reader="load", writer="Result.save", version=1)
SEVERAL = Kind("bilevel.results", reader="Results.load", writer="Results.save", version=1)


# ------------------------------------------------------------------ files


def save(result: Result, path: FilePath) -> None:
    """Writes a `Result`; see `Result.save`."""
    target = _target(path)
    document, arrays = described(result)
    _write(target, array_files.encode(KIND, {"made with": versions(), **document}, arrays))


def save_all(results: Sequence[Result], path: FilePath) -> None:
    """Writes several; see `Results.save`."""
    target = _target(path)
    parts = [described(result) for result in results]
    arrays = {f"{i}/{name}": array for i, (_, own) in enumerate(parts) for name, array in own.items()}
    document = {"made with": versions(), "results": [own for own, _ in parts]}
    _write(target, array_files.encode(SEVERAL, document, arrays))


def read(path: FilePath, x: Any = None, y: Any = None) -> Result:
    """A saved `Result`; see `bilevel.load`."""
    document, arrays = array_files.read(path, KIND)
    return restored(document, arrays, f"load({str(path)!r})", x, y)


def read_all(path: FilePath, x: Any = None, y: Any = None) -> list[Result]:
    """Several; see `Results.load`."""
    whole, arrays = array_files.read(path, SEVERAL)
    where = f"Results.load({str(path)!r})"
    own: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        number, _, rest = name.partition("/")
        own.setdefault(number, {})[rest] = array
    documented = documents.Fields(whole, where).items("results")
    return [restored(d, own.get(str(i), {}), f"{where}: result {i}", x, y) for i, d in enumerate(documented)]


def _target(path: FilePath) -> Path:
    """Where a file goes, if it can be written."""
    check_path(path, f"save({path!r})")
    target = Path(os.path.realpath(path))  # the target of a symbolic link is replaced, not the link
    if target.is_dir():
        raise IsADirectoryError(f"save({str(path)!r}): it is a directory, and a result is one file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"save({str(path)!r}): there is no directory {str(target.parent)!r}.")
    if target.exists() and not (
        target.is_file() and os.access(target, os.W_OK)
    ):  # renaming would replace it all the same
        raise PermissionError(f"save({str(path)!r}): what is there is write-protected or not a regular file.")
    return target


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise OSError(error.errno, f"the result cannot be saved, {error.strerror}", str(path)) from error


# ------------------------------------------------------------------ a result


def described(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document and arrays."""
    y = result.y
    document: dict[str, Any] = {
        "solver": result.solver if isinstance(result.solver, str) else repr(result.solver),
        **{name: getattr(result, name) for name in stored_result.FACTS},
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
    arrays: dict[str, Any] = {f"history/{name}": result.history[name] for name in COLUMNS if name in result.history}
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


def restored(document: Any, arrays: Arrays, where: str, x: Any, y: Any) -> Result:
    """What was described, once all of it has been looked at."""
    fields = documents.Fields(document, where)
    facts = stored_result.facts(fields)
    stored_result.check_arrays(fields, arrays, facts)
    for name, example in (("x", x), ("y", y)):
        pytrees.check(example, f"load({name}=...)")
    x, y = pytrees.hold_functions(x), pytrees.hold_functions(y)  # as in what was saved
    names, groups = Names(facts.tasks), facts.groups
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
            metrics={metric: arrays[f"{name}/metrics/{metric}"] for metric in facts.metrics},
        )

    columns: dict[str, Any] = {name: arrays.get(f"history/{name}") for name in COLUMNS}
    columns["metrics"] = {name: arrays[f"history/metrics/{name}"] for name in facts.metrics}
    return Result(
        problem=None,
        history=History(**columns),
        stored=facts.stored._replace(baselines=arrays.get("baselines")),
        **{name: iterate(name) for name in ITERATES},
        **facts.fields,
    )


def _example_per_group(y: Any, names: Names, groups: list[list[int]]) -> list[Any]:
    """One example of y for every group of tasks, from one for all or a dict by task name."""
    if not (isinstance(y, Mapping) and set(y) & set(names)):
        return [y] * len(groups)
    found = [[y[names[i]] for i in ids if names[i] in y] for ids in groups]
    for ids, examples in zip(groups, found, strict=True):
        if not examples:
            raise ValueError(f"load(y=...) has no example for task {names[ids[0]]!r} or one like it.")
    return [examples[0] for examples in found]


def versions() -> dict[str, str]:
    """What a run depends on besides its inputs."""
    import bilevel

    return {
        "bilevel": bilevel.__version__,
        "jax": jax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
    }
