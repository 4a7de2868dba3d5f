"""What a file says of a result, looked at before anything is made of it: every field, every shape.

A checksum that matches says that a file is as it was written, not by whom. A document that lies, with lists that do not
fit or names of arrays that are not there, is told in words here instead of failing somewhere later.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from bilevel._core import documents, values
from bilevel._core.array_files import Arrays
from bilevel.results import pytree_json
from bilevel.results.divergences import Divergence
from bilevel.results.findings.finding import Finding
from bilevel.results.history import COLUMNS
from bilevel.results.result import Stored

ITERATES = ("last", "best", "random", "average")
FACTS = ("status", "message", "steps", "seconds", "seed", "compile_seconds", "best_by")  # what JSON holds as it is
HELD_OUT = ("selection", "test")  # columns that a history may do without
PER_TASK = ("validation", *HELD_OUT, "weights", "lower_rate", "tasks")  # the columns that have one number a task
LATER = ("fitted", "lag")  # files of earlier versions have none
OF_A_PART = ("tasks", "largest", "largest_task")  # only where the columns are those of some tasks
BEST_BY = ("selection", "validation", "last")


class Facts(NamedTuple):
    """What a document says besides the structures of x and y."""

    tasks: list[str]
    groups: list[list[int]]
    fields: dict[str, Any]  # of the `Result`
    stored: Stored
    metrics: tuple[str, ...] = ()


def facts(document: documents.Fields) -> Facts:
    """Takes everything out of a document that is no structure of arrays."""
    tasks = document.take("tasks", _are_names, "a list of different names, at least one")
    groups = document.take(
        "groups", lambda ids: _are_groups(ids, len(tasks)), f"each task from 0 to {len(tasks) - 1} once"
    )
    own: dict[str, Any] = {name: document.text(name) for name in ("solver", "status", "message")}
    own |= {name: document.whole(name) for name in ("steps", "seed")}
    # compile_seconds is missing in files of bilevel 0.1.0.
    own |= {
        name: document.number(name) for name in ("seconds", "compile_seconds") if name in document or name == "seconds"
    }
    if "best_by" in document:  # likewise; there were no selection rows before
        own["best_by"] = document.take("best_by", lambda by: by in BEST_BY, f"one of {', '.join(BEST_BY)}")
    if "divergences" in document:  # likewise
        own["divergences"] = tuple(_divergence(event, document.where) for event in document.items("divergences"))
    metrics = tuple(document.texts("metrics")) if "metrics" in document else ()
    return Facts(tasks, groups, own, _stored(document, own["solver"]), metrics)


def _divergence(event: Any, where: str) -> Divergence:
    fields = documents.Fields(event, f"{where}: a divergence")
    task, factor = (event.get(name) for name in ("task", "factor"))
    return Divergence(
        step=fields.whole("step"),
        task=None if task is None else fields.take("task", _is_name, "the name of a task"),
        quantity=fields.text("quantity"),
        message=fields.text("message"),
        factor=None if factor is None else fields.number("factor"),
        back_to=None if event.get("back_to") is None else fields.whole("back_to"),
    )


def _finding(told: Any, where: str) -> Finding:
    """One finding; files of before have its sentence only."""
    if documents.is_text(told):
        return Finding("unknown", told)
    fields = documents.Fields(told, f"{where}: a finding")
    numbers = fields.take("numbers", _are_numbers, "a JSON object of numbers and texts")
    return Finding(fields.text("kind"), fields.text("text"), numbers)


def _are_numbers(numbers: Any) -> bool:
    if not isinstance(numbers, dict):
        return False
    is_number = lambda value: not isinstance(value, bool) and values.is_number(value)  # noqa: E731
    return all(documents.is_text(name) and (documents.is_text(v) or is_number(v)) for name, v in numbers.items())


def _is_name(name: Any) -> bool:
    return documents.is_text(name) or documents.is_whole(name)


def _stored(document: documents.Fields, solver: str) -> Stored:
    """What the file says of the solver and the problem; bilevel 0.1.0 kept only the text of the solver."""
    fits = "fits_validation" in document and document.take(
        "fits_validation", lambda value: isinstance(value, bool), "true or false"
    )
    if "objective" in document:
        objective = document.text_or_none("objective")
        found = tuple(_finding(own, document.where) for own in document.items("findings"))
        verdict = document.text("verdict") if "verdict" in document else None
        return Stored(objective, found, fits, verdict)
    weighting = re.search(r"\bweighting=(\w+)\(", solver)
    return Stored(weighting[1] if weighting else None, findings=None)


def _are_names(names: Any) -> bool:
    if not isinstance(names, list) or not names:
        return False
    return all(map(_is_name, names)) and len(set(names)) == len(names)


def _are_groups(groups: Any, tasks: int) -> bool:
    if not isinstance(groups, list) or not all(isinstance(ids, list) and ids for ids in groups):
        return False
    flat = [i for ids in groups for i in ids]
    return all(map(documents.is_whole, flat)) and sorted(flat) == list(range(tasks))


def check_arrays(document: documents.Fields, arrays: Arrays, facts: Facts) -> None:
    """A ValueError unless every array that a result is made of is there, with the shape that the others ask for."""
    y = document.take("y", lambda y: isinstance(y, list) and len(y) == len(facts.groups), "a structure for each group")
    structures = [("x", document.take("x", lambda _: True, "a structure"), None)]
    structures += [(f"y/{g}", y[g], len(ids)) for g, ids in enumerate(facts.groups)]
    check = _Check(document.where, arrays)
    for field, structure, rows in structures:
        try:
            paths = pytree_json.checked_paths(structure)
        except ValueError as error:
            raise ValueError(f"{document.where}: its document is wrong: the structure of {field} {error}.") from None
        for path in paths:
            first = check.array(f"last/{field}{path}")
            if rows is not None and first.shape[:1] != (rows,):
                raise check.wrong(f"last/{field}{path}", f"a leading axis of {rows}, one row a task")
            for name in ITERATES:
                check.like(f"{name}/{field}{path}", first.shape, first.dtype)
    _check_numbers(check, len(facts.tasks), facts.metrics)
    if "baselines" in arrays:
        check.like("baselines", (len(facts.tasks),))


def _check_numbers(check: _Check, tasks: int, metrics: tuple[str, ...]) -> None:
    """The losses and weights of the iterates, and the columns of the history."""
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


class _Check:
    """The arrays of a file, by name; errors speak of it."""

    def __init__(self, where: str, arrays: Arrays):
        self.where, self.arrays = where, arrays

    def array(self, name: str) -> np.ndarray:
        """An array that must be there."""
        if name not in self.arrays:
            raise ValueError(f"{self.where}: its document is wrong: the file holds no array {name!r}.")
        return self.arrays[name]

    def wrong(self, name: str, needs: str) -> ValueError:
        """The error to raise of an array."""
        array = self.arrays[name]
        return ValueError(
            f"{self.where}: its array {name!r} is {array.dtype}{list(array.shape)}, and it needs {needs}."
        )

    def like(self, name: str, shape: tuple[int, ...], dtype: np.dtype | None = None) -> None:
        """An array of this shape, and of this type; without a type, of real numbers."""
        array = self.array(name)
        if array.shape != shape or (array.dtype.kind not in "iuf" if dtype is None else array.dtype != dtype):
            raise self.wrong(name, f"{'real numbers' if dtype is None else dtype} of shape {list(shape)}")
